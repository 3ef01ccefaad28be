"""Published intervals and verdicts come out of their seeds' values by other code."""

from __future__ import annotations

import ast
import copy
import json
from pathlib import Path

import pytest

from tests.harness.judge import recompute

ROOT = Path(__file__).parents[3]
PUBLISHED = sorted((ROOT / "reports/published").glob("*/*/results.json"))


@pytest.fixture(scope="module")
def overnight():
    return json.loads((ROOT / "reports/published/paper3/overnight/results.json").read_text())


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
