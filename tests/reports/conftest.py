"""A whole output folder as a reproduction leaves it, made from random numbers."""

import math

import numpy as np
import pytest

from harness.judge.claims import BELOW, Rule, rule_near
from harness.judge.interval import Interval
from harness.judge.parts import Precondition, Quantity, claim_of
from harness.judge.results import Claim, Exhibit, Part, Results, Row, write_results
from harness.judge.statistics import mean_ci, paired_difference_ci
from harness.simulator.cluster import Cluster, Device, Link, Server, WorkerGroup, Workload
from harness.simulator.simulation import Simulation
from harness.simulator.timeline_file import save_timeline
from harness.store import Store

SEEDS = (11, 12)
LONG = "averages in each of the runs that the claim rests on, of which the paper has many more"
TITLE = "Improving Training Time With Averaged SGD"


def serial_server():
    """Four workers, each slower than the one before it, at a server that folds one by one."""
    workers = tuple(WorkerGroup(1, "card", 1.0 / (1.0 + 0.15 * place)) for place in range(4))
    cluster = Cluster(
        "drawn", {"card": Device(20.0)}, workers, Link(0.03), server=Server(0.02, 0.0)
    )
    return Simulation(cluster, "parameter_server", Workload(1, 1.0, 0.0)).advance(folds=32)


def fill_store(store):
    """Runs of three schedules and two seeds; one diverged and one was interrupted."""
    hashes = {}
    rng = np.random.default_rng(0)
    for schedule in ("Hand", "Adapt", "Search"):
        for seed in SEEDS:
            config = {
                "corpus": "fsdd", "hidden": [128, 128, 128], "seed": seed,
                "schedule": {"is": schedule, "first": 0.008},
                "cluster": {"name": "k20m-server", "link": {"bandwidth_bytes": 6e9}},
            }  # fmt: skip
            with store.begin(config) as writer:
                writer.log("dev_frame_error", 0.5, fold=1, time_s=1.0, epoch=0.5)
                writer.finish(summary={"dev_frame_error": 0.3 + 0.1 * rng.random()})
                hashes[schedule, seed] = writer.hash
    with store.begin({"corpus": "fsdd", "schedule": {"is": "Hand", "first": 8.0}}) as writer:
        writer.finish("diverged", {"dev_frame_error": math.inf}, "loss was inf at fold 17")
        hashes["bad"] = writer.hash
    store.begin({"corpus": "fsdd", "seed": 99}).release()
    return hashes


def curve_rows(hashes):
    rng = np.random.default_rng(1)
    for schedule, floor, speed in (("Hand", 30, 4), ("Adapt", 33, 1.2), ("Search", 28, 3)):
        for epoch in np.linspace(0.1, 2, 20).round(2).tolist():
            values = floor + 40 * math.exp(-speed * epoch) + rng.normal(0, 0.02, 2)
            found = mean_ci(values)
            runs = tuple(hashes[schedule, seed] for seed in SEEDS)
            yield Row(f"ASGD-{schedule.lower()}", epoch, None, found.estimate, found.ci95, runs)


def table_rows(hashes, bad=False):
    runs = tuple(hashes["Search", seed] for seed in SEEDS)
    figures = {
        ("asynchronous SGD, multiple passes", "clean"): (7.63, [8.11, 8.19]),
        ("asynchronous SGD, multiple passes", "noise"): (19.17, [21.9, 22.1]),
        ("asynchronous ASGD, one pass", "clean"): (7.89, [8.4, 8.52]),
        ("asynchronous ASGD, one pass", "noise"): (20.01, [22.2, 22.9]),
    }
    for (label, column), (paper, values) in figures.items():
        found = mean_ci(values)
        yield Row(label, column, paper, found.estimate, found.ci95, runs)
    if bad:
        yield Row("rate 8 (too high)", "clean", None, math.inf, None, (hashes["bad"],))


def exhibits(hashes):
    sizes = [1, 5, 10, 20, 25]
    clean, noise = [8.93, 9.12, 9.36, 9.51, 9.62], [22.15, 22.87, 23.40, 23.91, 24.11]
    chunk = [
        Row(label, f"{size} h", paper, paper + 1.2, (paper + 0.7, paper + 1.7))
        for label, printed in (("clean7k", clean), ("noise360", noise))
        for size, paper in zip(sizes, printed, strict=True)
    ]
    speed = [
        Row("paper 2's cluster", n, paper, ours, (ours * 0.98, ours * 1.02))
        for n, paper, ours in ((1, 1, 1), (2, None, 1.9), (4, None, 3.6), (16, 9.3, 9.0))
    ]
    shares = [Row("contributions", lag, None, n) for lag, n in enumerate([2, 9, 40, 310, 45, 8])]
    timeline = {"as": "timeline", "file": "timelines/fig1.parquet", "average": "average"}
    logarithmic = {"as": "curves", "x_scale": "log", "x_ticks": [1, 2, 4, 8, 16]}

    def figure(id_, title, rows, x, y, draw, label=""):
        axes = {"x": x, "y": y}
        return Exhibit(id_, "figure", title, tuple(rows), axes=axes, draw=draw, paper_label=label)

    def table(id_, title, rows, label):
        return Exhibit(id_, "table", title, tuple(rows), paper_label=label)

    return (
        Exhibit(
            "p1.fig1", "figure",
            "Framework of asynchronous ASGD, drawn from a simulated timeline of 4 workers",
            draw=timeline, paper_label="Figure 1",
            note="Each arrow runs from a read to the fold it ends in; the number is its staleness.",
        ),
        figure(
            "p1.fig2", "Frame error against epochs for three learning rate schedules",
            curve_rows(hashes), "epochs through the subset", "frame error (%)", {"as": "curves"},
            "Figure 2",
        ),
        table("p1.table1", "Error rate (%) by chunk size", chunk, "Table 1"),
        table(
            "p1.table2", "Error rate (%) on two test sets", table_rows(hashes, bad=True), "Table 2"
        ),
        figure(
            "p2.fig2", "Speed-up against workers", speed, "workers", "speed-up (×)", logarithmic,
            "Figure 2",
        ),
        figure(
            "p1.staleness", "Staleness of 4 workers", shares, "staleness (folds)", "contributions",
            {"as": "curves"},
        ),
    )  # fmt: skip


def claims(hashes):
    runs = tuple(hashes["Search", seed] for seed in SEEDS)
    below = paired_difference_ci([29.1, 29.2], [31.3, 31.5])
    close = mean_ci([1.02, 1.09])
    return (
        Claim(
            "p1.search-best", "The search schedule ends with the lowest frame error.",
            "Section 4.1, Figure 2",
            "final frame error, search minus the better of hand and adapt, below 0", "holds",
            below.estimate, below.ci95, BELOW.judge(below), runs=runs,
        ),
        Claim(
            "p1.one-pass-close", "One pass of averaged SGD comes close to many passes of SGD.",
            "Section 4.3, Table 2", "error rate, one pass over many; band at most 1.08",
            None, None, None, "unclear", runs=runs,
            parts=(
                Part("clean", 1.034, close.estimate, close.ci95, "unclear"),
                Part("noise", 1.044, 1.03, (1.01, 1.05), "holds"),
            ),
        ),
        Claim(
            "p1.speedup-4", "Four workers are 3.2 times as fast as one.", "Section 1",
            "simulated throughput, 4 workers over 1; within 10%", 3.2, 3.9, (3.9, 3.9),
            rule_near(3.2).judge(Interval.exact(3.9)), runs=runs,
            note="No chance enters this simulation, so the interval has no width.",
        ),
        claim_of(
            "p1.first-epoch", "After the first epoch the averaged model is better.", "Figure 3",
            "development frame error (%) at epoch 1, difference; below 0",
            [Quantity(f"{name}, ASGD − SGD", -1.5, below, BELOW, -1.5) for name in ("dev", "test")],
            runs, "A sentence for the reader.",
            presumes=[Precondition(LONG, Interval.exact(64), Rule(low=300))],
            cannot_fail="it is an identity.",
        ),
        Claim(
            "p1.switch", "The running average gives way to the full average.", "Section 2.3",
            "share of runs in which it happened", "method", 1.0, None, "unclear",
            runs=(hashes["bad"],),
        ),
    )  # fmt: skip


def make_out(out, scale="laptop"):
    """Everything a reproduction writes before the report is built."""
    hashes = fill_store(Store(out / "runs"))
    (out / "timelines").mkdir()
    save_timeline(serial_server(), out / "timelines" / "fig1.parquet")
    provenance = {
        "git": "0123abc",
        "versions": {"lagbench": "0.1.0", "torch": "2.13.0", "numpy": "2.1.0"},
        "device": "cpu, 2 cores", "wall_s": 251.3, "started": "2025-01-01T00:00:00+00:00",
        "command": f"tox -e reproduce-paper1 -- --scale {scale} --corpus fsdd",
        "cluster": "k20m-server.toml",
        "reference": {"title": TITLE, "authors": "A. Author, B. Author"},
        "differences": [
            {"what": "hidden layers", "paper": "7 × 2048", "here": "3 × 128"},
            {"what": "training speech", "paper": "500 h Mandarin", "here": "18 min digits"},
        ],
    }  # fmt: skip
    results = Results("paper1", scale, "fsdd", SEEDS, provenance, exhibits(hashes), claims(hashes))
    write_results(out / "results.json", results)
    return out


@pytest.fixture
def out(tmp_path):
    return make_out(tmp_path)


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """An output folder with its report built once; tests only read it."""
    from reports import build

    folder = make_out(tmp_path_factory.mktemp("built") / "out")
    build(folder)
    return folder


@pytest.fixture
def make():
    return make_out
