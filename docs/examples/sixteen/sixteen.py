"""A paper of one table and one claim: sixteen workers are ten times as fast as one."""

import lagbench
from harness.experiment.timing import TimingConfig
from harness.judge.claims import Rule
from harness.judge.parts import Quantity
from harness.judge.results import Row
from harness.judge.statistics import mean_ci
from reproductions.makers import Claims, Exhibits
from reproductions.paper import NO_CORPUS, Paper

EXHIBITS, CLAIMS, NEEDS = Exhibits(), Claims(), ("1 worker", "16 workers")


def experiments(_, seed):
    """Return every run of a seed, by name."""
    run = {"cluster": lagbench.cluster_of("k20m-server"), "folds": 500, "seed": seed}
    run |= {"layers": (429, 2048, 2048, 10217), "minibatch": 256}
    return {name: TimingConfig(workers=int(name.split()[0]), **run) for name in NEEDS}


def speed_up(runs):  # noqa: D103
    one, many = ([run.summary["throughput_per_s"] for run in runs[name]] for name in NEEDS)
    return mean_ci([b / a for a, b in zip(one, many, strict=True)])


@EXHIBITS.table("s.speed", "Speed-up", NEEDS, "Table 1")
def table(_, runs):  # noqa: D103
    behind = tuple(run.hash for name in NEEDS for run in runs[name])
    yield Row.from_interval("16 workers", "times as fast", 10.0, speed_up(runs), behind)


@CLAIMS.declare("s.ten", NEEDS, "Sixteen workers are ten times as fast as one", "page 3")
def claim(_, runs):  # noqa: D103
    yield Quantity("16 workers", 10.0, speed_up(runs), Rule(9.0, 11.0), 10.0)


ABOUT = ("sixteen", NO_CORPUS, {"title": "A toy", "authors": "nobody"}, {"smoke": 2, "laptop": 3})
PAPER = Paper(*ABOUT, experiments, lambda _: [], EXHIBITS, CLAIMS)
