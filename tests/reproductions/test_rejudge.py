"""A published report is judged anew from its kept runs, and each change of a verdict is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.judge.results import Claim
from reproductions.changes_after_runs import read_changes
from reproductions.rejudge import keep_verdict

OLD = Claim("p1.a", "", "", "", None, 1.0, (0.9, 1.1), "fails")
NEW = replace(OLD, here="holds")


def test_a_verdict_that_changes_without_a_declared_change_is_refused():
    with pytest.raises(UserError, match="was 'contradicted', is 'reproduced'"):
        keep_verdict(NEW, OLD, "")
    assert keep_verdict(OLD, OLD, "") == OLD


def test_a_changed_claim_keeps_the_verdicts_that_were_published_before():
    found = keep_verdict(NEW, OLD, "frames too")
    assert (found.before, found.changed_after_runs) == ("contradicted", "frames too")
    assert keep_verdict(NEW, found, "frames too") == found, "judged twice it is the same"
    third = keep_verdict(replace(OLD, here="mixed"), found, "words too")
    assert third.before == "contradicted, then reproduced"


def test_every_declared_change_is_of_a_claim_of_its_paper():
    files = sorted(Path("reproductions").glob("paper*/changes.toml"))
    assert files
    for path in files:
        text = (path.with_name("claims.py")).read_text(encoding="utf-8")
        for id_, what in read_changes(path.parent).items():
            assert f'"{id_}"' in text
            assert what
