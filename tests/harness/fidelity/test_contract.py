from dataclasses import dataclass, field

import pytest
import torch

from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.catalogue import Algorithm
from harness.base.errors import UserError
from harness.experiment.methods import NAMES
from harness.fidelity.promises import check_contract


@pytest.mark.parametrize("name", NAMES)
def test_what_comes_with_the_harness_keeps_every_promise(name):
    broken = [answer for answer in check_contract(NAMES[name]) if not answer.kept]
    assert broken == []


@dataclass(frozen=True)
class Counting(AsyncSgd):
    """Keeps its own count, which no checkpoint sees."""

    seen: list[int] = field(default_factory=list)

    def fold(self, server, fold):
        self.seen.append(1)
        server.model.sub_(fold.contributions.sum(0), alpha=fold.rate / len(self.seen))
        server.version += 1


@dataclass(frozen=True)
class Guessing(AsyncSgd):
    """Draws from a generator that nobody names."""

    def fold(self, server, fold):
        server.model.sub_(fold.contributions.sum(0) * torch.rand(()), alpha=fold.rate)
        server.version += 1


@dataclass(frozen=True)
class Jittering(AsyncSgd):
    """Draws only what it adds to stale contributions."""

    def fold(self, server, fold):
        for contribution, stale in zip(fold.contributions, fold.staleness, strict=True):
            noise = stale * torch.randn_like(contribution)
            server.model.sub_(contribution + noise, alpha=fold.rate)
        server.version += 1


@dataclass(frozen=True)
class Fresh(AsyncSgd):
    """Folds nothing that is stale."""

    def fold(self, server, fold):
        if any(fold.staleness):
            raise UserError("algorithm: nothing stale")
        super().fold(server, fold)


@dataclass(frozen=True)
class Sharing(AsyncSgd):
    """Trains on what it was given, and makes no versions."""

    def start(self, model):
        found = super().start(model)
        found.model = model
        return found


@dataclass(frozen=True)
class Weighing(AsyncSgd):
    """Divides what is already a mean by its minibatches once more."""

    def fold(self, server, fold):
        super().fold(server, fold._replace(rate=fold.rate / fold.weights[0]))


@pytest.mark.parametrize(
    ("algorithm", "promise"),
    [
        (Counting(), "all state is in the server"),
        (Guessing(), "the same folds give the same bytes"), (Jittering(), "stale folds"),
        (Sharing(), "every fold adds one version"), (Weighing(), "serial training"),
    ],
)  # fmt: skip
def test_a_broken_promise_is_named(algorithm: Algorithm, promise: str):
    broken = [answer.promise for answer in check_contract(algorithm) if not answer.kept]
    assert any(promise in each for each in broken), broken


def test_what_an_algorithm_refuses_is_said_not_to_have_been_asked():
    (unasked,) = [answer for answer in check_contract(Fresh()) if not answer.kept]
    assert (unasked.kept, unasked.told) == (None, "algorithm: nothing stale")
