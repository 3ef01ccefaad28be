"""Validation of the simulator against real processes of known speed.

Each regime is a cluster file; its workers are processes on this machine that wait where they are
quicker than the file says, so a few cores can take the place of many workers. Sockets, queues,
threads and folds are real. Nothing is fitted.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from harness.base.errors import UserError
from harness.experiment.experiment import AnyExperiment
from harness.experiment.run_file import load_folds
from harness.fidelity.compare import Comparison, compare_to_prediction

ASYNCHRONOUS = """
[algorithm]
is = "AsyncSgd"
[schedule]
is = "Constant"
rate = 0.008
"""

ROUNDS = """
[protocol]
every = 1
[algorithm]
is = "ModelAveraging"
[schedule]
is = "Constant"
rate = 0.5
"""


@dataclass(frozen=True)
class Regime:
    """A cluster of paced workers, and the training that they execute.

    Attributes:
        training: protocol, algorithm and schedule, as in a run file.
        launch_s: duration of a minibatch on a worker of speed 1.
        fold_s: duration of a fold.
        cv: coefficient of variation of a minibatch's duration (standard deviation over mean).
        speeds: relative speed of each worker.
    """

    training: str = ASYNCHRONOUS
    launch_s: float = 0.08
    fold_s: float = 0.0
    cv: float = 0.2
    speeds: tuple[float, ...] = (1.0,) * 6

    def files(self, name: str) -> dict[str, str]:
        """Texts of the run file and the cluster file, by file name."""
        workers = "".join(WORKER.format(speed=speed) for speed in self.speeds)
        cluster = CLUSTER.format(name=name, workers=workers, **vars(self))
        run = RUN.format(workers=len(self.speeds), training=self.training)
        return {"cluster.toml": cluster, "run.toml": run}


REGIMES: Mapping[str, Regime] = {
    "compute-bound": Regime(),
    "server-bound": Regime(launch_s=0.05, fold_s=0.025),
    "averaging in rounds": Regime(ROUNDS, launch_s=0.06, speeds=(1.0,) * 4),
    "one straggler": Regime(cv=0.1, speeds=(1.0, 1.0, 1.0, 1.0, 1.0, 0.2)),
}

WORKER = """
[[workers]]
count = 1
device = "paced"
speed = {speed}
"""

CLUSTER = """
name = "{name}"
{workers}
[devices.paced]
launch_s = {launch_s}
[server]
fold_s = {fold_s}
[jitter]
law = "lognormal"
cv = {cv}
"""

RUN = """
cluster = "cluster.toml"
workers = {workers}
evaluations = 1
{training}
[task]
is = "frames"
corpus = "parametric"
hidden = [32]
[[stages]]
minibatch = 32
timed_minibatch = 32
share = 0.25
"""


def validate_regimes(say: Callable[[str], None], program: str) -> Iterator[tuple[str, Comparison]]:
    """Run and predict every regime; yields its name and the comparison.

    Args:
        say: prints the regime that runs next.
        program: the module whose command starts the processes of a run.

    Raises:
        UserError: a run fails.
    """
    for name, regime in REGIMES.items():
        say(f"{name}: {len(regime.speeds)} workers")
        with TemporaryDirectory() as folder:
            for file, text in regime.files(name).items():
                (Path(folder) / file).write_text(text, encoding="utf-8")
            yield name, _run_regime(Path(folder), name, program)


def _run_regime(folder: Path, name: str, program: str) -> Comparison:
    command = [sys.executable, "-m", program, str(folder / "run.toml"), "--paced"]
    config: AnyExperiment = load_folds(folder / "run.toml")
    processes = str(config.workers + config.shards)
    options = ["--processes", processes, "--out", str(folder / "runs")]
    process = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    if process.returncode != 0:  # its last line is the error; the others are progress
        error = (process.stderr.strip().splitlines() or ["nothing said"])[-1]
        raise UserError(f"{name}: the run ended with {process.returncode}: {error}")
    (config_file,) = (folder / "runs").glob("*/config.json")
    return compare_to_prediction(config_file.parent)


def markdown(comparisons: Mapping[str, Comparison]) -> Iterator[str]:
    """Lines of a Markdown table with one row per regime."""
    heads = ("regime", "folds/s", "predicted", "error", "mean staleness", "predicted", "error")
    yield f"| {' | '.join((*heads, 'KS distance'))} |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, comparison in comparisons.items():
        recorded, ours = comparison.recorded, comparison.predicted
        staleness = [b.lag.staleness.mean() for b in (recorded, ours)]
        yield (
            f"| {name} | {recorded.throughput_per_s:.2f} | {ours.throughput_per_s:.2f} |"
            f" {comparison.throughput_error:+.1%} | {staleness[0]:.3f} | {staleness[1]:.3f} |"
            f" {comparison.staleness_error:+.1%} | {comparison.staleness_distance:.3f} |"
        )
