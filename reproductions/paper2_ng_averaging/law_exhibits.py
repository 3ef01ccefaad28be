"""The law of averages as exhibits: what it was fitted to, what it foretold, what was measured."""

from __future__ import annotations

from collections.abc import Sequence

from harness.judge.makers import NO_ROWS, Maker, Runs, unless_missing
from harness.judge.results import Exhibit, Row
from harness.judge.statistics import Interval
from reproductions.paper import Subject
from reproductions.paper2_ng_averaging.averages import WHOLE, Excess, cells_of, needed, place
from reproductions.paper2_ng_averaging.cells import SERIAL, SHARES, SIZES, STEPS, cell, serial
from reproductions.paper2_ng_averaging.experiments import BEYOND, gpus
from reproductions.paper2_ng_averaging.law import LIMITS
from reproductions.readings import hashes

NOTHING = 1e-6
NAMES = {"mean": "averaging", "bmuf": "block momentum", "outer": "outer Nesterov"}
HELD_OUT = {
    "mean": {n: f"ng_{n}" for n in (8, 16, 32, BEYOND)},
    "bmuf": {16: "bmuf"},
    "outer": {16: "outer"},
}
"""On the whole data, which no cell has."""
CONSTANTS = {
    "size": "A, at 16 workers and 100 averages",
    "by_workers": "w, power of workers",
    "by_averages": "a, power of averages",
}
FORETOLD, MEASURED, APART = "foretold", "measured", "measured − foretold"
ON_HALF = "measured on half the data"
PAYS = cell("mean", SIZES[1], "half")
"""Overnight, half as many workers as the most on half the data: as many averages, the same time."""


def law(subject: Subject, runs: Runs) -> Exhibit:
    """Excess errors of plain averaging against averages: cells, and the law through them."""
    return _figure("p2.law", subject, runs, ("mean",))


def momenta(subject: Subject, runs: Runs) -> Exhibit:
    """The same with a momentum on the server."""
    return _figure("p2.law-momenta", subject, runs, ("bmuf", "outer"))


def _figure(id_: str, subject: Subject, runs: Runs, steps: Sequence[str]) -> Exhibit:
    rows = [row for step in steps for row in _curves(Excess(subject, runs, step))]
    drawn = any(_whole(Excess(subject, runs, step)) for step in steps)
    held_out = "A fourth point" if drawn else "What p2.law-checked shows"
    return Exhibit(
        id_,
        "figure",
        "Word error over that of one GPU on the same data, against the number of averages: "
        f"{' and '.join(NAMES[step] for step in steps)}",
        tuple(rows),
        axes={"x": "averages in a run", "y": "error over that of one GPU"},
        draw={"as": "curves", "x_scale": "log", "x_ticks": _ticks(rows)},
        paper_label="Beyond the paper",
        note="The law is 1 + A (GPUs/16)^w (averages/100)^−a, fitted to an eighth, a quarter and "
        f"half of the data. {held_out}, on the whole data, was held out. Every cell has the rate "
        f"found on a quarter of the data. Whole rounds only: {_left_out(runs, steps)}.",
    )


@unless_missing("how many frames that leaves out is not known")
def _left_out(runs: Runs, steps: Sequence[str]) -> str:
    """The frames that one worker sees and many do not, as their rounds do not share them out."""
    names = [names for step in steps for names in cells_of(step).items()]
    shares = dict[str, float]()
    for name, alone in names:
        workers, rounds = place(runs[name])
        share = 1.0 - workers * rounds / place(runs[alone])[1]
        shares[f"{gpus(workers)} on {SHARES[alone.removeprefix(f'{SERIAL}_')]:.3g}"] = share
    most = max(shares, key=lambda label: shares[label])
    return f"{most} of the data leave out {shares[most]:.0%} of the frames that one sees, the most"


def _whole(excess: Excess) -> list[str]:
    """The settings on the whole data with as many workers as a cell."""
    drawn = {excess.runs[name][0].config["workers"] for name in cells_of(excess.step)}
    return [name for n, name in HELD_OUT[excess.step].items() if n in drawn]


def _ticks(rows: Sequence[Row]) -> list[float]:
    """1, 2 and 5 of every power of ten among the rows' columns."""
    columns = [float(row.column) for row in rows] or [1.0]
    ticks = (m * 10.0**power for power in range(7) for m in (1, 2, 5))
    return [tick for tick in ticks if min(columns) <= tick <= max(columns)]


def checked(subject: Subject, runs: Runs) -> Exhibit:
    """What the law foretold of cells that it was not fitted to, and its constants."""
    rows: list[Row] = []
    for step, names in HELD_OUT.items():
        excess = Excess(subject, runs, step)
        for n, name in names.items():
            label = f"{NAMES[step]}, {gpus(n)}"
            behind = hashes(runs[name], *(runs[each] for each in needed(step)))
            rows += _compared(label, excess.foretold_of(name), excess.measured(name), behind)
            rows += _on_half(label, excess, name)
    return Exhibit(
        "p2.law-checked",
        "table",
        "Error over that of one GPU on the whole data: foretold by the law, and measured",
        (*rows, *_whether_more_pay(subject, runs)),
        paper_label="Beyond the paper",
        note=f"Who knows no law carries over what was {ON_HALF}. {_constants_told(subject, runs)}",
    )


def _on_half(label: str, excess: Excess, name: str) -> list[Row]:
    """What as many workers lose on half the data, if a cell has them: a law has to be nearer."""
    runs, alone = excess.runs, serial("half")
    on_half = [each for each, one in cells_of(excess.step).items() if one == alone]
    workers = {each: runs[each][0].config["workers"] for each in (name, *on_half)}
    return [
        Row.of(label, ON_HALF, None, excess.measured(each, alone), hashes(runs[each], runs[alone]))
        for each in on_half
        if workers[each] == workers[name]
    ]


def _curves(excess: Excess) -> list[Row]:
    """Measured points and the law's, for each number of workers that has cells."""
    named = {**cells_of(excess.step), **dict.fromkeys(_whole(excess), WHOLE)}
    return [row for name, alone in named.items() for row in _points(excess, name, alone)]


@unless_missing(NO_ROWS)
def _points(excess: Excess, name: str, alone: str) -> tuple[Row, ...]:
    """A setting as it was measured, and by the law."""
    workers, after = place(excess.runs[name])
    label, behind = f"{NAMES[excess.step]}, {gpus(workers)}", hashes(excess.runs[name])
    return (
        Row.of(label, after, None, excess.measured(name, alone), behind),
        Row.of(f"law, {label}", after, None, excess.foretold(workers, after), behind),
    )


def _whether_more_pay(subject: Subject, runs: Runs) -> list[Row]:
    """The most workers on the whole data, against fewer on half of it."""
    excess, name = Excess(subject, runs, "mean"), f"ng_{BEYOND}"
    few, many = (gpus(runs[each][0].config["workers"]) for each in (PAYS, name))
    behind = hashes(runs[name], runs[PAYS])
    foretold, measured = excess.over(name, PAYS, SHARES["half"]), excess.measured(name, PAYS)
    rows = _compared(f"{many} on the whole data over {few} on half", foretold, measured, behind)
    most = Row.of(
        f"most GPUs that pay in the time of {many} on the whole data", FORETOLD, None,
        excess.most_that_pay(name), behind,
    )  # fmt: skip
    return [*rows, most]


def _compared(
    label: str, foretold: Interval, measured: Interval, behind: tuple[str, ...]
) -> list[Row]:
    apart = measured.estimate - foretold.estimate
    return [
        Row.of(label, FORETOLD, None, foretold, behind),
        Row.of(label, MEASURED, None, measured, behind),
        Row(label, APART, None, apart, None, behind),
    ]


def _constants_told(subject: Subject, runs: Runs) -> str:
    """The constants of every law, with their intervals."""
    told: list[str] = []
    for step, name in NAMES.items():
        found = Excess(subject, runs, step).constants()
        each = (f"{CONSTANTS[k]}: {_constant_told(k, i)}" for k, i in found.items())
        told.append(f"{name}: {'; '.join(each)}")
    return f"Constants with 95% intervals over seeds. {'. '.join(told)}."


def _constant_told(name: str, found: Interval) -> str:
    """With its interval; one that no seed moved off a limit of the fit has none to tell."""
    ends = {limit for limits in LIMITS for limit in limits} if name != "size" else set[float]()
    for end in ends:
        if max(abs(found.low - end), abs(found.high - end)) < NOTHING:
            return f"{end:g}, where the fit may go no further"
    return f"{found.estimate:.2g} ({found.low:.2g} to {found.high:.2g})"


def _needed(*steps: str) -> tuple[str, ...]:
    """The settings behind what is shown of these outer steps, each once."""
    every = [name for step in steps for name in (*needed(step), *HELD_OUT[step].values())]
    return tuple(dict.fromkeys(every))


LAW = (
    Maker("p2.law", _needed("mean"), law, smoke=False),
    Maker("p2.law-momenta", _needed("bmuf", "outer"), momenta, smoke=False),
    Maker("p2.law-checked", _needed(*STEPS), checked, smoke=False),
)
