"""Each claim of paper 2 on runs made by hand, where the right answer is known."""

from types import SimpleNamespace
from typing import Any

import pytest

from harness.judge.utterances import rate_difference_ci
from harness.store import Run
from reproductions.paper2_ng_averaging import claims, errors, exhibits
from reproductions.paper2_ng_averaging import claims as speedups
from reproductions.paper2_ng_averaging.errors import true_value
from tests.reproductions.book import decided
from tests.reproductions.by_hand import RunsByHand

TESTS = ("swb", "callhome")
SUBJECT: Any = SimpleNamespace(scale="smoke", corpus=SimpleNamespace(tests=TESTS), device="cpu")
PASSES = 3


class Book(RunsByHand):
    """Runs of paper 2."""

    def run(
        self,
        rate: float | dict[str, float],
        workers: int = 16,
        folds: int = 640,
        last: int = PASSES,
    ) -> Run:
        """A run with this rate of errors after its last pass; before it, everything was wrong."""
        rates = rate if isinstance(rate, dict) else dict.fromkeys(TESTS, rate)
        stages = {
            f"{test}/iterate/{stage}": rates[test] if stage == last - 1 else 1.0
            for test in TESTS
            for stage in range(last)
        }
        shift = 1e-4 * ((self.count + 1) % 3)
        frames = {f"{test}_frame_error/iterate": rates[test] + shift for test in TESTS}
        summary = {"passes": last, "virtual_s": 100.0, "folds": folds, **frames}
        return self.finish(summary, rates=stages, config={"workers": workers}, turns=3)

    def runs(self, **rates: float | dict[str, float]) -> dict[str, list[Run]]:
        """Three seeds of every setting."""
        return {name: [self.run(rate) for _ in range(3)] for name, rate in rates.items()}

    def timed(self, **seconds: float) -> dict[str, list[Run]]:
        """Three seeds of every timing setting."""
        return {
            name: [self.finish({"virtual_s": virtual_s}) for _ in range(3)]
            for name, virtual_s in seconds.items()
        }


@pytest.fixture
def book(tmp_path) -> Book:
    return Book(tmp_path, 500)


def test_ng_crucial_compares_relative_losses(book):
    worse = book.runs(sgd_1=0.2, sgd_16=0.4, ng_1=0.2, ng_16=0.22)
    found = claims.ng_crucial(SUBJECT, worse)
    assert decided(found) == "holds"
    assert found.measured == pytest.approx(2.0 - 1.1)
    assert [part.measured for part in found.parts[-2:]] == pytest.approx([2.0, 1.1])
    # Twice the error from a worse start is no larger loss than twice the error from a better.
    same = book.runs(sgd_1=0.4, sgd_16=0.8, ng_1=0.1, ng_16=0.2)
    assert claims.ng_crucial(SUBJECT, same).measured == pytest.approx(0.0)
    better = book.runs(sgd_1=0.2, sgd_16=0.22, ng_1=0.2, ng_16=0.4)
    assert decided(claims.ng_crucial(SUBJECT, better)) == "fails"


def test_the_papers_own_figures_are_worked_out_from_its_tables(book):
    runs = book.runs(sgd_1=0.2, sgd_16=0.4, ng_1=0.2, ng_16=0.22)
    parts = {part.label: part.paper for part in claims.ng_crucial(SUBJECT, runs).parts}
    assert parts["SWB"] == pytest.approx(16.3 / 14.9 - 15.1 / 14.7, abs=1e-3)
    assert parts["CallHome"] == pytest.approx(28.3 / 26.9 - 27.0 / 26.8, abs=1e-3)


@pytest.mark.parametrize(("cell", "settings"), claims.CELLS.items())
@pytest.mark.parametrize(("loss", "here"), [(1.01, "holds"), (1.2, "fails")])
def test_each_cell_of_small_loss_is_judged_by_itself(book, cell, settings, loss, here):
    (maker,) = (maker for maker in claims.CLAIMS if maker.id == cell)
    many, one = settings
    runs = book.runs(**{one: 0.2, many: 0.2 * loss})
    found = maker.make(SUBJECT, runs)
    assert (found.here, found.bears) == (here, False), "640 averages are few"
    assert found.measured == pytest.approx(loss)
    printed = {"ng_8": 1.019, "ng_16": 1.013, "ng_32": 1.021, "small_16": 1.019}
    assert found.parts[0].paper == printed[many]
    runs[many] = [book.run(0.2 * loss, folds=2584) for _ in range(3)]
    found = maker.make(SUBJECT, runs)
    assert (found.conditions[0].measured, found.bears) == (2584, True)


def test_ng_crucial_wants_both_alike_on_one_gpu(book):
    alike = book.runs(sgd_1=0.202, sgd_16=0.4, ng_1=0.2, ng_16=0.22)
    assert claims.ng_crucial(SUBJECT, alike).bears
    worse = claims.ng_crucial(SUBJECT, {**alike, **book.runs(sgd_1=0.23)})
    assert (worse.here, worse.bears) == ("holds", False)
    assert worse.conditions[0].measured == pytest.approx(1.15)


def test_rbm_must_help_on_one_worker_and_on_many(book):
    both = book.runs(rbm_1=0.2, random_1=0.3, rbm_32=0.3, random_32=0.4)
    assert decided(claims.rbm_helps(SUBJECT, both)) == "holds"
    one = book.runs(rbm_1=0.3, random_1=0.2, rbm_32=0.3, random_32=0.4)
    assert decided(claims.rbm_helps(SUBJECT, one)) == "fails"


def test_rbm_more_when_parallel_is_a_difference_of_gains(book):
    more = book.runs(rbm_1=0.2, random_1=0.25, rbm_32=0.3, random_32=0.45)
    found = claims.rbm_more(SUBJECT, more)
    assert (decided(found), found.measured) == ("holds", pytest.approx(10.0))
    less = book.runs(rbm_1=0.2, random_1=0.35, rbm_32=0.3, random_32=0.35)
    assert decided(claims.rbm_more(SUBJECT, less)) == "fails"


@pytest.mark.parametrize(("many", "holds"), [(0.206, True), (0.25, False)])
def test_pretraining_is_judged_where_averaging_costs_little(book, many, holds):
    runs = book.runs(rbm_1=0.2, random_1=0.25, rbm_32=many, random_32=many + 0.1)
    for claim in (claims.rbm_helps, claims.rbm_more):
        found = claim(SUBJECT, runs)
        assert decided(found) == "holds"
        assert [each.holds for each in found.conditions] == [holds]
        assert not found.bears or holds


def test_frequency_wants_accuracy_and_the_price_in_speed(book):
    speeds = book.timed(timing_1=100.0, timing_16=11.0, timing_16_every_20=10.0)
    better = {**book.runs(ng_16=0.2, every_20=0.3, scaled=0.2, scaled_20=0.3), **speeds}
    assert decided(claims.frequency(SUBJECT, better)) == "holds"
    for rates in ({"ng_16": 0.3, "every_20": 0.2}, {"scaled": 0.3, "scaled_20": 0.2}):
        worse = {**better, **book.runs(**rates)}
        assert decided(claims.frequency(SUBJECT, worse)) == "fails"
    cheap = book.timed(timing_1=100.0, timing_16=9.0, timing_16_every_20=10.0)
    assert decided(claims.frequency(SUBJECT, {**better, **cheap})) == "fails"


def test_claims_of_one_difference_know_its_side(book):
    lower = book.runs(ng_16=0.2, small_16=0.3, ng_1=0.2, small_1=0.3, scaled=0.2, unscaled=0.3)
    sides = {"ng_16": claims.minibatch, "ng_1": claims.minibatch, "scaled": claims.lr_scaling}
    for setting, claim in sides.items():
        assert decided(claim(SUBJECT, lower)) == "holds"
        assert decided(claim(SUBJECT, lower | book.runs(**{setting: 0.4}))) == "fails"


@pytest.mark.parametrize(("rate", "verdict"), [(0.4, "holds"), (0.36, "fails"), (0.44, "fails")])
def test_schedules_are_close_within_three_in_a_hundred_on_either_side(book, rate, verdict):
    runs = book.runs(newbob_16=rate, exponential_16=0.4)
    assert decided(claims.schedules_close(SUBJECT, runs)) == verdict


def test_schedules_of_unlike_lengths_are_no_test(book):
    """The paper gave the exponential schedule as many epochs as newbob took."""
    longer = [book.run(0.4, last=2 * PASSES) for _ in range(3)]
    runs = {"newbob_16": longer, **book.runs(exponential_16=0.4)}
    found = claims.schedules_close(SUBJECT, runs)
    assert (found.bears, found.conditions[0].measured) == (False, 2.0)


@pytest.mark.parametrize(("folds", "one", "met"), [(64, 0.3, [0, 1]), (640, 0.25, [1, 0])])
def test_the_larger_minibatch_is_no_test_where_averages_are_few_or_cost_much(book, folds, one, met):
    runs = {"ng_16": [book.run(0.3, folds=folds) for _ in range(3)]}
    runs |= book.runs(small_16=0.4, ng_1=one, small_1=0.4)
    found = claims.minibatch(SUBJECT, runs)
    assert [each.holds for each in found.conditions] == met
    assert not found.bears


def test_what_would_be_true_is_the_papers_effect_at_our_level_of_errors(book):
    runs = book.runs(ng_16=0.2, every_20=0.2)
    found = true_value(SUBJECT, runs, ("ng_16", "every_20"), rate_difference_ci)
    assert found == pytest.approx(0.2 * ((15.1 + 27.0) / (15.8 + 28.0) - 1.0))


def test_a_claim_is_judged_on_all_sets_together(book):
    newbob, exponential = {"swb": 0.3, "callhome": 0.5}, {"swb": 0.5, "callhome": 0.3}
    apart = book.runs(newbob_16=newbob, exponential_16=exponential)
    found = claims.schedules_close(SUBJECT, apart)
    assert found.measured == pytest.approx(1.0)
    assert [part.measure for part in found.parts] == ["words", "frames", "", ""]
    assert [part.label for part in found.parts[2:]] == ["SWB", "CallHome"]
    assert [part.measured for part in found.parts[2:]] == pytest.approx([0.6, 1 / 0.6])
    assert [part.here for part in found.parts[2:]] == [None, None]


def test_two_readings_of_the_same_timings_that_foretell_otherwise_are_no_test(book):
    """The paper times no epoch that averages less often but the one to be foretold."""
    runs = book.timed(
        timing_1=100.0, timing_16_every_20=9.9, other_1=100.0, other_16_every_20=8.9
    )  # fmt: skip
    found = speedups.every_20(SUBJECT, runs)
    assert (found.here, found.bears) == ("mixed", False)
    assert "undetermined" in found.reasons
    assert found.measured == pytest.approx(100 / 9.9)


@pytest.mark.parametrize(("apart", "verdict"), [(1e-14, "holds"), (1e-9, "fails")])
def test_what_rounding_explains_is_no_difference(book, apart, verdict):
    config = {"folds": 50, "workers": 16}
    with book.store.begin(config) as writer:
        writer.finish("done", {"largest_difference": apart, "largest_move": 0.4})
    found = claims.equivalence(SUBJECT, {"equivalence": [book.store.load(writer.hash)] * 3})
    assert (found.here, found.measured) == (verdict, apart)
    assert found.runs == (writer.hash,)


def test_a_table_shows_the_last_pass_beside_what_the_paper_prints(book):
    runs = book.runs(sgd_1=0.2, sgd_16=0.4, ng_1=0.2, ng_16=0.22)
    rows = exhibits.table6(SUBJECT, runs).rows
    cells = {(row.label, row.column): (row.measured, row.paper) for row in rows}
    assert cells["SGD", "SWB, 16 GPUs"] == (pytest.approx(40.0), 16.3)
    assert cells["NG-SGD", "CallHome, 1 GPU"] == (pytest.approx(20.0), 26.8)
    assert cells["NG-SGD", f"{errors.ALL}, 16 GPUs"] == (pytest.approx(22.0), None)


def test_every_table_has_the_papers_rows_and_a_figure_for_each(book):
    makers = [m for m in exhibits.EXHIBITS if m.id.startswith("p2.table")]
    names = {name for maker in makers for name in maker.needs}
    timed = book.timed(**{name: 100.0 for name in names if name.startswith("timing")})
    runs = {**book.runs(**dict.fromkeys(names - timed.keys(), 0.2)), **timed}
    for maker in makers:
        rows = maker.make(SUBJECT, runs).rows
        assert all(row.measured is not None and row.runs for row in rows)
        assert len({(row.label, row.column) for row in rows}) == len(rows)
    table = exhibits.table1(SUBJECT, runs)
    printed = {(row.label, row.column): row.paper for row in table.rows}
    assert (printed["SWB", "8 GPUs"], printed["CallHome", "2 GPUs"]) == (15.1, None)
