"""Each claim of paper 3 on runs made by hand, where the right answer is known."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from harness.store import Run, Store
from harness.store.schema import WORD_ERRORS, Outcome
from reproductions.paper3_async_mmi import PAPER, beyond, claims, exhibits, quantities, staleness
from reproductions.paper3_async_mmi.presets import INTERVALS, PRESETS, RATES
from tests.reproductions.book import decided

experiments = import_module("reproductions.paper3_async_mmi.experiments")
UTTERANCES = 600
SUBJECT: Any = SimpleNamespace(
    scale="laptop",
    corpus=SimpleNamespace(
        name="voice-search-small",
        tests=("test",),
        split=lambda _: range(9),
        frames_of=lambda split: 190_000,
    ),
    device="cpu",
)
PRESET = PRESETS["laptop"]


class Book:
    """Writes runs that never trained."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store, self.count = folder, Store(folder / "runs"), 0

    def run(
        self,
        error: float | None = None,
        criterion: tuple[float, ...] = (),
        summary: dict[str, float] | None = None,
        status: Outcome = "done",
        pass_s: float = 1000.0,
        **metrics: float,
    ) -> Run:
        """A run of one pass.

        Args:
            error: share of the one-word test utterances that are wrong.
            criterion: its readings, evenly spaced over the pass.
            summary: its summary.
            status: how it ended.
            pass_s: simulated seconds of the pass.
            metrics: further metrics, read at the end.
        """
        self.count += 1
        config = {"number": self.count, "passes": 1, "slots": 8, "fetch_s": 60.0, "seed": 0}
        with self.store.begin(config) as writer:
            for i, value in enumerate(criterion):
                at = i / max(1, len(criterion) - 1)
                writer.log(quantities.CRITERION, value, fold=i, time_s=pass_s * at, epoch=at)
            for name, value in metrics.items():
                writer.log(name.replace("__", "/"), value, fold=9, time_s=pass_s, epoch=1.0)
            if error is not None:
                wrong = np.roll(np.arange(UTTERANCES) < error * UTTERANCES, self.count)
                arrays = {
                    "test/iterate/1": wrong.astype(np.int64),
                    "test/lengths": np.ones(UTTERANCES, np.int64),
                }
                save_file(arrays, path := self.folder / "errors")
                writer.attach(WORD_ERRORS, path)
            writer.finish(
                status, {"folds": 100, "epochs": 1.0, "virtual_s": pass_s, **(summary or {})}
            )
        return self.store.load(writer.hash)

    def three(self, **choices: Any) -> list[Run]:
        """Three seeds that agree, but for a hair."""
        return [self.run(**choices) for _ in range(3)]


@pytest.fixture
def book(tmp_path) -> Book:
    return Book(tmp_path)


def spread(values, seed):
    """Values a little different for each seed."""
    return tuple(v + 1e-5 * seed * i for i, v in enumerate(values))


def test_mmi_gain_needs_a_lower_error_on_both_tasks(book):
    better = {"ce": book.three(error=0.4), "ten": book.three(error=0.2)}
    large = {"large ce": book.three(error=0.4), "large": book.three(error=0.2)}
    found = claims.mmi_gain(SUBJECT, {**better, **large})
    assert decided(found) == "reproduced"
    assert [part.measured for part in found.parts] == pytest.approx([0.5, 0.5])
    worse = {"large ce": book.three(error=0.2), "large": book.three(error=0.4)}
    assert decided(claims.mmi_gain(SUBJECT, {**better, **worse})) == "contradicted"


def test_opposing_wants_words_to_fall_and_frames_to_rise(book):
    name = "test_frame_error__iterate"
    ce = [book.run(0.4, **{name: 0.5 + 0.001 * s}) for s in range(3)]
    up = [book.run(0.2, **{name: 0.55 + 0.0012 * s}) for s in range(3)]
    down = [book.run(0.2, **{name: 0.45 + 0.0012 * s}) for s in range(3)]
    found = claims.opposing(SUBJECT, {"ce": ce, "ten": up})
    assert decided(found) == "reproduced"
    assert found.measured == pytest.approx(5.0, abs=0.1)
    assert decided(claims.opposing(SUBJECT, {"ce": ce, "ten": down})) == "contradicted"


def test_not_realignment_is_contradicted_by_a_change_in_either_direction(book):
    ce = book.three(error=0.4)
    for error in (0.2, 0.6):
        runs = {"ce": ce, "aligned once": ce, "realigned": book.three(error=error)}
        assert decided(claims.not_realignment(SUBJECT, runs)) == "contradicted"
    same = {"ce": ce, "aligned once": ce, "realigned": ce}
    assert decided(claims.not_realignment(SUBJECT, same)) == "reproduced"


def test_shuffle_order_wants_unshuffled_worse_and_the_others_alike(book):
    ten, bad = book.three(error=0.2), book.three(error=0.4)
    good = {"unshuffled": bad, "ten": ten, "full": ten}
    assert decided(claims.shuffle_order(SUBJECT, good)) == "reproduced"
    assert decided(claims.shuffle_order(SUBJECT, {**good, "full": bad})) == "contradicted"


def test_replicas_are_timed_to_a_gain_that_all_of_them_reach(book):
    def group(pass_s, gained):
        return [book.run(criterion=(-2.0, -2.0 + gained), pass_s=pass_s + s) for s in range(3)]

    runs = {"one": group(9000, 1.0), "ten": group(1000, 0.5), "fifty": group(200, 2.0)}
    found = claims.replicas_faster(SUBJECT, runs)
    assert decided(found) == "reproduced"
    expected = [math.log(900 / 4050), math.log(45 / 900)]
    assert [part.measured for part in found.parts] == pytest.approx(expected, abs=0.01)
    slow = {**runs, "fifty": group(9000, 0.5)}
    assert decided(claims.replicas_faster(SUBJECT, slow)) == "contradicted"


def test_where_nothing_is_gained_no_time_is_reached(book):
    runs = {n: book.three(criterion=(-2.0, -3.0)) for n in ("one", "ten", "fifty")}
    assert decided(claims.replicas_faster(SUBJECT, runs)) == "undecided"


def test_replicas_are_as_good_within_two_percent(book):
    one = book.three(error=0.3)
    runs = {"one": one, "ten": one, "fifty": book.three(error=0.5)}
    assert decided(claims.replicas_as_good(SUBJECT, runs)) == "contradicted"
    assert decided(claims.replicas_as_good(SUBJECT, {**runs, "fifty": one})) == "reproduced"


@pytest.mark.parametrize(
    ("lag_s", "updates", "verdict"),
    [(60.0, 500.0, "reproduced"), (11.0, 500.0, "contradicted"), (60.0, 1200.0, "contradicted")],
)
def test_staleness_is_judged_in_seconds_and_in_updates(book, lag_s, updates, verdict):
    summary = {"outer_lag_s_mean": lag_s, "outer_staleness_mean": updates}
    runs = {"timing 50": book.three(summary=summary)}
    assert decided(staleness.staleness_50(SUBJECT, runs)) == verdict


def mapped(book, stable):
    """A stability map: for 1 and 50 replicas, how many rates are stable on each of three seeds."""
    return {
        experiments.map_name(n, i): [
            book.run(criterion=(-2.0, -1.0), status="done" if i < count else "diverged")
            for count in counts
        ]
        for n, counts in stable.items()
        for i in range(RATES)
    }


@pytest.mark.parametrize(
    ("one", "fifty", "verdict"),
    [
        ((3, 3, 3), (1, 1, 1), "reproduced"),
        ((1, 1, 1), (3, 3, 3), "contradicted"),
        ((2, 2, 2), (2, 2, 2), "undecided"),
        # A rate is known up to a step of the map: neighbours may be one and the same.
        ((2, 2, 2), (1, 1, 1), "undecided"),
        # Beyond the map's ends everything is possible.
        ((4, 4, 4), (2, 2, 2), "reproduced"),
        ((2, 2, 2), (0, 0, 0), "reproduced"),
        ((0, 0, 0), (2, 2, 2), "contradicted"),
        ((4, 3, 4), (2, 0, 1), "reproduced"),
        ((4, 1, 4), (2, 2, 1), "undecided"),
        ((4, 4, 4), (4, 4, 4), "undecided"),
        ((0, 0, 0), (0, 0, 0), "undecided"),
    ],
)
def test_async_rate_compares_what_the_largest_stable_rates_lie_between(book, one, fifty, verdict):
    found = staleness.async_rate(SUBJECT, mapped(book, {1: one, 50: fifty}))
    assert decided(found) == verdict


def test_a_rate_that_is_stable_above_one_that_is_not_does_not_count(book):
    runs = mapped(book, {1: (1, 1, 1), 50: (1, 1, 1)})
    runs[experiments.map_name(1, 2)] = book.three(criterion=(-2.0, -1.0))
    one = {name: group[0] for name, group in runs.items()}
    assert quantities.largest_stable(SUBJECT, one, 1) == (PRESET.rates[0], PRESET.rates[1])


def test_the_middle_of_both_brackets_is_the_estimate(book):
    found = staleness.async_rate(SUBJECT, mapped(book, {1: (3, 3, 3), 50: (1, 1, 1)}))
    middles = [math.sqrt(PRESET.rates[i] * PRESET.rates[i + 1]) for i in (2, 0)]
    assert found.measured == pytest.approx(math.log2(middles[0] / middles[1]))
    assert "0.00045 to 0.0007, 0.00045 to 0.0007" in found.note


def swept(book, sweep, losses, spreads=0.02):
    """A fetch sweep in which each interval loses this share of the gain of 1, or of about 1."""
    gained = [1.0, *(1.0 - loss for loss in losses)]
    return {
        experiments.fetch_name(sweep, i): [
            book.run(criterion=(-2.0, -2.0 + g * (1 + spreads * (s - 1) * (-1 if i else 1))))
            for s in range(3)
        ]
        for i, g in enumerate(gained)
    }


def test_fetch_tolerance_wants_nothing_lost_at_first_and_something_at_last(book):
    holds = staleness.fetch_tolerance(SUBJECT, swept(book, "last", (-0.1, 0.0, 0.2, 0.5)))
    assert decided(holds) == "reproduced"
    assert "T* in updates: about" in holds.note
    never = staleness.fetch_tolerance(SUBJECT, swept(book, "last", (-0.1,) * INTERVALS))
    assert decided(never) == "contradicted"
    at_once = staleness.fetch_tolerance(SUBJECT, swept(book, "last", (0.5, 0.6, 0.7, 0.8)))
    assert decided(at_once) == "contradicted"


def test_losses_that_vary_as_much_as_they_are_leave_it_open(book):
    found = staleness.fetch_tolerance(
        SUBJECT, swept(book, "last", (0.0, 0.1, 0.2, 0.3), spreads=0.5)
    )
    assert decided(found) == "undecided"


def test_a_fetch_interval_that_diverges_or_ends_below_its_start_loses_everything(book):
    last = experiments.fetch_name("last", INTERVALS)
    for status, end in (("diverged", -9.0), ("done", -2.5)):
        runs = swept(book, "last", (-0.1,) * INTERVALS)
        runs[last] = book.three(criterion=(-2.0, end), status=status)
        assert quantities.fetch_losses(SUBJECT, runs, "last")[-1].ci95 == (1.0, 1.0)
        assert decided(staleness.fetch_tolerance(SUBJECT, runs)) == "reproduced"


def test_no_share_is_lost_of_a_gain_that_is_not_there(book):
    runs = swept(book, "last", (0.0, 0.1, 0.5, 0.9))
    runs[experiments.fetch_name("last", 0)] = book.three(criterion=(-2.0, -3.0))
    assert decided(staleness.fetch_tolerance(SUBJECT, runs)) == "undecided"
    assert quantities.tolerated(SUBJECT, runs, "last").ci95 == (0.0, math.inf)


def test_t_star_lies_between_what_surely_costs_nothing_and_what_surely_costs(book):
    a, b, c, d = PRESET.fetch
    star = quantities.tolerated(SUBJECT, swept(book, "last", (-0.2, 0.0, 0.1, 0.5)), "last")
    # 0 ± 0.1 and 0.1 ± 0.1 are neither; the loss crosses 5% half way between them.
    assert star.ci95 == (a, d)
    assert star.estimate == pytest.approx(math.sqrt(b * c), rel=0.01)
    dear_at_once = swept(book, "last", (0.06, 0.0, 0.1, 0.5))
    assert math.isnan(quantities.tolerated(SUBJECT, dear_at_once, "last").estimate)


@pytest.mark.parametrize(
    ("losses", "bounds"),
    [
        ((0.2, 0.3, 0.5, 0.9), (0.0, PRESET.fetch[0])),
        ((-0.1,) * 4, (PRESET.fetch[-1], math.inf)),
        ((0.5, 0.4, -0.2, -0.2), (0.0, math.inf)),
        ((-0.2, 0.4, -0.2, 0.5), (0.0, math.inf)),
    ],
)
def test_t_star_outside_the_sweep_or_of_a_loss_that_wanders_is_not_known(book, losses, bounds):
    star = quantities.tolerated(SUBJECT, swept(book, "last", losses), "last")
    assert star.ci95 == bounds


@pytest.mark.parametrize(
    ("last", "other", "verdict"),
    [
        # T* below the sweep's beginning over T* above a later interval: less than 0.3.
        ((-0.2, -0.2, 0.5, 0.9), (0.3, 0.5, 0.6, 0.9), "undecided"),
        ((-0.2, -0.2, -0.2, 0.9), (0.3, 0.5, 0.6, 0.9), "contradicted"),
        ((-0.2, -0.2, 0.5, 0.9), (-0.2, -0.2, 0.5, 0.9), "undecided"),
    ],
)
def test_all_layers_are_compared_by_the_ratio_of_their_intervals(book, last, other, verdict):
    runs = {**swept(book, "last", last), **swept(book, "all", other)}
    found = staleness.fetch_all_layers(SUBJECT, runs)
    assert decided(found) == verdict
    if last == other:
        a, b = PRESET.fetch[1:3]
        assert found.ci95 == pytest.approx((a / b, b / a))
        assert found.measured == 1.0


def test_no_silence_must_stretch_the_interval(book):
    last = swept(book, "last", (0.4, 0.5, 0.5, 0.9))
    longer = {**last, **swept(book, "no silence", (-0.2, -0.2, -0.2, 0.5))}
    assert decided(staleness.fetch_no_silence(SUBJECT, longer)) == "contradicted"  # too much so
    known = {**last, **swept(book, "no silence", (-0.2, 0.5, 0.5, 0.5))}
    assert decided(staleness.fetch_no_silence(SUBJECT, known)) == "undecided"


@pytest.mark.parametrize(("share", "verdict"), [(0.85, "reproduced"), (0.6, "contradicted")])
def test_cancel_is_judged_within_ten_percent(book, share, verdict):
    summary = {"cancelled_frames": share, "kept_frames": 0.1, "rejected_frames": 0.0}
    assert decided(claims.cancel(SUBJECT, {"ten": book.three(summary=summary)})) == verdict


def test_step_cost_is_judged_without_the_network(book):
    speed = {"step mmi alone": 1.0, "step ce alone": 2.0, "step mmi": 1.0, "step ce": 1.0}
    runs = {n: book.three(summary={"throughput_per_s": s}) for n, s in speed.items()}
    found = claims.step_cost(SUBJECT, runs)
    assert (found.measured, decided(found)) == (2.0, "reproduced")
    assert found.parts[1].verdict is None


def test_all_layers_must_be_better_in_criterion_and_alike_in_words(book):
    def group(value, error):
        return [book.run(error, criterion=spread((-2.0, value), s)) for s in range(3)]

    ten, last = group(-1.0, 0.3), group(-1.5, 0.3)
    better = {"ten": ten, "last": [book.run(0.3, criterion=(-2.0, -1.5))] * 3}
    assert claims.all_layers(SUBJECT, better).parts[0].verdict == "reproduced"
    assert decided(claims.all_layers(SUBJECT, {"ten": last, "last": ten})) == "contradicted"


def test_the_stability_map_counts_what_diverged(book):
    runs = mapped(book, {1: (4, 4, 4), 50: (1, 1, 1)})
    runs |= {experiments.map_name(10, i): book.three(criterion=(-2.0, -1.5)) for i in range(RATES)}
    rows = beyond.stability(SUBJECT, runs).rows
    counts = {(r.label, r.column): r.measured for r in rows}
    rate = PRESET.rates[-1]
    assert counts["50 replicas", f"diverged at {rate:g}"] == 3
    assert counts["50 replicas", f"gain at {rate:g}"] is None
    assert counts["10 replicas", f"gain at {rate:g}"] == pytest.approx(50.0)


def test_every_exhibit_and_claim_needs_settings_that_every_scale_has():
    makers = (*PAPER.exhibits, *PAPER.claims)
    needed = {name for maker in makers for name in maker.needs}
    corpus = SimpleNamespace(
        name="other", fingerprint="f", frames_of=lambda split: 1000, tests=("test",), lexicon={}
    )
    for scale in PRESETS:
        subject: Any = SimpleNamespace(scale=scale, corpus=corpus, corpus_seed=11, device="cpu")
        made = experiments.experiments(subject, 11)
        assert needed == set(made)
        assert len(PRESETS[scale].fetch) == INTERVALS
        assert len(PRESETS[scale].rates) == RATES


def test_it_is_judged_on_seeds_that_served_nothing_before():
    assert PAPER.seeds_of("laptop", 3) == (1001, 1002, 1003)


@pytest.mark.parametrize("scale", PRESETS)
def test_what_sweeps_compare_has_one_rate_from_start_to_end(scale):
    corpus = SimpleNamespace(
        name="other", fingerprint="f", frames_of=lambda split: 1000, tests=("test",), lexicon={}
    )
    subject: Any = SimpleNamespace(scale=scale, corpus=corpus, corpus_seed=11, device="cpu")
    found = experiments.experiments(subject, 21)
    swept = [c for name, c in found.items() if "interval" in name or "map" in name]
    assert all(config.plateau is None for config in swept)
    assert (found["ten"].plateau is None) == (PRESETS[scale].passes == 1)


def test_ids_are_those_of_the_list():
    assert [maker.id for maker in exhibits.EXHIBITS if maker.id != "p3.fig4-wer"] == [
        f"p3.{name}" for name in
        ("fig1", "fig2", "fig3", "shuffling", "fig4", "fig5", "fig6", "fig7", "table1")
    ]  # fmt: skip
    assert [maker.id.removeprefix("p3.") for maker in claims.CLAIMS] == [
        "mmi-gain", "opposing", "not-realignment", "shuffle-order", "replicas-faster",
        "replicas-as-good", "staleness-50", "async-rate", "fetch-tolerance", "fetch-all-layers",
        "fetch-no-silence", "cancel", "step-cost", "all-layers", "tangent",
    ]  # fmt: skip


def test_a_large_loop_of_words_is_searched_and_a_small_one_summed():
    """1,000 words of ten states have all paths summed; one word more is too much."""
    few, many = ({str(i): (0,) * 10 for i in range(n)} for n in (1000, 1001))
    small, large = (experiments.criterion(SimpleNamespace(lexicon=words)) for words in (few, many))
    assert (small.denominator, large.denominator) == ("graph", "lattice")
    assert small == replace(large, denominator="graph", beam=small.beam)
