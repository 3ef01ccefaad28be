"""Each claim of paper 1 on runs made by hand, where the right answer is known."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.store import Run
from reproductions.paper1_async_asgd import claims
from reproductions.paper1_async_asgd.experiments import CHUNK_HOURS, chunk_name
from tests.reproductions.book import decided
from tests.reproductions.by_hand import RunsByHand

DEV = "dev_frame_error"
SUBJECT: Any = SimpleNamespace(
    scale="smoke", corpus=SimpleNamespace(tests=("clean", "noise")), device="cpu"
)


class Book(RunsByHand):
    """Runs of paper 1; virtual time is 100 s an epoch."""

    def run(
        self,
        curves: dict[str, dict[float, float]] | None = None,
        summary: dict[str, float] | None = None,
        rates: dict[str, float] | None = None,
    ) -> Run:
        """A run with curves, metric -> epoch -> value, and error rates."""
        rows = [
            (name, value, epoch, 100.0 * epoch)
            for name, points in (curves or {}).items()
            for epoch, value in points.items()
        ]
        return self.finish(summary or {}, rows, rates)


@pytest.fixture
def book(tmp_path) -> Book:
    return Book(tmp_path, 400)


def averaged(book: Book, *ends: dict[float, float]) -> list[Run]:
    """Runs of one setting with these development errors of the average, one for each seed."""
    return [book.run({f"{DEV}/average": {0.0: 0.99, **end}}) for end in ends]


def three(book: Book, hand: Sequence[float], adapt: Sequence[float], search: Sequence[float]):
    """Three seeds of each schedule: errors at epochs 0.1, 1 and 2, with a little spread."""

    def group(at: Sequence[float]) -> list[Run]:
        epochs = (0.1, 1.0, 2.0)
        return averaged(
            book, *(dict(zip(epochs, np.array(at) + 0.001 * s, strict=True)) for s in range(3))
        )

    return {"hand": group(hand), "adapt": group(adapt), "search": group(search)}


def test_search_best_holds_only_where_search_ends_below_both(book):
    holds = three(book, hand=(0.6, 0.5, 0.49), adapt=(0.6, 0.5, 0.48), search=(0.7, 0.5, 0.4))
    assert decided(claims.search_best(SUBJECT, holds)) == "holds"
    fails = three(book, hand=(0.6, 0.5, 0.49), adapt=(0.6, 0.5, 0.3), search=(0.7, 0.5, 0.4))
    found = claims.search_best(SUBJECT, fails)
    assert decided(found) == "fails"
    assert [part.here for part in found.parts] == ["holds", "fails"]
    assert found.parts[0].measured == pytest.approx(-9.0)


def test_hand_early_looks_at_the_first_fifth_and_not_at_the_end_if_it_has_ten_readings(book):
    runs = three(book, hand=(0.5, 0.9, 0.9), adapt=(0.6, 0.5, 0.5), search=(0.7, 0.1, 0.1))
    found = claims.hand_early(SUBJECT, runs)
    assert decided(found) == "holds"
    assert found.measured == pytest.approx(-20.0)
    assert (found.conditions[0].measured, found.bears) == (1.0, False)

    def often(early: float) -> list[Run]:
        ends = [{0.02 * k: early + 0.001 * seed for k in range(1, 11)} for seed in range(3)]
        return averaged(book, *({**end, 0.25: 0.0} for end in ends))

    found = claims.hand_early(SUBJECT, {"hand": often(0.5), "search": often(0.6)})
    assert found.conditions[0].measured == 10.0
    assert found.conditions[0].holds
    assert (found.verdict, decided(found)) == ("holds here", "holds")
    assert "undetermined" in found.reasons


def test_flat_after_one_pass_leaves_the_first_tenth_of_the_pass_out(book):
    runs = three(book, hand=(0.6, 0.49, 0.44), adapt=(0.6, 0.5, 0.5), search=(0.6, 0.49, 0.29))
    found = claims.flat_after_one_pass(SUBJECT, runs)
    later = [0.05 / 0.11, 0.2 / 0.11, 0.0]  # from a tenth of the pass on: hand, search, adapt
    begun = [0.05 / 0.5, 0.0, 0.2 / 0.5]  # from the start on: hand, adapt, search
    assert [part.measured for part in found.parts] == pytest.approx(later + begun, abs=5e-3)
    assert [part.here for part in found.parts[:2]] == ["fails", "fails"]
    assert not found.bears
    flat = three(book, hand=(0.6, 0.4, 0.39), adapt=(0.6, 0.5, 0.4), search=(0.6, 0.3, 0.28))
    assert claims.flat_after_one_pass(SUBJECT, flat).here == "holds"


def test_adapt_slow_wants_adapt_to_fall_most_and_shows_who_ends_last(book):
    slow = three(book, hand=(0.6, 0.4, 0.4), adapt=(0.6, 0.6, 0.5), search=(0.6, 0.4, 0.39))
    assert decided(claims.adapt_slow(SUBJECT, slow)) == "holds"
    first = three(book, hand=(0.6, 0.5, 0.5), adapt=(0.6, 0.4, 0.3), search=(0.6, 0.5, 0.49))
    assert decided(claims.adapt_slow(SUBJECT, first)) == "holds"
    rises = three(book, hand=(0.6, 0.4, 0.5), adapt=(0.6, 0.6, 0.65), search=(0.6, 0.4, 0.5))
    assert decided(claims.adapt_slow(SUBJECT, rises)) == "fails"


def word_runs(book: Book, clean: float, noise: float, candidate: str, **more: Any) -> list[Run]:
    """Three seeds with these error rates on both sets."""
    stages = range(int(more.get("summary", {}).get("passes", 1)))
    rates = {
        f"{test}/{candidate}/{stage}": rate
        for test, rate in (("clean", clean), ("noise", noise))
        for stage in stages
    }
    ended = {"dev_loss/iterate": 1.5, "train_loss": 1.49} | more.pop("summary", {})
    others = more.pop("curves", {})
    frames = [
        {
            f"{test}_frame_error/{candidate}": {1.0: rate + 0.0001 * seed}
            for test, rate in (("clean", clean), ("noise", noise))
        }
        for seed in range(3)
    ]
    return [book.run({**others, **each}, ended, rates, **more) for each in frames]


def both(book: Book, one: tuple[float, float], many: tuple[float, float], half: float = 1.0):
    """One pass, and the baseline on all data and on half, its error larger by that factor."""
    ended = {"summary": {"passes": 4, "stopped": 1}}
    return {
        "one_pass": word_runs(book, *one, "average"),
        "multi_pass": word_runs(book, *many, "iterate", **ended),
        "multi_pass_half": word_runs(book, *(half * rate for rate in many), "iterate", **ended),
    }


def test_one_pass_close_divides_the_error_of_one_pass_by_that_of_many(book):
    far = claims.one_pass_close(SUBJECT, both(book, (0.4, 0.6), (0.2, 0.3)))
    assert decided(far) == "fails"
    assert [part.measured for part in far.parts] == pytest.approx([2.0] * 4, abs=1e-3)
    assert [part.measure for part in far.parts] == ["characters", "frames"] * 2
    close = claims.one_pass_close(SUBJECT, both(book, (0.2, 0.3), (0.4, 0.6)))
    assert decided(close) == "holds"


def test_one_pass_close_presumes_that_doubling_the_data_hardly_moves_the_baseline(book):
    still = claims.one_pass_close(SUBJECT, both(book, (0.2, 0.3), (0.4, 0.6), half=1.025))
    gap, *ratios = [each.measured for each in still.conditions]
    assert gap == pytest.approx(0.01 / 1.5)
    assert ratios == pytest.approx([1.025, 1.025], rel=0.01)
    assert all(each.holds for each in still.conditions)
    limited = claims.one_pass_close(SUBJECT, both(book, (0.2, 0.3), (0.4, 0.6), half=1.2))
    assert not limited.bears
    assert "conditions" in limited.reasons


def test_noise_harder_reads_every_row(book):
    runs = both(book, (0.2, 0.4), (0.1, 0.3))
    runs |= {chunk_name(h): word_runs(book, 0.2, 0.4, "average") for h in CHUNK_HOURS[1:]}
    assert decided(claims.noise_harder(SUBJECT, runs)) == "holds"
    runs["chunk_20"] = word_runs(book, 0.4, 0.2, "average")
    assert decided(claims.noise_harder(SUBJECT, runs)) == "fails"


def test_chunk_size_wants_order_and_size_on_both_sets(book):
    settings = [chunk_name(hours) for hours in CHUNK_HOURS]

    def runs(clean: Sequence[float], rate: float = 0.001) -> dict[str, list[Run]]:
        rates = {"rate": {0.0: 0.008, 0.5: rate, 2.0: 0.0001}}
        return {n: word_runs(book, c, 2 * c, "average", curves=rates) for n, c in
                zip(settings, clean, strict=True)}  # fmt: skip

    rising = claims.chunk_size(SUBJECT, runs((0.1, 0.15, 0.2, 0.25, 0.4)))
    assert decided(rising) == "holds"
    assert rising.parts[1].measured == pytest.approx(4.0)
    assert decided(claims.chunk_size(SUBJECT, runs((0.4, 0.25, 0.2, 0.15, 0.1)))) == "fails"
    idle = claims.chunk_size(SUBJECT, runs((0.1, 0.15, 0.2, 0.25, 0.4), rate=0.008))
    assert (idle.conditions[0].measured, idle.bears) == (1.0, False)


@pytest.mark.parametrize(("small", "large", "further"), [(0.002, 0.004, 1.0), (0.008, 0.004, -1.0)])
def test_small_chunks_are_to_lower_the_rate_as_far_as_large_ones(book, small, large, further):
    runs = {}
    for hours in CHUNK_HOURS:
        end = small if hours == CHUNK_HOURS[0] else large
        rates = {"rate": {0.0: 0.008, 0.3: 0.016, 0.9: end, 2.0: 0.0001}}
        runs[chunk_name(hours)] = word_runs(book, 0.2, 0.3, "average", curves=rates)
    moves, falls = claims.chunk_size(SUBJECT, runs).conditions
    assert moves.holds
    assert (falls.measured, falls.holds) == (pytest.approx(2**further), further >= 0)


def test_time_factor_divides_whole_training_by_the_first_pass(book):
    def runs(stopped: int) -> dict[str, list[Run]]:
        end = {"virtual_s": 600.0, "passes": 6, "stopped": stopped}
        one = {f"{DEV}/average": {0.0: 0.9, 1.0: 0.5, 2.0: 0.4}}
        return {
            "multi_pass": [book.run(summary=end) for _ in range(3)],
            "one_pass": [book.run(one, {"virtual_s": 200.0}) for _ in range(3)],
        }

    found = claims.time_factor(SUBJECT, runs(stopped=1))
    assert (found.measured, decided(found)) == (6.0, "holds")
    limited = claims.time_factor(SUBJECT, runs(stopped=0))
    assert not limited.bears
    assert "Our limit" in limited.note


def test_average_helps_compares_both_models_of_one_run_by_characters_and_by_frames(book):
    def runs(characters: float, frames: float) -> dict[str, list[Run]]:
        """The average's errors less the iterate's, which has 0.4 of both."""
        tests = ("clean", "noise")
        rates = {f"{t}/{m}/0": 0.4 for t in tests for m in ("average", "iterate")}
        rates |= {f"{t}/average/0": 0.4 + characters for t in tests}
        curves = [
            {f"{t}_frame_error/average": {1.0: 0.4 + frames + 0.001 * s} for t in tests}
            | {f"{t}_frame_error/iterate": {1.0: 0.4} for t in tests}
            for s in range(3)
        ]
        return {"one_pass": [book.run(each, rates=rates) for each in curves]}

    assert claims.average_helps(SUBJECT, runs(-0.2, -0.1)).verdict == "reproduced"
    assert claims.average_helps(SUBJECT, runs(0.2, 0.1)).verdict == "contradicted"
    assert claims.average_helps(SUBJECT, runs(0.2, -0.1)).verdict == "mixed"


def test_first_epoch_compares_asgd_with_sgd_after_one_epoch(book):
    def runs(asgd: float, sgd: float) -> dict[str, list[Run]]:
        many = [{0.75: sgd + 0.001 * s, 1.25: sgd + 0.001 * s} for s in range(3)]
        return {
            "one_pass": averaged(book, *({1.0: asgd} for _ in range(3))),
            "multi_pass": [book.run({f"{DEV}/iterate": curve}) for curve in many],
        }

    assert decided(claims.first_epoch(SUBJECT, runs(0.4, 0.5))) == "holds"
    assert decided(claims.first_epoch(SUBJECT, runs(0.5, 0.4))) == "fails"


@pytest.mark.parametrize(
    ("epochs", "verdict"),
    [
        ((0.1, 0.2, 0.9), "holds"), ((0.1, 0.2, None), "unclear"), ((None, None, None), "fails"),
        ((1.4, 1.5, 1.2), "fails"), ((0.1,), "unclear"),
    ],
)  # fmt: skip
def test_the_switch_must_happen_within_the_pass_for_every_seed(book, epochs, verdict):
    runs = [book.run({"switch": {} if e is None else {e: 1.0}}) for e in epochs]
    assert decided(claims.switch(SUBJECT, {"one_pass": runs})) == verdict
