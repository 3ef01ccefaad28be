"""Real processes of known speed beside the simulator: does the prediction hold?

Each regime is a cluster file; its workers are processes on this machine that wait wherever they
are quicker than the file says, so a few cores can be many workers. What else happens is real:
sockets, queues, threads, the folds. Nothing is fitted.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from harness.errors import UserError
from harness.execution.fidelity.compare import Comparison, compared
from harness.execution.runs.file import load_run

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
SHARDED = f"shards = 2\n{ASYNCHRONOUS}"
REGIMES: Mapping[str, tuple[int, str, str]] = {
    "compute-bound": (
        6,
        ASYNCHRONOUS,
        """
[[workers]]
count = 6
device = "paced"
[devices.paced]
launch_s = 0.08
[jitter]
law = "lognormal"
cv = 0.2
""",
    ),
    "server-bound": (
        6,
        ASYNCHRONOUS,
        """
[[workers]]
count = 6
device = "paced"
[devices.paced]
launch_s = 0.05
[server]
fold_s = 0.025
[jitter]
law = "lognormal"
cv = 0.2
""",
    ),
    "server in two shards": (
        6,
        SHARDED,
        """
[[workers]]
count = 6
device = "paced"
[devices.paced]
launch_s = 0.08
[server]
fold_s = 0.03
[jitter]
law = "lognormal"
cv = 0.2
""",
    ),
    "averaging in rounds": (
        4,
        ROUNDS,
        """
[[workers]]
count = 4
device = "paced"
[devices.paced]
launch_s = 0.06
[jitter]
law = "lognormal"
cv = 0.2
""",
    ),
    "one straggler": (
        6,
        ASYNCHRONOUS,
        """
[[workers]]
count = 5
device = "paced"
[[workers]]
count = 1
device = "paced"
speed = 0.2
[devices.paced]
launch_s = 0.08
[jitter]
law = "lognormal"
cv = 0.1
""",
    ),
}
"""Workers, what they do, and the cluster they are paced to."""
RUN = """
corpus = "parametric"
hidden = [32]
cluster = "cluster.toml"
workers = {workers}
evaluations = 1
{training}
[[stages]]
minibatch = 32
timed_minibatch = 32
share = 0.25
"""


def validated(say: Callable[[str], None]) -> Iterator[tuple[str, Comparison]]:
    """Run and predict every regime.

    Args:
        say: told what runs.

    Raises:
        UserError: a run does not end well.
    """
    for name, (workers, training, cluster) in REGIMES.items():
        say(f"{name}: {workers} workers")
        with TemporaryDirectory() as folder:
            path = Path(folder)
            (path / "cluster.toml").write_text(f'name = "{name}"\n{cluster}', encoding="utf-8")
            run = RUN.format(workers=workers, training=training)
            (path / "run.toml").write_text(run, encoding="utf-8")
            yield name, _one(path, name, workers)


def _one(folder: Path, name: str, workers: int) -> Comparison:
    command = [sys.executable, "-m", "harness.train", str(folder / "run.toml"), "--paced"]
    asked = load_run(folder / "run.toml")
    processes = str(workers + asked.config.shards)
    options = ["--processes", processes, "--out", str(folder / "runs")]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        told = (done.stderr.strip().splitlines() or ["nothing said"])[-1]
        raise UserError(f"{name}: the run ended with {done.returncode}: {told}")
    (config_file,) = (folder / "runs").glob("*/config.json")
    return compared(config_file.parent)


def markdown(found: Mapping[str, Comparison]) -> Iterator[str]:
    """A table, a row a regime."""
    heads = ("regime", "folds/s", "predicted", "error", "mean staleness", "predicted", "error")
    yield f"| {' | '.join((*heads, 'KS distance'))} |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, one in found.items():
        there, ours = one.recorded, one.predicted
        staleness = [b.lags["inner"].staleness.mean() for b in (there, ours)]
        yield (
            f"| {name} | {there.throughput_per_s:.2f} | {ours.throughput_per_s:.2f} |"
            f" {one.throughput_error:+.1%} | {staleness[0]:.3f} | {staleness[1]:.3f} |"
            f" {one.staleness_error:+.1%} | {one.staleness_distance():.3f} |"
        )
