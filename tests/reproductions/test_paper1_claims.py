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

DEV, TESTS = "dev_frame_error", ("clean", "noise")
SUBJECT: Any = SimpleNamespace(
    scale="smoke", device="cpu", corpus=SimpleNamespace(
        tests=TESTS, frames_of=lambda _: 72_000, layers=lambda hidden: (9, *hidden, 7)
    )
)  # fmt: skip


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


def both_models(book: Book, *ends: dict[float, float], iterate: float = 0.0) -> list[Run]:
    """Runs with these development errors of the average; of the iterate with so much more."""
    rates = {"rate": {0.0: 0.008, 0.5: 0.016, 1.0: 0.002, 2.0: 0.001}}
    more = {f"{DEV}/average": 0.0, f"{DEV}/iterate": iterate}
    return [
        book.run(rates | {name: {e: x + by for e, x in end.items()} for name, by in more.items()})
        for end in ends
    ]


def three(book: Book, iterate: float = 0.0, **errors: Sequence[float]) -> dict[str, list[Run]]:
    """Three seeds of each schedule: errors at epochs 0.1, 1 and 2, with a little spread."""
    runs = dict[str, list[Run]]()
    for arm, at in errors.items():
        ends = (np.array(at) + 0.001 * seed for seed in range(3))
        curves = (dict(zip((0.1, 1.0, 2.0), end, strict=True)) for end in ends)
        runs[arm] = both_models(book, *curves, iterate=iterate)
    return runs


BEST, FLAT = claims.search_best, claims.flat_after_one_pass
SLOW, SATURATES = claims.adapt_slow, claims.hand_saturates


@pytest.mark.parametrize(
    ("claim", "hand", "adapt", "search", "measured", "here"),
    [
        (BEST, (0.6, 0.5, 0.49), (0.6, 0.5, 0.48), (0.7, 0.45, 0.4), -5.0, "holds"),
        (BEST, (0.6, 0.5, 0.49), (0.6, 0.5, 0.3), (0.7, 0.45, 0.4), -5.0, "fails"),
        # Shares of the drop since a tenth of the pass: 5 of 16, 20 of 30 and 10 of 30.
        (FLAT, (0.6, 0.49, 0.44), (0.6, 0.5, 0.3), (0.6, 0.4, 0.3), -0.354, "holds"),
        (FLAT, (0.6, 0.5, 0.3), (0.6, 0.4, 0.38), (0.6, 0.3, 0.28), 0.576, "fails"),
        # Who ends last is no part of the claim.
        (SLOW, (0.6, 0.5, 0.5), (0.6, 0.4, 0.3), (0.6, 0.5, 0.49), 10.0, "holds"),
        (SLOW, (0.6, 0.4, 0.5), (0.6, 0.6, 0.65), (0.6, 0.4, 0.5), -5.0, "fails"),
        (SATURATES, (0.6, 0.5, 0.49), (0, 0, 0), (0.6, 0.5, 0.4), -9.0, "holds"),
        (SATURATES, (0.6, 0.5, 0.2), (0, 0, 0), (0.6, 0.5, 0.4), 20.0, "fails"),
    ],
)
def test_schedules_are_compared_by_both_models(book, claim, hand, adapt, search, measured, here):
    runs = three(book, hand=hand, adapt=adapt, search=search)
    found = claim(SUBJECT, runs)
    assert (found.measured, found.here) == (pytest.approx(measured, abs=1e-3), here)
    if claim is BEST:
        # The rate ends the pass at an eighth of the largest in it.
        assert [each.measured for each in found.conditions] == [0.125, 0.125]
        runs |= three(book, search=search, iterate=0.3)
        assert claims.search_best(SUBJECT, runs).here == ("mixed" if here == "holds" else "fails")


@pytest.mark.parametrize(("readings", "bears"), [(9, False), (10, True)])
def test_hand_early_looks_at_the_first_fifth_if_it_has_ten_readings(book, readings, bears):
    early = [0.2 * (k + 1) / readings for k in range(readings)]

    def group(error: float) -> list[Run]:
        ends = ({**dict.fromkeys(early, error + 0.001 * s), 0.25: 0.0} for s in range(3))
        return both_models(book, *ends)

    found = claims.hand_early(SUBJECT, {"hand": group(0.5), "search": group(0.6)})
    assert [part.measured for part in found.parts] == pytest.approx([-10.0, -10.0])
    assert (found.here, found.conditions[0].measured, found.bears) == ("holds", readings, bears)


def runs_with(book: Book, rates: dict[str, Any], stage: int = 0, **summary: float) -> list[Run]:
    """Three seeds whose models have these errors of characters and of frames on both sets.

    Errors are by model: of both sets, or of each.
    """
    named = {
        (test, model): rate[place] if isinstance(rate, tuple) else rate
        for model, rate in rates.items()
        for place, test in enumerate(TESTS)
    }
    words = {f"{test}/{model}/{stage}": rate for (test, model), rate in named.items()}
    frames = {f"{test}_frame_error/{model}": rate for (test, model), rate in named.items()}
    curves = ({n: {1.0: rate + 1e-4 * s} for n, rate in frames.items()} for s in range(3))
    return [book.run(each, summary, words) for each in curves]


def many_passes(book: Book, *rates: float) -> list[Run]:
    return runs_with(book, {"iterate": rates}, stage=3, passes=4)


def test_one_pass_close_divides_the_error_of_one_pass_by_that_of_many(book):
    hand = runs_with(book, {"average": 0.5, "iterate": 0.4, "window": 0.3})

    def runs(one: float, many: float) -> dict[str, list[Run]]:
        one_pass = runs_with(book, {"average": one, "iterate": 0.9, "window": 0.9})
        baseline = many_passes(book, many, many)
        return {"one_pass": one_pass, "one_pass_hand": hand, "multi_pass": baseline}

    far = claims.one_pass_close(SUBJECT, runs(0.4, 0.2))
    assert decided(far) == "fails"
    ratios = [2.0, 2.0, 2.0, 2.0, 2.0, 1.5, 2.0, 1.5]
    assert [part.measured for part in far.parts] == pytest.approx(ratios, abs=1e-3)
    assert [part.measure for part in far.parts][:4] == ["characters", "frames"] * 2
    assert far.parts[5].label == "clean, characters, hand, its best model (window)"
    assert [part.here for part in far.parts[4:]] == [None] * 4
    close = claims.one_pass_close(SUBJECT, runs(0.2, 0.4))
    assert decided(close) == "holds"
    # 72,000 frames in minibatches of 16; 10 x 192 + 193 x 192 + 193 x 7 parameters.
    updates, frames = close.conditions
    assert (updates.measured, frames.measured) == (4500.0, pytest.approx(72_000 / 40_327))
    assert (updates.holds, frames.holds, close.bears) == (False, True, False)


def test_async_no_loss_compares_the_iterates_of_four_workers_and_of_one(book):
    four, one = (runs_with(book, {"iterate": error, "average": 0.9}) for error in (0.4, 0.3))
    judged = ({"one_pass_hand": four, "one_worker": alone} for alone in (four, one))
    assert [claims.async_no_loss(SUBJECT, runs).here for runs in judged] == ["holds", "fails"]


@pytest.mark.parametrize(("longer", "here"), [(1.01, "holds"), (1.2, "fails")])
def test_search_cheap_compares_the_simulated_times_of_one_pass(book, longer, here):
    search, hand = (
        [book.finish({}, [(f"{DEV}/average", 0.5, 1.0, s + 100.0 * times)]) for s in (0, 0.1)]
        for times in (longer, 1.0)
    )
    found = claims.search_cheap(SUBJECT, {"one_pass": search, "one_pass_hand": hand})
    assert (found.here, found.measured) == (here, pytest.approx(longer, abs=1e-3))


def test_noise_harder_reads_every_row(book):
    names = map(chunk_name, CHUNK_HOURS)
    runs = dict.fromkeys(names, runs_with(book, {"average": (0.2, 0.4)}))
    runs["multi_pass"] = many_passes(book, 0.1, 0.3)
    assert decided(claims.noise_harder(SUBJECT, runs)) == "holds"
    runs["chunk_20"] = runs_with(book, {"average": (0.4, 0.2)})
    assert decided(claims.noise_harder(SUBJECT, runs)) == "fails"


def test_chunk_size_wants_order_and_size_on_both_sets(book):
    def runs(clean: Sequence[float]) -> dict[str, list[Run]]:
        pairs = zip(map(chunk_name, CHUNK_HOURS), clean, strict=True)
        return {name: runs_with(book, {"average": (rate, 2 * rate)}) for name, rate in pairs}

    rising = claims.chunk_size(SUBJECT, runs((0.1, 0.15, 0.2, 0.25, 0.4)))
    assert decided(rising) == "holds"
    assert rising.parts[1].measured == pytest.approx(4.0)
    assert decided(claims.chunk_size(SUBJECT, runs((0.4, 0.25, 0.2, 0.15, 0.1)))) == "fails"


def test_time_factor_divides_whole_training_by_the_first_pass(book):
    def runs(stopped: int) -> dict[str, list[Run]]:
        many = book.run(summary={"virtual_s": 600.0, "passes": 6, "stopped": stopped})
        one = book.run({f"{DEV}/average": {0.0: 0.9, 1.0: 0.5, 2.0: 0.4}}, {"virtual_s": 200.0})
        return {"multi_pass": [many] * 3, "one_pass": [one] * 3}

    found = claims.time_factor(SUBJECT, runs(stopped=1))
    assert (found.measured, decided(found)) == (6.0, "holds")
    assert not found.bears
    assert "our limit" in claims.time_factor(SUBJECT, runs(stopped=0)).note


def test_average_helps_compares_both_models_of_each_schedules_runs(book):
    def runs(characters: float, frames: float, switch: float = 0.6) -> dict[str, list[Run]]:
        """The average's errors less the iterate's, which has 0.4 of both."""
        models = {"average": 1, "iterate": 0, "window": 0}
        words = {f"{t}/{m}/0": 0.4 + k * characters for t in TESTS for m, k in models.items()}
        errors = [{m: 0.4 + k * (frames + 0.001 * s) for m, k in models.items()} for s in range(3)]
        curves = [{f"{DEV}/{m}": {1.0: e, 2.0: e} for m, e in each.items()} for each in errors]
        group = [book.run({**each, "switch": {switch: 1.0}}, rates=words) for each in curves]
        return dict.fromkeys(claims.THREE, group)

    helps = claims.average_helps(SUBJECT, runs(-0.2, -0.1))
    assert helps.verdict == "reproduced"
    assert [each.measured for each in helps.conditions] == [0.6] * 3
    assert claims.average_helps(SUBJECT, runs(0.2, 0.1)).verdict == "contradicted"
    assert claims.average_helps(SUBJECT, runs(0.2, -0.1)).verdict == "mixed"
    assert not claims.average_helps(SUBJECT, runs(-0.2, -0.1, switch=0.1)).bears


@pytest.mark.parametrize(
    ("epochs", "verdict"),
    [
        ((0.1, 0.2, 0.9), "holds"), ((0.1, 0.2, None), "unclear"), ((1.4, None, 1.2), "fails"),
    ],
)  # fmt: skip
def test_the_switch_must_happen_within_the_pass_for_every_seed(book, epochs, verdict):
    runs = [book.run({"switch": {} if e is None else {e: 1.0}}) for e in epochs]
    assert decided(claims.switch(SUBJECT, {"one_pass": runs})) == verdict
