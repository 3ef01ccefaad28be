"""Each claim of paper 3 on runs made by hand, where the right answer is known."""

import math
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.algorithms.schedules import Constant
from harness.store import Run
from harness.store.schema import Outcome
from reproductions.paper import Subject
from reproductions.paper3_async_mmi import claims, quantities
from reproductions.paper3_async_mmi import claims as staleness
from reproductions.paper3_async_mmi import exhibits as beyond
from reproductions.paper3_async_mmi.experiments import (
    INTERVALS,
    PRESETS,
    SWEEPS,
    TRIED,
    TUNED,
    criterion,
    fetch_name,
    fetch_s,
)
from tests.reproductions.book import decided
from tests.reproductions.by_hand import RunsByHand

experiments = import_module("reproductions.paper3_async_mmi.experiments")
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


FLAT = (-2.0, -1.1, -1.0, -1.0, -1.0)
"""Readings of a training that ends on a plateau."""


class Book(RunsByHand):
    """Runs of paper 3."""

    def run(
        self,
        error: float | None = None,
        criterion: tuple[float, ...] = FLAT,
        summary: dict[str, float] | None = None,
        status: Outcome = "done",
        pass_s: float = 1000.0,
        forced: bool = True,
        **metrics: float,
    ) -> Run:
        """A run of one pass.

        Args:
            error: share of the one-word test utterances that are wrong.
            criterion: its readings, evenly spaced over the pass.
            summary: its summary.
            status: how it ended.
            pass_s: simulated seconds of the pass.
            forced: whether its start was trained on forced alignments.
            metrics: further metrics, read at the end.
        """
        start = {"targets": {"is": "ForcedAlignment"}} if forced else {}
        config = {"passes": 1, "workers": 50, "seed": 0, "start": start}
        config |= {"protocol": {"slots": 8, "fetch_s": 60.0}, "schedule": {"rate": RATE}}
        epochs = np.linspace(0.0, 1.0, len(criterion)).tolist()
        rows = [
            (quantities.CRITERION, value, epoch, pass_s * epoch)
            for value, epoch in zip(criterion, epochs, strict=True)
        ]
        rows += [(name.replace("__", "/"), value, 1.0, pass_s) for name, value in metrics.items()]
        rates = None if error is None else {"test/iterate/1": error}
        results = {"folds": 100, "epochs": 1.0, "virtual_s": pass_s, **(summary or {})}
        return self.finish(results, rows, rates, config, status)

    def three(self, **choices: Any) -> list[Run]:
        """Three seeds that agree, but for a hair."""
        return [self.run(**choices) for _ in range(3)]


@pytest.fixture
def book(tmp_path) -> Book:
    return Book(tmp_path, 600)


def spread(values, seed):
    """Values a little different for each seed."""
    return tuple(v + 1e-5 * seed * i for i, v in enumerate(values))


def trained(book, small=0.34, large=0.37, control=0.4):
    """Both tasks before and after, from an error of 0.4, and the controls."""
    errors = {"ce": 0.4, "ten": small, "large ce": 0.4, "large": large}
    errors |= dict.fromkeys(claims.CONTROLS.values(), control)
    return {name: book.three(error=error) for name, error in errors.items()}


@pytest.mark.parametrize(
    ("small", "large", "here"),
    [(0.34, 0.37, "holds"), (0.45, 0.37, "fails"), (0.34, 0.45, "fails"), (0.1, 0.37, "mixed")],
)
def test_mmi_gain_needs_a_lower_error_on_both_tasks_of_about_the_papers_size(
    book, small, large, here
):
    found = claims.mmi_gain(SUBJECT, trained(book, small, large))
    assert found.here == here
    assert found.measured == pytest.approx(1 - small / 0.4, abs=0.01)
    assert [(part.here, part.measured) for part in found.parts[4:]] == [(None, 0.0)] * 2


def test_mmi_gain_wants_all_arms_on_a_plateau(book):
    runs = trained(book)
    assert claims.mmi_gain(SUBJECT, runs).bears
    rising = book.three(error=0.34, criterion=(-2.0, -1.75, -1.5, -1.25, -1.0))
    assert not claims.mmi_gain(SUBJECT, {**runs, "ten": rising}).bears
    assert not claims.mmi_gain(SUBJECT, {**runs, "large": rising}).bears


def test_opposing_wants_words_to_fall_and_frames_to_rise(book):
    name = "test_frame_error__iterate"
    ce = [book.run(0.4, **{name: 0.5 + 0.001 * s}) for s in range(3)]
    up = [book.run(0.2, **{name: 0.55 + 0.0012 * s}) for s in range(3)]
    down = [book.run(0.2, **{name: 0.45 + 0.0012 * s}) for s in range(3)]
    found = claims.opposing(SUBJECT, {"ce": ce, "ten": up})
    assert decided(found) == "holds"
    assert found.measured == pytest.approx(5.0, abs=0.1)
    assert decided(claims.opposing(SUBJECT, {"ce": ce, "ten": down})) == "fails"


def realigned(book, error, forced=True):
    ce = book.three(error=0.4, forced=forced)
    other = ce if error is None else book.three(error=error)
    shares = book.three(summary={"moved_train": 0.1})
    return {"ce": ce, "aligned once": ce, "realigned": other, "realignment": shares}


def test_not_realignment_is_contradicted_by_a_change_in_either_direction(book):
    for error in (0.2, 0.6):
        found = claims.not_realignment(SUBJECT, realigned(book, error))
        assert decided(found) == "fails"
    assert decided(claims.not_realignment(SUBJECT, realigned(book, None))) == "holds"


def test_a_start_that_was_trained_on_other_targets_makes_re_alignment_not_testable(book):
    found = claims.not_realignment(SUBJECT, realigned(book, 0.2, forced=False))
    assert [(each.name, each.holds) for each in found.conditions] == [
        ("plateau", True),
        ("plateau", True),
        ("forced-alignments", False),
    ]
    found = claims.not_realignment(SUBJECT, realigned(book, 0.2))
    assert found.bears
    assert (found.parts[2].measured, found.parts[2].here) == (pytest.approx(0.1), None)


def test_shuffle_order_wants_unshuffled_worse_and_the_others_alike(book):
    def group(error):
        frames = ({"test_frame_error__iterate": error + 1e-5 * s} for s in range(3))
        return [book.run(error, **each) for each in frames]

    full, bad = group(0.2), group(0.4)
    good = {"none": bad, "on the fly": full, "ce": full}
    assert decided(claims.shuffle_order(SUBJECT, good)) == "holds"
    assert decided(claims.shuffle_order(SUBJECT, {**good, "ce": bad})) == "fails"
    frames_alone = [book.run(0.2, test_frame_error__iterate=0.4 + 1e-5 * s) for s in range(3)]
    parts = claims.shuffle_order(SUBJECT, {**good, "ce": frames_alone}).parts
    assert [part.here for part in parts if part.measure == "frames"] == ["holds", "fails"]


def test_replicas_are_timed_to_their_own_gain(book):
    def group(pass_s, gained, readings=10):
        rising = tuple(-2.0 + gained * i / readings for i in range(readings + 1))
        return [book.run(criterion=rising, pass_s=pass_s + s) for s in range(3)]

    runs = {"one": group(9000, 1.0), "ten": group(1000, 0.5), "fifty": group(200, 2.0)}
    found = claims.replicas_faster(SUBJECT, runs)
    assert decided(found) == "holds"
    expected = [math.log2(900 / 8100), math.log2(180 / 900)]
    assert all(part.is_log2 for part in found.parts)
    assert [part.measured for part in found.parts] == pytest.approx(expected, abs=0.01)
    assert found.conditions[0].holds
    slow = {**runs, "fifty": group(9000, 0.5)}
    assert decided(claims.replicas_faster(SUBJECT, slow)) == "fails"
    few = {**runs, "one": group(9000, 1.0, readings=9)}
    assert not claims.replicas_faster(SUBJECT, few).bears


def test_replicas_are_as_good_within_two_percent(book):
    flying = {"utterances": 20_000}
    one, same = (book.three(error=0.3, summary=flying) for _ in range(2))
    runs = {"one": one, "ten": one, "fifty": book.three(error=0.5, summary=flying)}
    assert decided(claims.replicas_as_good(SUBJECT, runs)) == "fails"
    assert decided(claims.replicas_as_good(SUBJECT, {**runs, "fifty": one})) == "holds"
    assert claims.replicas_as_good(SUBJECT, {**runs, "fifty": same}).conditions[0].holds


def test_a_corpus_that_is_mostly_in_slots_does_not_test_replicas(book):
    one = book.three(error=0.3, summary={"utterances": 2000})
    found = claims.replicas_as_good(SUBJECT, {"one": one, "ten": one, "fifty": one})
    assert not found.bears
    assert found.conditions[0].measured == pytest.approx(0.2)


def searched(book, brackets):
    """Searches for largest rates: for 1 and 50 replicas, each seed's bracket."""
    return {
        f"largest {n}": [
            book.run(summary={k: v for k, v in zip(("stable", "diverged"), ends, strict=True) if v})
            for ends in each
        ]
        for n, each in brackets.items()
    }


RATE = 0.001
LOW, MIDDLE, HIGH = (1.0, 1.2), (2.0, 2.4), (4.0, 4.8)


@pytest.mark.parametrize(
    ("one", "fifty", "verdict"),
    [
        ((MIDDLE,) * 3, (LOW,) * 3, "holds"), ((LOW,) * 3, (MIDDLE,) * 3, "fails"),
        ((LOW,) * 3, (LOW,) * 3, "unclear"), # Beyond the ends everything is possible.
        (((4.0, None),) * 3, (LOW,) * 3, "holds"),
        (((4.0, None),) * 3, ((4.0, None),) * 3, "unclear"),
        (((None, 1.0),) * 3, (HIGH,) * 3, "fails"),
        ((HIGH, LOW, HIGH), (MIDDLE, MIDDLE, LOW), "unclear"),
    ],
)  # fmt: skip
def test_async_rate_compares_what_the_largest_stable_rates_lie_between(book, one, fifty, verdict):
    found = staleness.async_rate(SUBJECT, searched(book, {1: one, 50: fifty}))
    assert decided(found) == verdict


def test_the_middle_of_both_brackets_is_the_estimate(book):
    found = staleness.async_rate(SUBJECT, searched(book, {1: (HIGH,) * 3, 50: (LOW,) * 3}))
    assert found.measured == pytest.approx(2.0)
    assert "1 to 1.2, 1 to 1.2" in found.note


def swept(book, sweep, star, noise=0.01, power=1.0, age=0.1):
    """A fetch sweep with a known T*: gains of about 1, and gradients that are anyhow so old."""
    intervals = (0.0, *PRESET.fetch[sweep])
    return {
        fetch_name(sweep, i): [
            book.run(
                criterion=(
                    -2.0,
                    -2.0 + 0.95 ** ((t / star) ** power) * (1 + noise * (s - 1) * (-1) ** i),
                ),
                summary={"outer_lag_s_mean": age},
            )
            for s in range(3)
        ]
        for i, t in enumerate(intervals)
    }


def sweeps(book, last, everything, no_silence, stable=RATE, **like):
    stars = dict(zip(SWEEPS, (last, everything, no_silence), strict=True))
    each = [swept(book, name, star, **like) for name, star in stars.items()]
    found = {setting: runs for one in each for setting, runs in one.items()}
    return {**found, **searched(book, {50: ((stable, 1.2 * stable),) * 3})}


def test_fetch_tolerance_wants_intervals_that_cost_nothing_and_others_that_do(book):
    inside = staleness.fetch_tolerance(SUBJECT, sweeps(book, 0.15, 0.1, 0.3, noise=0.001))
    assert [part.here for part in inside.parts] == ["holds", "holds", "unclear", None, None]
    assert 2 ** inside.parts[3].measured == pytest.approx(0.15, rel=0.1)
    seconds = 0.15 * fetch_s(SUBJECT, 1.0)  # in which the runs make an update every ten
    assert inside.parts[4].measured == pytest.approx(seconds / 10, rel=0.1)


@pytest.mark.parametrize(("star", "failed"), [(0.02, 0), (1.5, 1)])
def test_a_sweep_in_which_all_costs_or_nothing_does_speaks_against_the_paper(book, star, failed):
    outside = staleness.fetch_tolerance(SUBJECT, sweeps(book, star, star, star, noise=0.001))
    assert (outside.here, outside.bears) == ("fails", True)
    assert outside.parts[failed].here == "fails"


def test_longer_intervals_are_to_be_noisier(book):
    runs = sweeps(book, 0.15, 0.1, 0.3)
    for place, name in enumerate(beyond.SWEEP):
        jitter = 0.001 * (1 + place) * np.array([0, 1, -1, 1, -1, 1, -1, 1, 0])
        readings = tuple(-2.0 + np.linspace(0.0, 1.0, 9) + jitter)
        runs[name] = book.three(criterion=readings, summary={"outer_lag_s_mean": 0.1})
    part = staleness.fetch_tolerance(SUBJECT, runs).parts[2]
    assert (part.here, part.measured) == ("holds", pytest.approx(1.0))


def test_noise_is_what_a_parabola_lacks_and_independent_readings_scatter(book):
    smooth = book.run(criterion=tuple(-((np.arange(9) - 9) ** 2.0)))
    assert quantities.noise(smooth) == pytest.approx(0.0, abs=1e-12)
    rough = book.run(criterion=tuple(0.2 * np.random.default_rng(0).standard_normal(2000)))
    assert quantities.noise(rough) == pytest.approx(0.2, rel=0.1)
    assert quantities.noise(book.run(status="diverged")) == math.inf


def test_a_run_that_diverges_or_ends_below_its_start_gained_nothing(book):
    last = fetch_name("last", INTERVALS)
    for status, end in (("diverged", -9.0), ("done", -2.5)):
        runs = swept(book, "last", 0.15)
        runs[last] = book.three(criterion=(-2.0, end), status=status)
        assert (quantities.sweep_of(SUBJECT, runs, "last").gains[:, -1] == 0.0).all()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("everything", "verdict"), [(0.075, "holds"), (0.15, "fails"), (0.3, "fails")]
)
def test_all_layers_are_to_bear_about_half_the_interval(book, everything, verdict):
    found = staleness.fetch_all_layers(SUBJECT, sweeps(book, 0.15, everything, 0.3))
    assert decided(found) == verdict
    assert found.measured == pytest.approx(math.log2(everything / 0.15), abs=0.15)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("unlike", "unmet"),
    [
        ({}, None),
        ({"stable": 2.0 * RATE}, "the sweeps' rate over the largest"),
        ({"stable": 0.5 * RATE}, "the sweeps' rate over the largest"),
        ({"age": 0.3 * 0.075 * fetch_s(SUBJECT, 1.0)}, "age of outer gradients"),
        ({"power": 12.0}, "power with which the loss sets in"),
    ],
)
def test_what_the_paper_presumes_of_its_ratio_is_asked(book, unlike, unmet):
    found = staleness.fetch_all_layers(SUBJECT, sweeps(book, 0.15, 0.075, 0.3, **unlike))
    failed = [each.what for each in found.conditions if not each.holds]
    assert [what.startswith(unmet) for what in failed] == [True] * (unmet is not None)
    assert found.verdict == ("reproduced" if unmet is None else "holds here")


@pytest.mark.parametrize(("no_silence", "here"), [(0.2, "holds"), (0.1, "fails")])
def test_no_silence_is_to_bear_about_twice_the_interval_and_is_no_test(book, no_silence, here):
    found = staleness.fetch_no_silence(SUBJECT, sweeps(book, 0.1, 0.1, no_silence))
    assert (found.here, found.bears) == (here, False)
    assert found.measured == pytest.approx(math.log2(no_silence / 0.1), abs=0.15)
    assert "undetermined" in found.reasons


def test_cancel_is_told_and_not_judged_for_an_unknown_corpus(book):
    summary = {"cancelled_frames": 0.6, "kept_frames": 0.1, "rejected_frames": 0.0}
    found = claims.cancel(SUBJECT, {"ten": book.three(summary=summary)})
    assert (found.bears, found.measured) == (False, 0.6)


def test_all_layers_must_be_better_in_criterion_and_alike_in_words(book):
    def group(value, error):
        return [book.run(error, criterion=spread((-2.0, value), s)) for s in range(3)]

    ten, last = group(-1.0, 0.3), group(-1.5, 0.3)
    better = {"ten": ten, "last": [book.run(0.3, criterion=(-2.0, -1.5))] * 3}
    assert claims.all_layers(SUBJECT, better).parts[0].here == "holds"
    assert decided(claims.all_layers(SUBJECT, {"ten": last, "last": ten})) == "fails"


def test_all_layers_is_no_test_without_a_start_from_another_language(book):
    found = claims.all_layers(SUBJECT, dict.fromkeys(("ten", "last"), book.three(error=0.3)))
    assert [(each.name, each.holds) for each in found.conditions[2:]] == [
        ("transferred-start", False)
    ]
    start = {"corpus": "icelandic", "initial": {"corpus": "english"}}
    moved = replace(book.run(), config={"start": start})
    assert quantities.has_transferred_start(moved)


@pytest.mark.parametrize(("many", "here"), [(0.25, "holds"), (0.35, "fails")])
def test_many_replicas_are_to_end_better_and_longer_training_no_worse(book, many, here):
    runs = {"one": book.three(error=0.3), **dict.fromkeys(("ten", "fifty"), book.three(error=many))}
    assert decided(claims.better_than_sgd(SUBJECT, runs)) == here
    longer = {"ten": runs["one"], "longer": runs["ten"]}
    assert decided(claims.no_overfit(SUBJECT, longer)) == here


def test_what_was_tuned_is_shown_with_what_diverged(book):
    runs = {
        experiments.rate_name(name, i): [
            book.run(summary={"dev_loss/iterate": 1.0 + i})
            if name in ("full", "on the fly", "none")
            else book.run(criterion=(-2.0, -1.5), status="diverged" if factor == 2 else "done")
        ]
        for name in TUNED
        for i, factor in enumerate(TRIED)
    }
    rows = {(r.label, r.column): r.measured for r in beyond.rates(SUBJECT, runs).rows}
    assert all(column.endswith("× rate") for _, column in rows), "only runs have measured values"
    fifty = f"MMI, fifty: gain, at {PRESET.rates['fifty']:g}"
    assert rows[fifty, "1 × rate"] == pytest.approx(50.0)
    assert rows[fifty, "2 × rate"] is None
    none = f"cross-entropy, none: loss, at {PRESET.rates['none']:g}"
    assert rows[none, "2 × rate"] == 3.0


def of_scale(scale):
    """The experiments of a seed, on a corpus of another name: it is its own development corpus."""
    corpus: Any = SimpleNamespace(
        name="other", fingerprint="f", frames_of=lambda split: 1000, tests=("test",), lexicon={}
    )
    return experiments.experiments(Subject(scale, corpus, 11, "cpu"), 11)


@pytest.mark.parametrize("scale", PRESETS)
def test_what_sweeps_and_searches_compare_has_one_rate_from_start_to_end(scale):
    found = of_scale(scale)
    swept = [c for name, c in found.items() if name in beyond.SWEPT]
    sought = [c.training for name, c in found.items() if "law" in name or "largest" in name]
    assert all(isinstance(config.schedule, Constant) for config in (*swept, *sought))
    assert isinstance(found["ten"].schedule, Constant) == (PRESETS[scale].passes == 1)


def test_compared_arms_have_one_decay_and_a_search_as_long_as_what_is_judged():
    found = of_scale("overnight")
    arms = ("one", "ten", "fifty", "last", *experiments.CONTROLS)
    assert {found[name].schedule.at for name in arms} == {(12,)}
    assert found["longer"].schedule.at == (36,)
    for name in arms:
        tried = [found[experiments.rate_name(name, i)] for i in range(len(TRIED))]
        assert [run.schedule.rate / found[name].schedule.rate for run in tried] == list(TRIED)
        assert {run.passes for run in tried} == {found[name].passes}


def test_overnight_meets_what_claims_presume_of_its_design():
    preset, found = PRESETS["overnight"], of_scale("overnight")
    assert 50 * preset.slots / 10_000 <= claims.CONDITIONS.named["in-slots"].rule.high
    assert preset.passes * preset.evaluations >= 16
    assert found["ten"].task.start.task.targets is not None


def test_a_large_loop_of_words_is_searched_and_a_small_one_summed():
    """1,000 words of ten states have all paths summed; one word more is too much."""
    few, many = ({str(i): (0,) * 10 for i in range(n)} for n in (1000, 1001))
    small, large = (criterion(SimpleNamespace(lexicon=words)) for words in (few, many))
    assert (small.denominator, large.denominator) == ("graph", "lattice")
    assert small == replace(large, denominator="graph", beam=small.beam)
