"""Intervals and verdicts of a `results.json`, computed again from the values of its seeds.

    python -m tests.harness.judge.recompute reports/published/*/*/results.json

This is an oracle: it imports nothing of the project, follows docs/design/judging.md and uses
scipy's distributions. A file's own intervals and answers are only compared with. Taken from the
file are values without seeds (exact ones, and those of a diverged run), values of conditions, and
the power of an unclear claim, since the file does not have what they are computed from. Of curves
over scale the laws, their checks on the largest size and the words are computed again; intervals of
laws from other draws, so their ends agree up to a share of the draws (`APART`).

Fieller's interval is found by inverting the test of mean(a − ρ b) = 0 numerically; the distribution
of rank correlations by going through all orders of the points.
"""

import itertools
import json
import math
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from scipy import optimize, stats

LEVEL, ALPHA, EVEN_CHANCE = 0.95, 0.05, 0.5
EXACT_POINTS = 7
DRAWS, EXPONENTS = 8000, 61
FEWEST, BOUND = 3, 1e-5
APART = 0.0125
"""Share of draws by which the ends of a law's interval may differ: four standard errors."""
LINE = (-math.inf, math.inf)
TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
WORDS = {
    ("holds", True): "reproduced",
    ("holds", False): "holds here",
    ("fails", True): "contradicted",
    ("fails", False): "fails here",
}


class Mean:
    """Student's interval of a linear combination of the columns' means over seeds."""

    def __init__(self, sample, weights=(1.0,)):
        values = np.asarray(sample["values"], float) @ np.asarray(weights, float)
        seeds, utterances = len(values), sample["utterances"]
        self.mean = float(np.mean(values))
        self.bounded = seeds > 1 and bool(np.isfinite(values).all()) and utterances != 1
        over_seeds = float(np.var(values, ddof=1)) / seeds if seeds > 1 else math.inf
        over_tests = 0.0
        if sample["tests"]:
            over_tests = max(float(weights @ np.asarray(sample["tests"], float) @ weights), 0.0)
        self.error = math.sqrt(over_seeds + over_tests)
        self.degrees = seeds - 1.0
        if over_tests:  # Satterthwaite
            lost = over_seeds**2 / (seeds - 1) + over_tests**2 / (utterances - 1)
            self.degrees = (over_seeds + over_tests) ** 2 / lost

    @property
    def interval(self):
        if not self.bounded:
            return LINE
        half = stats.t.ppf((1 + LEVEL) / 2, self.degrees) * self.error
        return self.mean - half, self.mean + half

    def p_at(self, end):
        """Two-sided p-value of the mean being ``end``."""
        if not self.bounded:
            return 1.0
        if self.error == 0.0:
            return float(self.mean == end)
        return 2 * float(stats.t.sf(abs(self.mean - end) / self.error, self.degrees))


class Ratio:
    """Ratio of two columns' means, with Fieller's interval."""

    def __init__(self, sample):
        self.sample = sample
        top, bottom = np.mean(np.asarray(sample["values"], float), axis=0)
        self.mean = float(top / bottom) if bottom else math.nan
        self.at_estimate = Mean(sample, np.array([1.0, -self.mean]))
        self.bounded = self.at_estimate.bounded and math.isfinite(self.mean)
        if self.bounded:
            self.limit = float(stats.t.ppf((1 + LEVEL) / 2, self.at_estimate.degrees))
            below = Mean(sample, np.array([0.0, 1.0]))
            # If the denominator may be zero, no ratio is far enough away to be rejected.
            self.bounded = abs(below.mean) > self.limit * below.error

    def errors_at(self, ratio):
        """Mean of a − ρ b in its standard errors; its sign is that of the estimate − ρ."""
        found = Mean(self.sample, np.array([1.0, -ratio]))
        if found.error == 0.0:
            return math.copysign(math.inf, found.mean) if found.mean else 0.0
        return found.mean / found.error

    @property
    def interval(self):
        if not self.bounded:
            return LINE
        if self.at_estimate.error < 1e-12 * abs(self.mean):
            return self.mean, self.mean
        return tuple(sorted((self._edge(-1.0), self._edge(1.0))))

    def _edge(self, side):
        def beyond(ratio):
            return abs(self.errors_at(ratio)) - self.limit

        step = max(abs(self.mean), 1.0) * 1e-6
        while beyond(self.mean + side * step) < 0:
            step *= 2
        near = self.mean + side * step / 2 if step > 2e-6 * max(abs(self.mean), 1.0) else self.mean
        return optimize.brentq(beyond, near, self.mean + side * step, xtol=1e-15, rtol=1e-14)

    def p_at(self, end):
        if not self.bounded:
            return 1.0
        if self.at_estimate.error == 0.0:  # the same ratio in every seed: exact, as a mean is
            return float(self.mean == end)
        found = self.errors_at(end)
        if math.isinf(found):
            return 0.0
        return 2 * float(stats.t.sf(abs(found), self.at_estimate.degrees))


class Bounds:
    """A mean of values between two columns: from the least one's interval to the largest one's."""

    def __init__(self, sample):
        values = np.asarray(sample["values"], float)
        self.columns = [
            Mean({**sample, "values": values[:, [place]], "tests": ()}) for place in (0, 1)
        ]
        middle = (self.columns[0].mean + self.columns[1].mean) / 2
        self.mean = middle if math.isfinite(middle) else math.nan
        self.degrees = min(column.degrees for column in self.columns)

    @property
    def interval(self):
        return self.columns[0].interval[0], self.columns[1].interval[1]

    def p_at(self, end):
        return _p_of_half_width(self.mean, self.interval, end, self.degrees)


class Rank:
    """Spearman's correlation with the settings, averaged over seeds; chance orders the points."""

    def __init__(self, sample):
        values = np.asarray(sample["values"], float)
        self.seeds, self.points = values.shape
        each = [stats.spearmanr(sample["at"], row).statistic for row in values]
        self.mean = float(np.mean(np.nan_to_num(each)))

    @property
    def interval(self):
        if self.seeds < 2:
            return LINE
        half = self._half_width()
        return max(self.mean - half, -1.0), min(self.mean + half, 1.0)

    def _half_width(self):
        if self.points > EXACT_POINTS:
            spread = stats.norm.ppf((1 + LEVEL) / 2) / math.sqrt(self.seeds * (self.points - 1))
            return min(1.0, float(spread))
        order = range(self.points)
        one = defaultdict(float)
        for turned in itertools.permutations(order):
            one[sum((a - b) ** 2 for a, b in zip(order, turned, strict=True))] += 1.0
        many = {0: 1.0}
        for _ in range(self.seeds):
            more = defaultdict(float)
            for (a, x), (b, y) in itertools.product(many.items(), one.items()):
                more[a + b] += x * y
            many = more
        whole = self.points * (self.points**2 - 1)
        chance = defaultdict(float)
        for distance, count in many.items():
            chance[abs(self.seeds * whole - 6 * distance)] += count
        outside = 0.0
        for size in sorted(chance, reverse=True):
            outside += chance[size]
            if outside > ALPHA * sum(many.values()) * (1 + 1e-12):
                return size / whole / self.seeds
        raise AssertionError("chance has no centre")

    def p_at(self, end):
        return _p_of_half_width(self.mean, self.interval, end, math.inf)


class Known:
    """A value without seeds: the interval is the file's."""

    def __init__(self, part):
        self.mean = math.nan if part["measured"] is None else part["measured"]
        self.interval = _ends(part["ci95"])

    def p_at(self, end):
        if math.isinf(self.interval[0]) or math.isinf(self.interval[1]):
            return 1.0
        if self.interval[0] == self.interval[1]:
            return float(self.mean == end)
        return _p_of_half_width(self.mean, self.interval, end, math.inf)


def _p_of_half_width(mean, interval, end, degrees):
    """P-value where the half width towards ``end`` is that of an interval of Student's t."""
    if math.isnan(mean):
        return 1.0
    half = mean - interval[0] if end < mean else interval[1] - mean
    if math.isinf(half):
        return 1.0
    if half == 0.0:
        return float(mean == end)
    shape = stats.norm if math.isinf(degrees) else stats.t(degrees)
    return 2 * float(shape.sf(abs(mean - end) / half * shape.ppf((1 + LEVEL) / 2)))


KINDS = {"mean": Mean, "ratio": Ratio, "bounds": Bounds, "rank correlation": Rank}


def value_of(entry):
    """The value of a part or a row, from its seeds if the file has them."""
    sample = entry.get("sample")
    return Known(entry) if sample is None else KINDS[sample["statistic"]](sample)


def _ends(pair):
    """An interval or a band, whose open ends are null in the file."""
    if pair is None:
        return LINE
    low, high = pair
    return -math.inf if low is None else low, math.inf if high is None else high


def lies_in(value, band):
    """Whether a value lies in a band; zero as the only end is a direction, and outside."""
    low, high = band
    if band in ((0.0, math.inf), (-math.inf, 0.0)):
        return low < value < high
    return low <= value <= high


def answer_of(interval, band):
    """The first answer of one quantity."""
    if lies_in(interval[0], band) and lies_in(interval[1], band):
        return "holds"
    outside = interval[1] < band[0] or interval[0] > band[1]
    return "fails" if outside else "unclear"


def p_values_of(value, band):
    """P-values of two hypotheses: the quantity lies outside of the band, and in it."""
    if math.isnan(value.mean):
        found = answer_of(value.interval, band)
        return (ALPHA if found == "holds" else 1.0), (ALPHA if found == "fails" else 1.0)
    outside, inside = 0.0, 1.0
    for end, inwards in ((band[0], 1.0), (band[1], -1.0)):
        if math.isinf(end):
            continue
        away = inwards * (value.mean - end)
        p = value.p_at(end)
        if value.interval[0] == value.interval[1] and value.mean == end:
            p = float(not lies_in(end, band))
            outside = max(outside, p)
            continue
        outside = max(outside, p if away >= 0 else 1.0)
        inside = min(inside, p if away <= 0 else 1.0)
    return outside, inside


def correct(p_values):
    """Holm's correction."""
    corrected, largest = {}, 0.0
    for rank, place in enumerate(np.argsort(p_values, kind="stable")):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = largest
    return [corrected[place] for place in range(len(p_values))]


def judge(parts):
    """First answer of a claim, and its p-value."""
    measures = {}
    for part in parts:
        measures.setdefault(part["measure"], []).append(part)
    found = [judge_together(group) for group in measures.values()]
    if {"holds", "fails"} <= {here for here, _ in found}:
        return "mixed", max(p for here, p in found if here in ("holds", "fails"))
    return judge_together(parts)


def judge_together(parts):
    judged = [(value_of(part), _ends(part["band"])) for part in parts]
    ps = [p_values_of(value, band) for value, band in judged]
    against = correct([inside for _, inside in ps])
    answers = [answer_of(value.interval, band) for value, band in judged]
    failed = [
        answer == "fails" and (len(parts) == 1 or p <= ALPHA)
        for answer, p in zip(answers, against, strict=True)
    ]
    holding, failing = max(outside for outside, _ in ps), min(against)
    if any(failed):
        return "fails", failing
    if all(answer == "holds" for answer in answers):
        return "holds", holding
    return "unclear", min(holding, failing)


def bears_of(claim, here):
    """The second answer."""
    conditions = claim["conditions"]
    met = all(
        each["measured"] is not None and lies_in(each["measured"], _ends(each["band"]))
        for each in conditions
    )
    weak = here == "unclear" and claim["power"] is not None and claim["power"] < EVEN_CHANCE
    return not claim["undetermined"] and met and not weak


def recompute(results):
    """For each claim of a file its id, `here`, `bears`, `verdict`, `corrected` and p-value."""
    found = []
    for claim in results["claims"]:
        judged = [part for part in claim["parts"] if part["band"] is not None]
        here, p = judge(judged) if judged else (claim["here"], claim["p_value"])
        bears = bears_of(claim, here)
        verdict = WORDS.get((here, bears), here)
        fallible = p is not None and not claim["cannot_fail"]
        found.append({"id": claim["id"], "here": here, "bears": bears, "verdict": verdict})
        found[-1] |= {"p_value": p, "fallible": fallible}
    looks = results["provenance"].get("looks", 1)
    family = [claim for claim in found if claim["fallible"]]
    corrected = correct([min(1.0, looks * claim["p_value"]) for claim in family])
    for claim in found:
        claim["corrected"] = claim["here"]
    for claim, p in zip(family, corrected, strict=True):
        claim["corrected"] = claim["here"] if p <= ALPHA else "unclear"
    return found


def entries_of(results):
    """Rows of exhibits and parts of claims, each with a name."""
    for exhibit in results["exhibits"]:
        for row in exhibit["rows"]:
            yield f"{exhibit['id']}: {row['label']}, {row['column']}", row
    for claim in results["claims"]:
        for part in claim["parts"]:
            yield f"{claim['id']}: {part['label']}", part


def fit_law(name, sizes, ratios, weights):
    """Least squares of ``ratio = 1 + floor + factor n^-exponent``, and whether it is at a bound.

    None if sizes are too few.
    """
    has_floor = name == "power above a floor"
    if len(sizes) < 2 + has_floor:
        return None, True
    roots = np.sqrt(np.asarray(weights))
    distances = np.asarray(ratios) - 1.0

    def solve(exponent):
        columns = [np.asarray(sizes, float) ** -exponent, *[np.ones(len(sizes))] * has_floor]
        basis = np.stack(columns, axis=1) * roots[:, None]
        scale = np.linalg.norm(basis, axis=0)  # small powers of large sizes
        found = np.linalg.lstsq(basis / scale, distances * roots, rcond=None)[0] / scale
        if has_floor and found[1] <= 0.0:  # the best of what is allowed has none
            power = basis[:, 0]
            found = np.array([power @ (distances * roots) / (power @ power), 0.0])
        return float(np.sum((basis @ found - distances * roots) ** 2)), found

    tried = np.linspace(0.1 if has_floor else 0.0, 3.0, 301)
    best = int(np.argmin([solve(each)[0] for each in tried]))
    ends = tried[max(best - 1, 0)], tried[min(best + 1, len(tried) - 1)]
    exponent = optimize.minimize_scalar(
        lambda each: solve(each)[0], bounds=ends, method="bounded", options={"xatol": 1e-10}
    ).x
    found = [*solve(exponent)[1], 0.0]
    is_inside = tried[0] + BOUND < exponent < tried[-1] - BOUND and (found[1] > 0 or not has_floor)
    return (lambda size: 1.0 + found[1] + found[0] * size**-exponent), not is_inside


def draw_ratios(rows):
    """Ratios [D, K] of K sizes whose means scatter as Student's t; seeds are paired by place."""
    rng = np.random.default_rng(1)
    moves = rng.standard_normal((DRAWS, max(len(row["sample"]["values"]) for row in rows)))
    drawn = []
    for row in rows:
        pairs = np.asarray(row["sample"]["values"], float)
        seeds = len(pairs)
        errors = moves[:, :seeds] @ (pairs - pairs.mean(axis=0)) / math.sqrt(seeds * (seeds - 1))
        errors /= np.sqrt(rng.chisquare(seeds - 1, DRAWS) / (seeds - 1))[:, None]
        drawn.append(np.divide(*(pairs.mean(axis=0) + errors).T))
    return np.stack(drawn, axis=1)


def predict_draws(name, sizes, drawn, weights, at):
    """A law's value at a size for each drawn set of ratios, [D]."""
    has_floor, share = name == "power above a floor", np.asarray(weights) / np.sum(weights)
    relative, wanted = np.asarray(sizes, float) / at, drawn - 1.0

    def fit(exponents):
        """Misfit and value, [D], with exponents [D]; the power is 1 at the wanted size."""
        powers = relative ** -exponents[:, None]
        fits = []
        for is_centred in [True, False][1 - has_floor :]:
            middle, centre = ((share * of).sum(axis=1) * is_centred for of in (powers, wanted))
            apart, off = powers - middle[:, None], wanted - centre[:, None]
            factor = (share * apart * off).sum(axis=1) / (share * apart**2).sum(axis=1)
            misfit = (share * (off - factor[:, None] * apart) ** 2).sum(axis=1)
            fits.append((centre - factor * middle, misfit, 1.0 + factor * (1.0 - middle) + centre))
        floor, *free = fits[0]  # a floor below 0 is not allowed
        return [np.where(floor >= 0.0, a, b) for a, b in zip(free, fits[-1][1:], strict=True)]

    tried = np.linspace(0.1 if has_floor else 0.0, 3.0, EXPONENTS)
    best = np.argmin([fit(np.full(len(drawn), each))[0] for each in tried], axis=0)
    low, high = tried[np.maximum(best - 1, 0)], tried[np.minimum(best + 1, EXPONENTS - 1)]
    for _ in range(40):  # thirds
        left, right = low + (high - low) / 3, high - (high - low) / 3
        is_left = fit(left)[0] < fit(right)[0]
        low, high = np.where(is_left, low, left), np.where(is_left, right, high)
    return fit((low + high) / 2)[1]


def interval_differences_of(law, rows, weights, paper_size):
    """What of a law's intervals is not as other draws have it, in words."""
    sizes, drawn, held = [row["column"] for row in rows], draw_ratios(rows), law["held_out"]
    values = predict_draws(law["name"], sizes, drawn, weights, paper_size)
    if not is_interval_of(values, law["ci95"]):
        yield f"interval {np.quantile(values, TAILS)}, published {law['ci95']}"
    if held is None:
        return
    foretold = predict_draws(law["name"], sizes[:-1], drawn[:, :-1], weights[:-1], sizes[-1])
    if not is_interval_of(foretold, held["ci95"]):
        yield f"interval {np.quantile(foretold, TAILS)} held out, published {held['ci95']}"
    below = np.mean(drawn[:, -1] <= foretold)
    room = APART if held["holds"] else -APART
    if (TAILS[0] - room <= below <= TAILS[1] + room) != held["holds"]:
        yield f"measured below what is held out in {below:.3f} of draws, published {held['holds']}"


def is_interval_of(values, published):
    """Whether the ends of an interval are about the quantiles of draws."""
    if published is None or None in published:
        return not np.isfinite(values).all()
    return all(
        np.mean(values < end) - APART <= tail <= np.mean(values <= end) + APART
        for tail, end in zip(TAILS, published, strict=True)
    )


def curve_differences_of(exhibit, tolerance=1e-4):
    """Everything about an exhibit's curve over scale that comes out differently."""
    curve, lines = exhibit["curve"], []
    for trend in curve["trends"]:
        rows = [r for r in exhibit["rows"] if r["label"] == trend["label"] and r.get("sample")]
        if any(len(row["sample"]["values"]) < FEWEST for row in rows):
            lines.append(f"{exhibit['id']}: {trend['label']}: a size with fewer than three seeds")
            continue
        sizes = [row["column"] for row in rows]
        ratios = [value_of(row).mean for row in rows]
        weights = [
            len(row["sample"]["values"]) / ratio**2 for row, ratio in zip(rows, ratios, strict=True)
        ]
        misses = {}
        for law in trend["laws"]:
            where, held = f"{exhibit['id']}: {trend['label']}, {law['name']}", law["held_out"]
            found, is_at_bound = fit_law(law["name"], sizes, ratios, weights)
            shorter, _ = fit_law(law["name"], sizes[:-1], ratios[:-1], weights[:-1])
            value = found(curve["paper_size"])
            if is_at_bound != law["at_bound"]:
                lines.append(f"{where}: published as at its bound {law['at_bound']}")
            if not math.isclose(value, law["value"], rel_tol=tolerance):
                lines.append(f"{where}: {value}, published {law['value']}")
            if (shorter is None) != (held is None):
                lines.append(f"{where}: published as held out {held}")
            apart = interval_differences_of(law, rows, weights, curve["paper_size"])
            lines += [f"{where}: {told}" for told in apart]
            misses[law["name"]] = math.inf
            if shorter is not None and held is not None:
                predicted = shorter(sizes[-1])
                if not math.isclose(predicted, held["predicted"], rel_tol=tolerance):
                    lines.append(f"{where}: {predicted} held out, published {held['predicted']}")
                if predicted > 0:
                    misses[law["name"]] = abs(math.log2(ratios[-1] / predicted))
            if is_at_bound:
                del misses[law["name"]]
        chosen = min(misses, key=misses.get, default="")
        if chosen != trend["chosen"]:
            lines.append(f"{exhibit['id']}: {trend['label']}: {chosen} is nearer")
        word = word_of(trend, _ends(curve["band"]), bool(curve["missing"]))
        if word != trend["word"]:
            lines.append(f"{exhibit['id']}: {trend['label']}: {word}, published {trend['word']}")
    return lines


def word_of(trend, band, is_partial):
    """The word of a trend at the paper's size: of a law that predicted the size held out."""
    law = next((law for law in trend["laws"] if law["name"] == trend["chosen"]), None)
    held = None if law is None else law["held_out"]
    if is_partial or held is None or not held["holds"] or None in law["ci95"]:
        return "unclear"
    answer = answer_of(_ends(law["ci95"]), band)
    return {"holds": "in the band", "fails": "outside"}.get(answer, answer)


def differences_of(results, tolerance=1e-8):
    """Everything in a file that comes out differently, a line each."""
    lines = []
    for exhibit in results["exhibits"]:
        if exhibit.get("curve"):
            lines += curve_differences_of(exhibit)
    for name, entry in entries_of(results):
        if entry.get("sample") is None or entry["ci95"] is None:
            continue
        ours, theirs = value_of(entry).interval, _ends(entry["ci95"])
        close = np.allclose(ours, theirs, rtol=tolerance, atol=tolerance * 1e-3)
        if not close:
            lines.append(f"{name}: interval {ours}, published {theirs}")
    for ours, claim in zip(recompute(results), results["claims"], strict=True):
        if claim["parts"] and claim["ci95"] != claim["parts"][0]["ci95"]:
            lines.append(f"{claim['id']}: interval {claim['ci95']} is not that of its first part")
        for part in claim["parts"]:
            if part["band"] is not None:
                here = answer_of(value_of(part).interval, _ends(part["band"]))
                if here != part["here"]:
                    lines.append(
                        f"{claim['id']}: {part['label']}: {here}, published {part['here']}"
                    )
        for each in claim["conditions"]:
            known = each["measured"] is not None
            if (known and lies_in(each["measured"], _ends(each["band"]))) != each["holds"]:
                lines.append(f"{claim['id']}: {each['what']}: published as {each['holds']}")
        for key in ("here", "bears", "verdict", "corrected"):
            if ours[key] != claim[key]:
                lines.append(f"{claim['id']}: {key} {ours[key]}, published {claim[key]}")
        p = claim["p_value"]
        if p is not None and not math.isclose(ours["p_value"], p, rel_tol=1e-6, abs_tol=1e-9):
            lines.append(f"{claim['id']}: p-value {ours['p_value']}, published {p}")
    return lines


def main(paths):
    """Compare files with what comes out again; returns 0 if all is equal."""
    wrong = 0
    for path in map(Path, paths):
        results = json.loads(path.read_text(encoding="utf-8"))
        entries = [entry for _, entry in entries_of(results)]
        intervals = sum(entry.get("sample") is not None for entry in entries)
        lines = differences_of(results)
        wrong += len(lines)
        told = f"{intervals} intervals, {len(results['claims'])} claims"
        print(f"{path}: {told}: {'equal' if not lines else 'DIFFERENT'}")
        for line in lines:
            print(f"  {line}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
