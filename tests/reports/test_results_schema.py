import json
from pathlib import Path

import jsonschema
import pytest

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs/results.schema.json").read_text(encoding="utf-8"))
PUBLISHED = sorted((ROOT / "reports/published").glob("*/*/results.json"))
checker = jsonschema.Draft202012Validator(SCHEMA)


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.parts[-3])
def test_every_published_result_is_as_the_schema_says(path):
    checker.validate(json.loads(path.read_text(encoding="utf-8")))


def test_what_is_made_today_is_as_the_schema_says(built):
    checker.validate(json.loads((built / "results.json").read_text(encoding="utf-8")))


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seeds", [0.5]), ("schema", 3), ("claims", [{"id": "p1.x"}]), ("paper", None),
        ("unheard", 1),
    ],
)  # fmt: skip
def test_what_no_result_may_be_is_refused(built, key, value):
    told = json.loads((built / "results.json").read_text(encoding="utf-8"))
    assert not checker.is_valid(told | {key: value})


def test_a_verdict_that_does_not_exist_and_an_interval_of_one_end_are_refused(built):
    told = json.loads((built / "results.json").read_text(encoding="utf-8"))
    for wrong in ({"verdict": "confirmed"}, {"ci95": [0.1]}, {"ci95": [0.1, 0.2, 0.3]}):
        claims = [{**told["claims"][0], **wrong}, *told["claims"][1:]]
        assert not checker.is_valid(told | {"claims": claims})
