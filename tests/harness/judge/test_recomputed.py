"""Published intervals and verdicts come out of their seeds' values by other code."""

import ast
import copy
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from harness.judge.claims import Rule
from harness.judge.scaling import Size, follow
from harness.judge.statistics import ratio_ci
from tests.harness.judge import recompute

ROOT = Path(__file__).parents[3]
PUBLISHED = sorted((ROOT / "reports/published").glob("*/*/results.json"))


@pytest.fixture(scope="module")
def overnight():
    return json.loads((ROOT / "reports/published/paper3/overnight/results.json").read_text())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: "-".join(path.parts[-3:-1]))
def test_a_published_report_comes_out_again(path):
    results = json.loads(path.read_text())
    assert recompute.differences_of(results) == []
    seeded = [row for _, row in recompute.entries_of(results) if row.get("sample") is not None]
    assert len(seeded) > 100


def test_the_oracle_imports_nothing_of_the_project():
    tree = ast.parse(Path(recompute.__file__).read_text())
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])
    assert names.isdisjoint({"harness", "lagbench", "reports", "reproductions", "data_synth"})


def claim_and_part(results):
    """A claim that holds by one part's mean, or fails."""
    for claim in results["claims"]:
        for part in claim["parts"]:
            sample = part["sample"]
            if part["here"] in ("holds", "fails") and sample and sample["statistic"] == "mean":
                return claim, part
    raise AssertionError("no such claim")


def test_another_value_of_a_seed_is_noticed(overnight):
    changed = copy.deepcopy(overnight)
    claim, part = claim_and_part(changed)
    part["sample"]["values"][0][0] *= 1.001
    lines = recompute.differences_of(changed)
    assert lines
    assert all(line.startswith(claim["id"]) for line in lines)


def test_a_band_on_the_other_side_is_noticed(overnight):
    changed = copy.deepcopy(overnight)
    claim, part = claim_and_part(changed)
    far = part["ci95"][1] + 1.0
    part["band"] = [far, None] if part["here"] == "holds" else [None, far]
    assert any(f"{claim['id']}: here" in line for line in recompute.differences_of(changed))


@pytest.mark.parametrize("answer", ["holds", "fails"])
def test_a_condition_that_fails_takes_the_bearing_of_either_answer(overnight, answer):
    changed = copy.deepcopy(overnight)
    claim = next(c for c in changed["claims"] if c["here"] == answer and c["bears"])
    unmet = {"what": "planted", "measured": 1.0, "band": [2.0, None], "holds": False}
    claim["conditions"].append(unmet)
    lines = recompute.differences_of(changed)
    assert f"{claim['id']}: bears False, published True" in lines
    assert any(f"{claim['id']}: verdict {answer} here" in line for line in lines)


SIZES = (1.0, 3.0, 10.0, 30.0, 100.0)


def curve_of(band, sizes=SIZES):
    """An exhibit of a curve over sizes, as a file has it: 0.05 above 1 far out, with scatter."""
    rng = np.random.default_rng(5)
    run = []
    for place, at in enumerate(sizes):
        under = 10.0 + rng.normal(size=6 - place // 2)
        over = under * (1.05 + at**-0.6) * np.exp(0.02 * rng.normal(size=len(under)))
        run.append(Size(at, tuple(range(len(under))), tuple(zip(over, under, strict=True))))
    trend = follow("clean", run, (500.0, 1.03), Rule(*band))
    rows = [
        {
            "label": "clean",
            "column": size.at,
            "sample": asdict(ratio_ci(*np.array(size.pairs).T).sample),
        }
        for size in run
    ]
    curve = {"trends": [asdict(trend)], "band": band, "missing": {}, "paper_size": 500.0}
    return json.loads(json.dumps({"id": "p9.scaling", "rows": rows, "curve": curve}))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("band", [(1.0, 1.3), (1.0, 1.02), (1.02, 1.06)])
@pytest.mark.parametrize("sizes", [SIZES, SIZES[:3]])
def test_a_curve_over_scale_comes_out_again(band, sizes):
    exhibit = curve_of(band, sizes)
    assert len(exhibit["curve"]["trends"][0]["laws"]) == 2
    assert recompute.curve_differences_of(exhibit) == []


@pytest.mark.nightly
def test_a_changed_word_law_or_size_of_a_curve_is_noticed():
    band = (1.0, 1.3)
    exhibit = curve_of(band)
    (trend,) = exhibit["curve"]["trends"]
    assert trend["word"] == "in the band"
    trend["word"] = "outside"
    assert recompute.curve_differences_of(exhibit) == [
        "p9.scaling: clean: in the band, published outside"
    ]
    exhibit = curve_of(band)
    exhibit["rows"][-1]["sample"]["values"][0][0] *= 1.05
    assert len(recompute.curve_differences_of(exhibit)) >= 2
    exhibit = curve_of(band)
    (_, law) = exhibit["curve"]["trends"][0]["laws"]
    law["ci95"][1] += 0.5 * (law["ci95"][1] - law["ci95"][0])
    law["held_out"]["holds"] = not law["held_out"]["holds"]
    told = recompute.curve_differences_of(exhibit)
    assert ["interval" in line or "of draws" in line for line in told[:2]] == [True, True]
    exhibit = curve_of(band)
    exhibit["curve"]["missing"] = {"100": 2}
    assert recompute.curve_differences_of(exhibit) == [
        "p9.scaling: clean: unclear, published in the band"
    ]
