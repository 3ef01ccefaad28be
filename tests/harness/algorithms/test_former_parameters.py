"""Algorithms whose `contribute` and `fold` have the parameters of before, one by one."""

from __future__ import annotations

import functools
import pickle
import re
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

import lagbench
from harness import cli
from harness.algorithms.async_sgd import AsyncSgd, Gradients
from harness.algorithms.averaging import Easgd, ModelAveraging
from harness.algorithms.contract import FORMER, Algorithm, Fold, LocalWork, Memory, Server
from harness.algorithms.stale import StalenessAware
from harness.base.log import FormerWarning
from harness.base.registry import forget
from harness.networks.contract import Minibatch
from harness.networks.feedforward import Dnn, Layout
from harness.runs.digests import digest_of_code
from tests.processes import run
from tests.run_files import ASYNCHRONOUS, written

FORMERLY = '''
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from harness.algorithms.contract import Server
from harness.algorithms.async_sgd import Gradients


@dataclass(frozen=True)
class {name}(Gradients):
    """``theta <- theta - rate g / (1 + staleness)^power``."""

    power: float = 0.5

    def fold(
        self,
        server: Server,
        contributions: Tensor,
        staleness: Sequence[int],
        rate: float,
        workers: Sequence[int] = (),
        weights: Sequence[float] = (),
    ) -> None:
        """One step along each of ``contributions [W, P]``."""
        for contribution, age in zip(contributions, staleness, strict=True):
            server.model.sub_(contribution, alpha=rate / (1 + age) ** self.power)
        server.version += 1
'''
"""The example of the how-to, as it was."""
NET = Dnn(Layout((2, 3)))
CLUSTER = """
name = "three"
[[workers]]
count = 3
device = "card"
[devices.card]
launch_s = 0.01
"""


@dataclass(frozen=True)
class Discounted(Gradients):
    """The same example, as it is now."""

    power: float = 0.5

    def fold(self, server, fold):
        for contribution, age in zip(fold.contributions, fold.staleness, strict=True):
            server.model.sub_(contribution, alpha=fold.rate / (1 + age) ** self.power)
        server.version += 1


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """A file beside the run file with the former example, under a name of its own."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)

    def put(name: str) -> Path:
        path = tmp_path / f"{name.lower()}.py"
        path.write_text(FORMERLY.format(name=name), encoding="utf-8")
        return path

    yield put
    forget()


def work(workers: int = 1) -> LocalWork:
    """One minibatch of each worker."""
    draw = torch.Generator().manual_seed(0)
    x, targets = torch.randn(workers, 4, 2, generator=draw), torch.zeros(workers, 4, dtype=int)
    replicas = torch.randn(workers, 9, generator=draw)
    out = torch.empty(workers, 9)
    return LocalWork(NET, replicas, [Minibatch(x, targets)], out, 0.1, Memory())


def silently(body):
    """A class, without what is said of it."""
    with warnings.catch_warnings(action="ignore"):
        return body()


def test_the_former_example_compares_as_today_s_does_and_one_line_says_how_to_change_it(
    beside, tmp_path
):
    beside("Compared")
    sys.path.insert(0, str(tmp_path))
    with pytest.warns(FormerWarning, match=r"Compared\.fold") as said:
        from compared import Compared  # pyright: ignore[reportMissingImports]
    (line,) = {str(each.message) for each in said}
    assert line.startswith("Compared.fold: define contribute(self, work) and fold(self, server,")
    assert "\n" not in line
    assert [Path(each.filename).name for each in said] == ["compared.py"]

    (tmp_path / "three.toml").write_text(CLUSTER, encoding="utf-8")
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=draw)
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    with warnings.catch_warnings(action="error"):
        result = lagbench.compare(
            *(model, nn.functional.cross_entropy, (x, (x[:, 0] > 0).long())),
            algorithms=[Compared(), Discounted()],
            cluster=tmp_path / "three.toml",
            store=tmp_path / "store",
            rates=0.2,
            workers=[3],
            passes=2,
            seeds=1,
            minibatch=4,
        )
    assert result.rows[0].staleness > 0.5
    one, other = (run.path("model.safetensors").read_bytes() for run in result.runs)
    assert one == other


@pytest.mark.parametrize("processes", [(), ("--processes", "3")], ids=["simulated", "real"])
def test_a_run_file_trains_a_class_of_before_and_a_user_reads_each_line_once(
    beside, tmp_path, processes
):
    """Though the processes that train import it, too."""
    path = beside("Trained")
    module = path.read_text().replace("algorithms.async_sgd", "algorithms.gradients")
    path.write_text(f"{module}\nimport harness.network\n")
    text = ASYNCHRONOUS.replace("AveragedSgd", "Trained").replace("Halving", "Constant")
    file = written(tmp_path, 'import = ["trained"]\n' + text)
    ended = run(["-m", "harness", "train", file, "--out", tmp_path / "store", *processes])
    assert ended.returncode == 0, ended.stderr
    assert re.findall(r"trained\.py:\d+: FormerWarning: (\S+)", ended.stderr) == [
        *("harness.algorithms.gradients", "Trained.fold:", "harness.network")
    ]


def test_a_program_that_imports_a_class_of_before_shows_the_line(beside):
    beside("Imported")
    told = run(["-c", "import sys; sys.path.append('.'); import imported"]).stderr
    (line,) = re.findall(r"imported\.py:\d+: FormerWarning: (.+)", told)
    assert line.startswith("Imported.fold: define contribute(self, work)")


def test_checking_a_class_of_before_shows_the_line(beside, capsys):
    beside("Checked")
    assert cli.main(["check-algorithm", "Checked", "--import", "checked"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("warning")] == [
        "warning Checked.fold: define contribute(self, work) and fold(self, server, fold); the "
        "former parameters are fields of work (lagbench.LocalWork) and fold (lagbench.Fold)"
    ]
    assert sum(line.startswith("kept") for line in lines) == 7


class Mixed:
    """A part of an algorithm that is none itself."""

    def contribute(self, network, replicas, minibatches, out, rate, memory):
        return network.gradient(replicas, *minibatches[0], out)


def decorated(method):
    @functools.wraps(method)
    def called(*given, **named):
        return method(*given, **named)

    return called


def of_before() -> list[type[Algorithm]]:
    """Classes that make a step along the gradient, written in the ways of before."""

    @dataclass(frozen=True)
    class Plain(AsyncSgd):
        def contribute(self, network, replicas, minibatches, out, rate, memory):
            return AsyncSgd().contribute(network, replicas, minibatches, out, rate, memory)

        def fold(self, server, contributions, staleness, rate, workers, weights):
            super().fold(server, contributions, staleness, rate, workers, weights)

    @dataclass(frozen=True, slots=True)
    class Slotted(Gradients):
        scale: float = 1.0

        def fold(self, server, contributions, staleness, rate, workers=(), weights=()):
            server.model.sub_(contributions[0], alpha=self.scale * rate)
            server.version += 1

    class OfAPart(Mixed, AsyncSgd):
        def fold(self, server, contributions, staleness, rate, workers=(), weights=()):
            AsyncSgd.fold(self, server, contributions, staleness=staleness, rate=rate)

    class Open(Gradients):
        def fold(self, server, contributions, *others, **more):
            assert len(contributions) == 1
            super().fold(server, contributions, *others, **more)

    class Decorated(Gradients):
        @decorated
        def fold(self, server, contributions, staleness, rate, workers=(), weights=()):
            super().fold(server, contributions, staleness, rate, workers, weights)

    class Below(Open):
        """Inherits both."""

    return [Plain, Slotted, OfAPart, Open, Decorated, Below]


KINDS = silently(of_before)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_class_of_before_is_called_with_bundles_and_as_before(kind):
    models = []
    for former in (False, True):
        given, server = work(), Server(torch.zeros(9))
        algorithm = kind()
        if former:
            losses = algorithm.contribute(*given)
            algorithm.fold(server, given.out, [1], 0.5, [0], [1.0])
        else:
            losses = algorithm.contribute(given)
            algorithm.fold(server, Fold(given.out, [1], 0.5, [0], [1.0]))
        assert losses.shape == (1,)
        assert server.version == 1
        assert torch.equal(server.model, given.out[0] * -0.5)
        models.append(server.model)
    assert torch.equal(*models)


@pytest.mark.parametrize("algorithm", [AsyncSgd(), StalenessAware(), ModelAveraging(), Easgd()])
def test_ours_are_called_as_before_too(algorithm):
    """From a class of before, by `super()`, or as a part that it keeps."""
    ends = []
    for former in (False, True):
        given, server = work(), algorithm.start(torch.zeros(9))
        if former:
            *first, rate, memory = given
            losses = algorithm.contribute(*first, rate=rate, memory=memory)
            algorithm.fold(server, given.out, [0], rate=0.5)
        else:
            losses = algorithm.contribute(given)
            algorithm.fold(server, Fold(given.out, [0], 0.5))
        ends.append((losses, given.out, server.model))
    assert all(torch.equal(*pair) for pair in zip(*ends, strict=True))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_a_run_is_known_by_is_not_changed_by_the_adapter(kind, monkeypatch):
    here = digest_of_code(kind)
    restored = 0
    for each in kind.__mro__:
        for name in FORMER:
            if each.__module__ == __name__ and name in vars(each):
                monkeypatch.setattr(each, name, vars(each)[name].__wrapped__)
                restored += 1
    assert restored
    assert digest_of_code(kind) == here


def test_of_a_class_both_methods_are_named_in_one_line_and_of_those_below_nothing_more():
    with pytest.warns(FormerWarning, match="former parameters") as said:
        (kind, *_) = of_before()
    lines = [str(each.message).replace("of_before.<locals>.", "") for each in said]
    assert [line.partition(": ")[0] for line in lines] == [
        *("Plain.contribute and Plain.fold", "Slotted.fold", "OfAPart.fold"),
        *("Open.fold", "Decorated.fold"),
    ]
    with warnings.catch_warnings(action="error"):
        type("Below", (kind,), {})
        type("Today", (Discounted,), {"fold": lambda self, server, fold: None})


def test_objects_of_classes_of_before_are_pickled_as_ever(beside, tmp_path):
    beside("Pickled")
    sys.path.insert(0, str(tmp_path))
    Pickled = silently(lambda: __import__("pickled").Pickled)
    again = pickle.loads(pickle.dumps(Pickled(0.25)))
    assert again == Pickled(0.25)
    server = Server(torch.zeros(2))
    again.fold(server, Fold(torch.ones(1, 2), [15], 1.0))
    assert server.model.tolist() == [-0.5, -0.5]


def test_what_is_neither_a_bundle_nor_the_former_parameters_is_refused_by_python():
    with pytest.raises(TypeError, match="staleness"):
        AsyncSgd().fold(Server(torch.zeros(2)), torch.ones(1, 2))
