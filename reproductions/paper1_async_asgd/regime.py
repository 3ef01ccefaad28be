"""``p1.regime``: one pass over many, against updates a pass and frames a parameter.

A cell is a width of the network, hours of speech and a minibatch, registered with the scale whose
settings it takes: those of ``laptop`` were tuned at 2.8 frames a parameter, those of ``overnight``
at 65. A chunk of the search has as many minibatches as the paper's 1 h where the cell says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

from harness.experiment.experiment import Experiment
from harness.judge.results import Exhibit, Row
from harness.judge.scaling import LEAST_SEEDS
from harness.judge.statistics import ratio_ci
from harness.judge.utterances import seed_rates
from harness.speech.task import Frames
from harness.store import Run
from reproductions.paper import Arms, Finished, Scaling, SizePlan, Subject
from reproductions.paper1_async_asgd.exhibits import FALLING
from reproductions.paper1_async_asgd.experiments import FOLDER, PRESETS, REPORTED, methods
from reproductions.run_metrics import errors_of_utterances, hashes, lengths_of_utterances

TESTS = ("clean", "noise")


def configs(subject: Subject, seed: int, size: SizePlan) -> Mapping[str, Experiment[Frames]]:
    """One pass of *hand* and of *search*, and many, in a cell."""
    cell = size.settings
    preset = replace(
        PRESETS["overnight"],
        hidden=(cell["width"],) * 3,
        minibatch=cell["minibatch"],
        chunk=1 / cell["chunks"],
        chosen=PRESETS[cell["settings"]].chosen,
    )
    runs = methods(subject, seed, preset)
    one_pass = {name: runs[name].vary(passes=cell["passes"]) for name in FALLING}
    return {**one_pass, "multi_pass": runs["multi_pass"]}


def error_rate(run: Run, model: str, test: str) -> float:
    """Character error rate of a model on a test set: after one pass, of many passes at the end."""
    stage = run.summary["passes"] - 1 if model == "last" else 0
    errors = errors_of_utterances([run], f"{test}/{model.replace('last', 'iterate')}/{stage}")
    return float(seed_rates(errors, lengths_of_utterances([run], test))[0])


def _row(label: str, size: SizePlan, cell: list[Arms], test: str) -> Row:
    """Error of search's average over that of many passes, of the seeds of one cell."""
    over, under = (
        [error_rate(arms[name], model, test) for arms in cell]
        for name, model in (("search", "average"), ("multi_pass", "last"))
    )
    behind = hashes(*([arms["search"], arms["multi_pass"]] for arms in cell))
    row = Row.from_interval(label, size.at, None, ratio_ci(over, under), behind)
    return replace(row, ci95=None) if len(cell) < LEAST_SEEDS else row


def _cells(finished: Finished) -> Iterator[tuple[SizePlan, list[Arms]]]:
    """Registered cells with the arms of their finished seeds, where no run diverged."""
    for size in SCALING.sizes:
        cell = [finished[size.at, seed] for seed in size.seeds if (size.at, seed) in finished]
        if cell and all(run.status == "done" for arms in cell for run in arms.values()):
            yield size, cell


def regime(finished: Finished) -> Exhibit:
    """The map: a series for each number of frames a parameter, over updates a pass."""
    label, rows = "{:g} frames a parameter, {}", list[Row]()
    for test, (size, cell) in product(TESTS, _cells(finished)):
        series = label.format(size.settings["frames_a_parameter"], test)
        rows.append(_row(series, size, cell, test))
    for test in TESTS:
        series = label.format(SCALING.entries["paper_frames_a_parameter"], test)
        printed = REPORTED["claims"][f"one_pass_ratio_{test}"]
        rows.append(Row(series, SCALING.entries["paper"], printed))
    return Exhibit(
        SCALING.id,
        "figure",
        SCALING.title,
        tuple(rows),
        axes={"x": "updates a pass", "y": "one pass over many"},
        draw={"as": "curves", "x_scale": "log", "x_ticks": [10_000, 100_000, 1_000_000]},
        paper_label="Beyond the paper",
        note="Character error of the averaged model of ASGD-search after one pass over that of "
        "multi-pass SGD. Networks are 64, 128 and 256 units wide; minibatches have 2, 8 or 32 "
        f"frames. Cells of fewer than {LEAST_SEEDS} seeds have no interval.",
    )


SCALING = Scaling(
    id="p1.regime",
    title="One pass of asynchronous ASGD over multi-pass SGD, by updates a pass and frames a "
    "parameter",
    registered=FOLDER / "registered.toml",
    configs=configs,
    ratios={},
    rate=error_rate,
    further={"p1.regime": regime},
)
