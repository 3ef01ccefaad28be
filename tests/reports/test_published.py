"""What a fresh clone needs to build the published reports again."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.judge import read_results
from reports import listing, reasons
from reports.provenance import cited_runs

FOLDERS = sorted(Path("reports/published").glob("*/*/"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: "-".join(folder.parts[-2:]))
def test_runs_reasons_and_timelines_are_published_with_the_results(folder):
    results = read_results(folder / "results.json")
    found = {line.hash for line in listing.from_csv(folder / listing.NAME)}
    assert cited_runs(results) <= found
    to_explain = {claim.id for claim in results.claims if claim.verdict in reasons.NEEDS_REASON}
    assert reasons.given(folder, results).keys() == to_explain
    for exhibit in results.exhibits:
        assert "file" not in exhibit.draw or (folder / exhibit.draw["file"]).is_file()
