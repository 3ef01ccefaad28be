import logging
import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from data_synth.corpus import Corpus
from harness.acoustics.mmi import Criterion
from harness.algorithms.async_sgd import AsyncSgd, AveragedSgd
from harness.algorithms.schedules import Constant
from harness.base.log import LOG
from harness.experiment.contract import Watch
from harness.experiment.experiment import Experiment, Stage
from harness.experiment.run import run
from harness.simulator.cluster import Cluster, load_cluster
from harness.speech import frames
from harness.speech.task import Frames
from harness.store import Run, Store
from harness.tasks.order import Minibatches
from tests.experiments import experiment, sequence_experiment
from tests.processes import PATIENCE_S, Started
from tests.run_files import tiny_corpus

ZERO_COST = """
name = "free"
workers = [{count = 4, device = "instant"}]
devices.instant = {}
server.fold_traffic = 0.0
"""
UNEQUAL = """
name = "unequal"
workers = [{count = 2, device = "card"}, {count = 1, device = "card", speed = 0.4}]
devices.card.achieved_flops_per_s = 1e9
link.bandwidth_bytes_per_s = 1e7
server.fold_s = 0.0001
jitter = {law = "lognormal", cv = 0.3}
"""


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    """See `tiny_corpus`; experiments find it, or another (`offered`), by the name "tiny"."""
    return tiny_corpus()


@pytest.fixture(autouse=True)
def offered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Corpus]:
    """Corpora that experiments find by their names, before any other."""
    corpora: dict[str, Corpus] = {}
    load = frames._load_cached

    def load_offered(name: str, *settings: Any) -> Corpus:
        if name == "tiny" and name not in corpora:
            corpora[name] = request.getfixturevalue("corpus")
        return corpora[name] if name in corpora else load(name, *settings)

    monkeypatch.setattr(frames, "_load_cached", load_offered)
    return corpora


def cluster_of(text: str, folder: Path) -> Cluster:
    path = folder / "cluster.toml"
    path.write_text(text)
    return load_cluster(path)


@pytest.fixture
def zero_cost(tmp_path: Path) -> Cluster:
    return cluster_of(ZERO_COST, tmp_path)


@pytest.fixture
def unequal(tmp_path: Path) -> Cluster:
    return cluster_of(UNEQUAL, tmp_path)


@pytest.fixture
def log_handlers() -> Iterator[list[logging.Handler]]:
    """Handlers of the log, which are restored with its level at the end."""
    level, handlers = LOG.level, [*LOG.handlers]
    yield handlers
    LOG.setLevel(level)
    LOG.handlers = handlers


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Runs that one test trains and the others find: `train` executes none a second time."""
    return Store(tmp_path_factory.mktemp("finished"))


@pytest.fixture
def configure(corpus: Corpus, unequal: Cluster) -> Callable[..., Experiment[Frames]]:
    def make(**choices: object) -> Experiment[Frames]:
        standard: dict[str, object] = {
            "corpus": "tiny", "scale": "smoke", "corpus_seed": 0, "fingerprint": corpus.fingerprint,
            "hidden": (6,), "activation": "sigmoid", "initial": None,
            "algorithm": AveragedSgd(AsyncSgd(), considers=5), "schedule": Constant(0.02),
            "stages": (Stage(8, 256),), "passes": 2, "chunk": 0.25, "evaluations": 5,
            "cluster": unequal, "workers": 3, "timed_layers": (9, 6, 5), "seed": 0, "device": "cpu",
        }  # fmt: skip
        return experiment(Frames, **{**standard, **choices})

    return make


@pytest.fixture
def start(configure: Callable[..., Experiment[Frames]]) -> Experiment[Frames]:
    """Cross-entropy training that sequence training starts from."""
    return configure(activation="relu", algorithm=AsyncSgd(), passes=1)


@pytest.fixture
def sequence(
    start: Experiment[Frames], corpus: Corpus, unequal: Cluster
) -> Callable[..., Experiment[Any]]:
    def make(**choices: Any) -> Experiment[Any]:
        standard: dict[str, object] = {
            "corpus": "tiny", "scale": "smoke", "corpus_seed": 0, "fingerprint": corpus.fingerprint,
            "start": start, "criterion": Criterion(kappa=0.5, reject_below=0.0, cancel_below=0.0),
            "cluster": unequal, "timed_layers": (9, 6, 5), "seed": 0, "device": "cpu",
            "workers": 3, "slots": 2, "rate": 0.01, "passes": 2, "evaluations": 3, "held_out": 3,
            "order": 1,
        }  # fmt: skip
        return sequence_experiment(**{**standard, **choices})

    return make


@pytest.fixture
def run_sequence(finished: Store) -> Callable[..., Run]:
    """Trains, unless another test has."""

    def run_finished(config: Experiment[Any], watch: Watch = lambda progress: None) -> Run:
        return run(config, finished, watch)

    return run_finished


WAITS = """
import os, sys
from harness.processes.server import ServerExecutor
from harness.processes.transport import Kind
from harness.train import main

lose = ServerExecutor._lose


def losing(self, worker, why):
    work, kept = lose(self, worker, why), []
    while not kept or kept[-1].header is None or kept[-1].header.kind is not Kind.HELLO:
        kept.append(self._peers.receive())
    self._peers._ready.extend(kept)
    return work


ServerExecutor._lose = losing
code = main()
sys.stdout.flush()
os._exit(code)
"""


@pytest.fixture
def waiting_server(tmp_path: Path) -> Path:
    """A server that, when a worker dies, waits until it knocks again."""
    path = tmp_path / "waits.py"
    path.write_text(WAITS, encoding="utf-8")
    return path


PAUSE = """
import time
from pathlib import Path
from typing import Any
from harness.processes import recorder

store, row, since = Path(sys.argv[sys.argv.index("--out") + 1]), recorder._row, []


def pausing(*told):
    if next(store.glob("*/checkpoint/*.safetensors"), None):
        since.append(told)
    if len(since) == 3:
        (store.parent / "paused").touch()
        while not (store.parent / "go").exists():
            time.sleep(0.01)
    return row(*told)


recorder._row = pausing
"""
"""A server stops here at the third contribution after a checkpoint, until `Group.go_on`."""
PAUSES = f"""
import math, os, sys
from harness.train import main
from harness.experiment import loop

loop.CHECKPOINT_EVERY_S, loop.CHECKPOINT_SHARE = 0.0, math.inf
{PAUSE}
os._exit(main())
"""


@pytest.fixture
def pausing_server(tmp_path: Path) -> Path:
    """A server that writes a checkpoint at every boundary, and stops after the first (`PAUSE`)."""
    path = tmp_path / "pauses.py"
    path.write_text(PAUSES, encoding="utf-8")
    return path


class Group:
    """The processes of a real run, by rank; the first is the server."""

    def __init__(
        self, run: Path, ranks: int, options: tuple[str, ...], instead: Mapping[int, Path]
    ) -> None:
        self.store = run.parent / "s"
        self.words = [str(run), "--out", str(self.store), *options]
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.shared = {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": str(ranks)}
            self.shared["MASTER_PORT"] = str(listening.getsockname()[1])
            self.processes = [self.start(0, instead.get(0), listening)]
        self.processes += [self.start(rank, instead.get(rank)) for rank in range(1, ranks)]

    def start(
        self, rank: int, script: Path | None = None, listening: socket.socket | None = None
    ) -> Started:
        """One of the processes; a script may stand for the program."""
        program = [str(script)] if script else ["-m", "harness.train"]
        environment = {**os.environ, **self.shared, "RANK": str(rank)}
        return Started([*program, *self.words], environment, listening)

    def ended(self) -> tuple[list[int], list[str]]:
        """Exit codes, and what each wrote to stderr."""
        ends = [process.ended() for process in self.processes]
        return [end.returncode for end in ends], [end.stderr for end in ends]

    def wait_for(self, pattern: str) -> None:
        """Until the store has such a file."""
        end = time.monotonic() + PATIENCE_S
        while not next(self.store.glob(pattern), None):
            assert self.processes[0].process.is_alive(), f"the server ended, and no {pattern}"
            assert time.monotonic() < end, f"no {pattern}"
            time.sleep(0.02)

    def wait_for_pause(self) -> None:
        """Until the server stops after a checkpoint; see `PAUSE`."""
        self.wait_for("../paused")

    def go_on(self) -> None:
        """End the server's pause."""
        (self.store.parent / "go").touch()

    def wait_until_told(self, word: str) -> None:
        """Until the server's stderr has this."""
        self.processes[0].wait_until_told(word)

    def kill(self, rank: int) -> None:
        """With SIGKILL."""
        self.processes[rank].kill()

    def folder(self) -> Path:
        """Of the only run in the store."""
        (found,) = [config.parent for config in self.store.glob("*/config.json")]
        return found


@pytest.fixture
def launch() -> Iterator[Callable[..., Group]]:
    """Starts groups of processes, and ends those that are left."""
    groups: list[Group] = []

    def launched(
        run: Path, ranks: int = 3, *options: str, instead: Mapping[int, Path] | None = None
    ) -> Group:
        groups.append(Group(run, ranks, ("--paced", *options), instead or {}))
        return groups[-1]

    yield launched
    for process in [process for group in groups for process in group.processes]:
        process.kill()
        process.ended()


@pytest.fixture
def asked(monkeypatch) -> dict[int, dict[int, list[int]]]:
    """The numbers of the examples that were trained on: by worker, by its step."""
    found: dict[int, dict[int, list[int]]] = defaultdict(dict)
    of = Minibatches.fetch

    def watched(self, keys):
        minibatch = of(self, keys)
        for (worker, step), rows in zip(keys, minibatch.x.flatten(1).tolist(), strict=True):
            assert step not in found[worker]
            found[worker][step] = [int(row) for row in rows]
        return minibatch

    monkeypatch.setattr(Minibatches, "fetch", watched)
    return found
