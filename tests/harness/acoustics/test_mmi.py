import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from harness.acoustics.decoder import EVERYTHING, Beam
from harness.acoustics.language_model import Lexicon, train
from harness.acoustics.mmi import (
    Auxiliary,
    Criterion,
    References,
    SequenceCriterion,
    _weigh_frames,
)
from harness.acoustics.sums import occupancies
from harness.base.errors import UserError
from harness.base.seeds import stream
from harness.networks.feedforward import Dnn, Layout, random_parameters

EXACT = Criterion("mmi", 1.0, "graph", EVERYTHING, "sum", reject_below=0.0, cancel_below=0.0)
BOTH_WAYS = [EXACT, replace(EXACT, denominator="lattice")]
KINDS = ("mmi", "numerator")


@pytest.fixture(params=[(), (0, 1)], ids=["without silence", "with silence"])
def tiny(request, task_of):
    """A unigram task with every path written down, a reference it can say, and its criteria."""
    task = task_of(1, request.param, 5)
    return task, ("b", "a"), References(task.model, task.lexicon)


def criterion_of(references, criterion, n_targets=6):
    return SequenceCriterion(criterion, references, np.zeros(n_targets))


def random_references(words=20, n_targets=10):
    draw = stream(5, "sequence task")
    names = [f"w{i:02d}" for i in range(words)]
    text = [tuple(draw.choice(names, 5).tolist()) for _ in range(100)]
    chains = {w: (tuple(draw.integers(1, n_targets, 4).tolist()),) for w in names}
    lexicon = Lexicon(chains, (0,), stay=np.full(n_targets, 0.6))
    return References(train(text, 1, vocabulary=names), lexicon)


REFERENCES = random_references()
SAID, SHORT = ("w03", "w11", "w07"), ("w03", "w11")


def spoken(references, said, n_targets=10, noise=1.2, seed=0):
    """Log posteriors of a sentence said through noise, three frames a state."""
    path = np.repeat([s for w in said for s in references.lexicon.words[w][0]], 3)
    scores = noise * stream(seed, "spoken").normal(size=(len(path), n_targets))
    scores[np.arange(len(path)), path] += 3.0
    return scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)


def enumerated(kind, paths, reference):
    """A criterion's value by its definition, from all paths."""
    numerator = np.logaddexp.reduce([p.weight for p in paths if p.words == reference])
    if kind == "numerator":
        return float(numerator)
    return float(numerator - np.logaddexp.reduce([p.weight for p in paths]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("exact", BOTH_WAYS, ids=lambda c: c.denominator)
def test_values_are_those_of_the_definition_summed_over_all_paths(tiny, exact, kind):
    task, said, references = tiny
    criterion = criterion_of(references, replace(exact, kind=kind))
    expected = enumerated(kind, task.paths, said)
    assert criterion.outer(task.scores, said).value == pytest.approx(expected, abs=1e-11)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("exact", BOTH_WAYS, ids=lambda c: c.denominator)
@pytest.mark.parametrize("numerator", ["alignment", "sum"])
def test_the_outer_gradient_is_the_slope_of_the_value(tiny, exact, kind, numerator):
    task, said, references = tiny
    criterion = criterion_of(references, replace(exact, kind=kind, kappa=0.7, numerator=numerator))
    found = criterion.outer(task.scores, said)
    for t, s in np.ndindex(*task.scores.shape):
        step = np.zeros_like(task.scores)
        step[t, s] = 1e-5
        up, down = (criterion.outer(task.scores + d, said).value for d in (step, -step))
        assert (up - down) / 2e-5 == pytest.approx(found.gradient[t, s], abs=1e-8)


def test_the_alignment_is_the_heaviest_path_that_says_the_reference(tiny):
    task, said, references = tiny
    best = max((p for p in task.paths if p.words == said), key=lambda p: p.weight)
    found = references.align(said, task.scores)
    assert found.targets.tolist() == list(best.targets)
    assert found.log_weight(task.scores) == pytest.approx(best.weight, abs=1e-12)


@pytest.mark.parametrize("numerator", ["alignment", "sum"])
def test_an_infinite_beam_gives_the_whole_graphs_gradient(numerator):
    log_posteriors = spoken(REFERENCES, SAID)
    graph, lattice = (
        criterion_of(REFERENCES, replace(c, numerator=numerator, kappa=0.5), 10) for c in BOTH_WAYS
    )
    whole, wide = graph.outer(log_posteriors, SAID), lattice.outer(log_posteriors, SAID)
    assert wide.value == pytest.approx(whole.value, abs=1e-9)
    np.testing.assert_allclose(wide.gradient, whole.gradient, atol=1e-10)


def test_every_row_sums_to_nothing_and_rows_left_out_are_zero():
    criterion = criterion_of(REFERENCES, Criterion("mmi", 0.5, "lattice", Beam(8.0)), 10)
    found = criterion.outer(spoken(REFERENCES, SAID, noise=2.0), SAID)
    assert found.trouble is None
    assert found.used > 0
    assert found.used + found.rejected + found.cancelled == found.frames
    np.testing.assert_allclose(found.gradient.sum(axis=1), 0.0, atol=1e-12)
    assert not found.gradient[~found.kept].any()
    assert found.gradient[found.kept].any(axis=1).all()


def test_rows_of_the_numerator_alone_sum_to_kappa():
    criterion = Criterion("numerator", 0.4)
    found = criterion_of(REFERENCES, criterion, 10).outer(spoken(REFERENCES, SHORT), SHORT)
    np.testing.assert_allclose(found.gradient.sum(axis=1), criterion.mass, atol=1e-12)
    assert Criterion("mmi", 0.4).mass == 0.0


@pytest.mark.parametrize("numerator", ["alignment", "sum"])
@pytest.mark.parametrize("beam", [None, Beam(3.0, 40, 1.0), Beam(6.0, 100, 4.0), EVERYTHING])
def test_with_matched_graphs_the_criterion_is_never_above_zero(numerator, beam):
    settings = Criterion("mmi", 0.5, "lattice" if beam else "graph", beam or Beam(), numerator)
    for seed in range(6):
        said = tuple(stream(seed, "said").choice(REFERENCES.loop.words, 3).tolist())
        found = criterion_of(REFERENCES, settings, 10).outer(
            spoken(REFERENCES, said, noise=2.5, seed=seed), said
        )
        assert found.value <= 1e-9 or found.trouble in ("lost", "no end")


def test_frames_are_rejected_where_the_denominator_denies_the_numerator():
    num = np.array([[1.0, 0, 0], [1, 0, 0], [0.6, 0.4, 0], [0.4, 0.6, 0]])
    den = np.array([[1e-3, 0.9, 0], [9e-4, 0.9, 0], [9e-4, 0.9, 0], [9e-4, 0.9, 0]])
    gradient, rejected, alive = _weigh_frames(num, den, 1e-3, 0.0, 0.5)
    assert rejected.tolist() == [False, True, True, False]
    assert alive.all()
    np.testing.assert_array_equal(gradient, 0.5 * (num - den) * ~rejected[:, None])
    assert not _weigh_frames(num, den, 0.0, 0.0, 0.5)[1].any()


def test_rejection_and_cancellation_follow_their_definitions_and_are_counted_apart():
    log_posteriors = spoken(REFERENCES, SAID, noise=1.8)
    rules = replace(EXACT, kappa=0.8)
    plain = criterion_of(REFERENCES, rules, 10)
    found = plain.outer(log_posteriors, SAID)
    gamma_num = occupancies(REFERENCES.graph(SAID), plain.scores(log_posteriors))[1]
    gamma_den = gamma_num - found.gradient / 0.8
    rejected = (gamma_num * (gamma_den >= 0.3)).sum(axis=1) < 0.5
    small = np.abs(gamma_num - gamma_den).sum(axis=1) < 0.1
    assert rejected.any()
    assert (small & ~rejected).any()
    ruled = criterion_of(REFERENCES, replace(rules, reject_below=0.3, cancel_below=0.1), 10)
    kept = ruled.outer(log_posteriors, SAID)
    assert kept.kept.tolist() == (~rejected & ~small).tolist()
    assert (kept.rejected, kept.cancelled) == (rejected.sum(), (small & ~rejected).sum())
    np.testing.assert_array_equal(kept.gradient[kept.kept], found.gradient[kept.kept])
    assert kept.value == found.value


@pytest.fixture(scope="module")
def losing():
    """Speech whose narrow lattice does not hold what is claimed to have been said."""
    return REFERENCES, spoken(REFERENCES, ("w03", "w11", "w07")), ("w04", "w12", "w05")


@pytest.mark.parametrize("numerator", ["alignment", "sum"])
def test_a_reference_lost_by_the_lattice_is_named_and_its_denied_frames_rejected(losing, numerator):
    references, log_posteriors, said = losing
    rule = Criterion("mmi", 0.5, "lattice", Beam(5.0, 1000, 2.0), numerator)
    found = criterion_of(references, rule, 10).outer(log_posteriors, said)
    assert found.trouble == "lost"
    assert found.rejected > found.frames / 2


@pytest.mark.parametrize("denominator", ["graph", "lattice"])
@pytest.mark.parametrize("numerator", ["alignment", "sum"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_trained_on_is_named_and_changes_nothing(kind, numerator, denominator):
    criterion = criterion_of(REFERENCES, Criterion(kind, 0.5, denominator, numerator=numerator), 10)
    good = spoken(REFERENCES, ("w03", "w11"))
    nan, infinite, gone = good.copy(), good.copy(), good.copy()
    nan[3, 2], infinite[3, 2], gone[3] = math.nan, math.inf, -math.inf
    cases = [
        (good[:0], ("w03",), "no frames"), (nan, ("w03",), "not finite"),
        (infinite, ("w03",), "not finite"), (gone, ("w03",), "not finite"),
        (good, ("w03", "nobody"), "out of lexicon"), (good[:7], ("w03", "w11"), "unreachable"),
        (good[:1], ("w03",), "unreachable"),
    ]  # fmt: skip
    for log_posteriors, said, trouble in cases:
        found = criterion.outer(log_posteriors, said)
        assert found.trouble == trouble
        assert math.isnan(found.value)
        assert found.gradient.shape == log_posteriors.shape
        assert not found.gradient.any()
        assert not found.kept.any()
        assert criterion.align(log_posteriors, said) is None


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("denominator", ["graph", "lattice"])
@pytest.mark.parametrize("numerator", ["alignment", "sum"])
@pytest.mark.parametrize("most", [1e308, -1e308])
def test_scores_whose_sums_are_no_numbers_are_named_and_change_nothing(
    numerator, denominator, most
):
    criterion = criterion_of(
        REFERENCES, Criterion("mmi", 1.0, denominator, numerator=numerator), 10
    )
    huge = np.full((40, 10), most)
    found = criterion.outer(huge, ("w03", "w11"))
    # Where even the numerator or a search is beyond all numbers, that is what is told.
    first = "not finite" if denominator == "graph" else "no end"
    assert found.trouble == (first if most > 0 else "unreachable")
    assert math.isnan(found.value)
    assert not found.gradient.any()
    assert not found.kept.any()


def test_one_frame_is_enough_for_a_word_of_one_state():
    references = References(train([("a",), ("b",)], 1), Lexicon({"a": ((0,),), "b": ((1,),)}))
    criterion = criterion_of(references, Criterion(kappa=1.0), 2)
    found = criterion.outer(np.log([[0.25, 0.75]]), ("a",))
    assert found.value == pytest.approx(math.log(0.25), abs=1e-12)
    np.testing.assert_allclose(found.gradient, [[0.75, -0.75]], atol=1e-12)
    assert found.trouble is None


def test_a_search_that_reaches_no_end_is_named():
    # A word of 30 states, said 30 frames long, and one of 31 that the beam alone follows.
    lexicon = Lexicon({"a": (tuple(range(30)),), "b": ((*range(29), 30, 30),)})
    references = References(train([("a",), ("b",)], 1), lexicon)
    log_posteriors = np.full((30, 31), -20.0)
    log_posteriors[np.arange(30), [*range(29), 30]] = 0.0
    criterion = Criterion("mmi", 1.0, "lattice", Beam(5.0, 100, 2.0), "sum")
    found = criterion_of(references, criterion, 31).outer(log_posteriors, ("a",))
    assert (found.trouble, found.used) == ("no end", 0)


def test_an_utterance_of_which_every_frame_cancels_is_named():
    references = References(train([("a",)], 1), Lexicon({"a": ((0,),)}, stay=np.full(2, 0.5)))
    narrow = replace(Criterion(kappa=1.0, numerator="sum"), cancel_below=2.0)
    found = criterion_of(references, narrow, 2).outer(np.log([[0.5, 0.5]] * 4), ("a",) * 4)
    assert (found.trouble, found.cancelled) == ("nothing kept", 4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_through_the_whole_net_equals_finite_differences(kind):
    net = Dnn(Layout((4, 7, 6, 10)), "sigmoid")
    draw = torch.Generator().manual_seed(3)
    theta = random_parameters(net.layout, draw, 2.0).double()
    x = torch.randn(30, 4, generator=draw, dtype=torch.float64)
    settings = replace(EXACT, kind=kind, kappa=0.6)
    criterion = criterion_of(REFERENCES, settings, 10)

    def log_posteriors(stack):
        return torch.log_softmax(net.logits(stack, x)[0], 1)

    def value(stack):
        return criterion.outer(log_posteriors(stack).numpy(), SHORT).value

    outer = torch.from_numpy(criterion.outer(log_posteriors(theta).numpy(), SHORT).gradient)
    leaf = theta.clone().requires_grad_(True)
    logits = net.logits(leaf, x)
    # Uphill at the logits: o minus its mass times the softmax.
    logits.backward((outer - settings.mass * torch.softmax(logits[0], 1).detach()).unsqueeze(0))
    for i in range(0, net.layout.parameters, 17):
        step = torch.zeros_like(theta)
        step[0, i] = 1e-5
        slope = (value(theta + step) - value(theta - step)) / 2e-5
        assert slope == pytest.approx(leaf.grad[0, i].item(), abs=2e-8)


@pytest.mark.parametrize("exact", BOTH_WAYS, ids=lambda c: c.denominator)
@pytest.mark.parametrize("kind", KINDS)
def test_the_auxiliary_function_touches_the_criterion_in_value_and_slope(exact, kind):
    criterion = criterion_of(REFERENCES, replace(exact, kind=kind, kappa=0.5), 10)
    here = spoken(REFERENCES, SHORT)
    outer = criterion.outer(here, SHORT)
    tangent = Auxiliary(outer, here)
    assert tangent.value(here) == outer.value
    direction = stream(0, "direction").normal(size=here.shape)
    ahead, behind = here + 1e-5 * direction, here - 1e-5 * direction
    slope = (criterion.outer(ahead, SHORT).value - criterion.outer(behind, SHORT).value) / 2e-5
    along = (tangent.value(ahead) - tangent.value(behind)) / 2e-5
    assert along == pytest.approx(slope, abs=1e-7)
    assert along == pytest.approx(float((tangent.outer.gradient * direction).sum()), abs=1e-8)


@pytest.mark.parametrize("exact", BOTH_WAYS, ids=lambda c: c.denominator)
def test_paths_found_before_are_summed_with_the_scores_of_now(exact):
    criterion = criterion_of(REFERENCES, replace(exact, kappa=0.5), 10)
    before, now = (spoken(REFERENCES, SAID, seed=seed) for seed in (0, 1))
    held = criterion.outer(now, SAID, paths=criterion.search(before))
    anew = criterion.outer(now, SAID)
    # Of all paths, which are the same wherever they were found.
    assert held.value == pytest.approx(anew.value, abs=1e-9)
    np.testing.assert_allclose(held.gradient, anew.gradient, atol=1e-10)


def test_over_the_paths_it_was_made_from_a_narrow_lattices_gradient_is_the_values_slope():
    """Searched for anew at each point, the sum jumps where a path enters or leaves."""
    narrow = Criterion("mmi", 0.5, "lattice", Beam(5.0, 60, 2.0), "sum", 0.0, 0.0)
    criterion = criterion_of(REFERENCES, narrow, 10)
    here = spoken(REFERENCES, SHORT, noise=2.0)
    paths, outer = criterion.search(here), criterion.outer(here, SHORT)
    assert criterion.outer(here, SHORT, paths=paths).value == outer.value
    direction = stream(0, "direction").normal(size=here.shape)

    def value(step, held):
        return criterion.outer(here + step * direction, SHORT, paths=held).value

    along = float((outer.gradient * direction).sum())
    slope = (value(1e-5, paths) - value(-1e-5, paths)) / 2e-5
    assert slope == pytest.approx(along, abs=1e-7)
    assert abs(value(0.5, None) - value(0.5, paths)) > 1e-3


@pytest.mark.parametrize(
    ("key", "value"),
    [("kind", "mmie"), ("denominator", "latice"), ("numerator", "best"),
     ("kappa", 0.0), ("kappa", math.nan), ("reject_below", -1.0), ("cancel_below", math.inf)],
)  # fmt: skip
def test_a_setting_that_cannot_be_is_refused_by_name(key, value):
    with pytest.raises(UserError, match=key):
        replace(Criterion(), **{key: value})


def test_scores_are_kappa_times_posteriors_over_priors(tiny):
    task, reference, references = tiny
    posteriors = stream(3, "posteriors").dirichlet(np.ones(6), size=len(task.scores))
    priors = stream(3, "priors").dirichlet(np.ones(6))
    scaled = replace(EXACT, kappa=0.3)
    criterion = SequenceCriterion(scaled, references, np.log(priors))
    found = criterion.scores(np.log(posteriors))
    np.testing.assert_allclose(np.exp(found), (posteriors / priors) ** 0.3, rtol=1e-12)
    # Dividing by priors before or inside the criterion is one thing.
    inside = criterion.outer(np.log(posteriors), reference)
    before = criterion_of(references, scaled).outer(np.log(posteriors / priors), reference)
    assert inside.value == pytest.approx(before.value, rel=1e-12)
    np.testing.assert_allclose(inside.gradient, before.gradient, atol=1e-12)
