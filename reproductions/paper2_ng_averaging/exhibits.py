"""Paper 2's figures, and the prediction in numbers, from finished timing runs."""

from __future__ import annotations

from collections.abc import Sequence

from harness.judge.makers import Maker, Runs
from harness.judge.results import Exhibit, Row
from harness.judge.statistics import Interval, mean_ci, ratio_ci
from harness.store import Run
from reproductions.paper import Subject
from reproductions.paper2_ng_averaging.experiments import GPUS, gpus
from reproductions.paper2_ng_averaging.prediction import FITTED_UP_TO, REPORTED, fitted
from reproductions.readings import hashes, of_summary

PRINTED = {16: REPORTED["claims"]["speedup_16"], 32: REPORTED["claims"]["speedup_32"]}
ALL = tuple(f"timing_{n}" for n in GPUS)


def fig1(subject: Subject, runs: Runs) -> Exhibit:
    """All-reduce among four workers, drawn from its simulated messages."""
    del subject
    run = runs["all_reduce"][0]
    sent = run.metrics["name"] == "message"
    names = ("source", "target", "time_s", "arrived_s", "value", "adds")
    messages = [
        {
            "from": int(source),
            "to": int(target),
            "sent_s": sent_s,
            "arrived_s": arrived_s,
            "part": _part(size_bytes / run.config["size_bytes"]),
            "adds": bool(adds),
        }
        for source, target, sent_s, arrived_s, size_bytes, adds in zip(
            *(run.metrics[name][sent].tolist() for name in names), strict=True
        )
    ]
    return Exhibit(
        "p2.fig1",
        "figure",
        "All-reduce among four workers: the simulated messages, with their share of the model",
        axes={"x": "time since the all-reduce began (ms)"},
        draw={"as": "messages", "workers": run.config["workers"], "messages": messages},
        paper_label="Figure 1",
        note="Rabenseifner's algorithm on the fitted cluster: halves and quarters are summed in "
        "pairs, then gathered. The paper's drawing survives only as text.",
    )


def _part(share: float) -> str:
    return {0.5: "½", 0.25: "¼"}.get(share, f"{share:.3g}")


def fig2(subject: Subject, runs: Runs) -> Exhibit:
    """Speed-up and scaling factor against GPUs."""
    rows: list[Row] = []
    for n in GPUS:
        ratio = speedup(runs["timing_1"], runs[f"timing_{n}"])
        behind = hashes(runs["timing_1"], runs[f"timing_{n}"])
        rows.append(Row.of("speed-up", n, PRINTED.get(n), ratio, behind))
        low, high = ratio.ci95
        share = (low / n, high / n)
        rows.append(Row("scaling factor", n, None, ratio.estimate / n, share, behind))
    return Exhibit(
        "p2.fig2",
        "figure",
        "Speed-up and scaling factor of model averaging, predicted from 1, 2 and 4 GPUs",
        tuple(rows),
        axes={"x": "GPUs", "y": "speed-up; scaling factor"},
        draw={
            "as": "curves",
            "x_scale": "log",
            "y_scale": "log",
            "x_ticks": list(GPUS),
            "y_ticks": [0.5, 1, 2, 4, 8, 16],
        },
        paper_label="Figure 2",
        note="The free figures of the simulated cluster are fitted to the authors' timings on 1, "
        "2 and 4 GPUs; 8, 16 and 32 are predicted. The paper's curve survives only as text.",
    )


def prediction(subject: Subject, runs: Runs) -> Exhibit:
    """Minutes an epoch and speed-up beside the authors' timings."""
    timings = REPORTED["timings"]
    minutes = dict(zip(timings["gpus"], timings["total_min"], strict=True))
    rows: list[Row] = []
    for n in GPUS:
        label = f"{gpus(n)}, {'fitted' if n <= FITTED_UP_TO else 'predicted'}"
        rows += _timing_rows(label, runs["timing_1"], runs[f"timing_{n}"], minutes[n], minutes[1])
    once = REPORTED["claims"]["speedup_16_every_20"]
    for label, one, many in (
        ("16 GPUs, every 20, predicted", "timing_1", "timing_16_every_20"),
        ("the same, excess per average", "other_1", "other_16_every_20"),
    ):
        ratio = speedup(runs[one], runs[many])
        behind = hashes(runs[one], runs[many])
        rows.append(Row.of(label, "speed-up", once, ratio, behind))
    free = ", ".join(f"{name} {value:.4g}" for name, value in fitted().free.items())
    return Exhibit(
        "p2.prediction",
        "table",
        "Minutes an epoch and speed-up, beside the authors' own timings",
        tuple(rows),
        paper_label="Authors' timings",
        note=f"Fitted: {free}; largest relative error {fitted().largest_error:.2%}. Timings on "
        "2 and 4 GPUs outside MPI exceed the work of one; they do not say whether the excess "
        "belongs to each minibatch (judged) or to each average (last row).",
    )


def speedup(one: Sequence[Run], many: Sequence[Run]) -> Interval:
    """Epoch time of one GPU over that of many, for each seed."""
    return ratio_ci(_seconds(one), _seconds(many))


def _timing_rows(
    label: str, one: Sequence[Run], many: Sequence[Run], minutes: float, alone: float
) -> list[Row]:
    took = mean_ci([seconds / 60.0 for seconds in _seconds(many)])
    ratio = speedup(one, many)
    return [
        Row.of(label, "minutes", minutes, took, hashes(many)),
        Row(
            label, "speed-up", round(alone / minutes, 2), ratio.estimate, ratio.ci95,
            hashes(one, many),
        ),
    ]  # fmt: skip


def _seconds(runs: Sequence[Run]) -> list[float]:
    return [of_summary(run, "virtual_s") for run in runs]


FIGURES = (Maker("p2.fig1", ("all_reduce",), fig1), Maker("p2.fig2", ALL, fig2))
PREDICTION = (
    Maker(
        "p2.prediction",
        (*ALL, "timing_16_every_20", "other_1", "other_16_every_20"),
        prediction,
    ),
)
