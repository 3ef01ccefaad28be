"""What a user wants trained: a module, a loss and data; and what of them a run's identity has."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from typing import Any

from torch import Tensor, nn

from harness.base.errors import UserError
from harness.base.seeds import stream_key
from harness.execution.data.arrays import Arrays
from harness.execution.runs.training import Identified
from harness.modules.digests import digest_of_code, digest_of_part, digest_of_state
from harness.modules.draws import generators_kept, seed_generators
from harness.modules.inspection import Inspected, inspected
from harness.modules.network import Loss, ModuleNetwork
from harness.modules.parameters import Parameters, flat, trained

Metric = Callable[[Tensor, Tensor], Tensor]
"""``metric(outputs, targets)``: a mean over examples, of which less is better."""


class Problem(Identified):
    """A module, its loss, its data and what is measured of it.

    Args:
        model: a module, whose parameters every run starts from; or what makes one, called for
            each seed under its own random numbers.
        loss: of outputs and targets, one number a minibatch.
        train: what is trained on.
        dev: what decides: rates, and when a target is reached.
        test: what is reported besides; None for nothing.
        metrics: by name; the first judges. Without any, the loss does.
    """

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        loss: Loss,
        train: Arrays,
        dev: Arrays,
        test: Arrays | None,
        metrics: Mapping[str, Metric],
    ) -> None:
        self.model, self.loss, self.metrics = model, loss, metrics
        self.train, self.dev, self.test = train, dev, test

    def __hash__(self) -> int:
        return id(self)

    @lru_cache(maxsize=4)  # noqa: B019 (a problem lives as long as its runs)
    def module(self, seed: int) -> nn.Module:
        """The module of a seed's runs, as it is before training.

        Raises:
            UserError: what makes it makes something else.
        """
        if isinstance(self.model, nn.Module):
            return self.model
        with generators_kept():
            seed_generators(stream_key(seed, "initialise") >> 65)
            made: Any = self.model()
        if not isinstance(made, nn.Module):
            told = f"gives a {type(made).__name__}"
            raise UserError(f"model: {told}; allowed: a torch.nn.Module, or what makes one")
        return made

    def initial(self, seed: int) -> Tensor:
        """The parameters ``[P]`` that a seed's runs start from."""
        return flat(list(trained(self.module(seed)).values()))

    def parameters(self, seed: int = 0) -> Parameters:
        """Where they lie."""
        return Parameters.of(self.module(seed))

    @lru_cache(maxsize=16)  # noqa: B019
    def inspected(self, minibatch: int, device: str) -> Inspected:
        """What the module is like; see `harness.modules.inspection`."""
        module = self.module(0)
        floats = next(iter(trained(module).values())).dtype
        some = Arrays(self.train.x[:minibatch], self.train.y[:minibatch]).to(device, floats)
        return inspected(_on(module, device), self.loss, some.x, some.y)

    def network(self, seed: int, minibatch: int, device: str) -> ModuleNetwork:
        """What algorithms are given."""
        found = self.inspected(minibatch, device)
        module = _on(self.module(seed), device)
        return ModuleNetwork(module, self.loss, together=found.together, reduction=found.reduction)

    @cached_property
    def _plain(self) -> dict[str, Any]:
        model: dict[str, str] = {"code": digest_of_code(self.model, "model")}
        if isinstance(self.model, nn.Module):
            model["state"] = digest_of_state(self.model)
        data = {"train": self.train, "dev": self.dev, "test": self.test}
        return {
            "model": model,
            "loss": digest_of_part(self.loss, "loss"),
            "metrics": [
                [name, digest_of_part(metric, "metric")] for name, metric in self.metrics.items()
            ],
            "data": {name: part and part.sha256 for name, part in data.items()},
        }

    def identified(self) -> dict[str, Any]:
        """Digests of code, state and data."""
        return self._plain


def _on(module: nn.Module, device: str) -> nn.Module:
    if device == "cpu":
        return module
    return copy.deepcopy(module).to(device)
