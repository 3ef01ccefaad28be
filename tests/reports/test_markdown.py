from __future__ import annotations

from dataclasses import replace

from harness.judge import read_results
from reports.verdicts import verdict_table


def test_every_claim_and_part_has_a_row_of_nine_cells(built):
    results = read_results(built / "results.json")
    lines = verdict_table(results).splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 2 + len(results.claims) + sum(len(c.parts) for c in results.claims)
    assert {row.count(" | ") for row in rows} == {8}
    told = [float(row.split(" | ")[7]) for row in rows[2:] if row.split(" | ")[7]]
    found = [part.finds for claim in results.claims for part in claim.parts if part.finds]
    assert told
    assert all(any(abs(each - value) <= 0.06 * value for value in found) for each in told)
    assert any("`p1.speedup-4`" in row and "**contradicted**" in row for row in rows)


def test_it_says_at_which_scale_and_warns_at_smoke_scale(built):
    results = read_results(built / "results.json")
    assert verdict_table(results).startswith("paper1, laptop scale, 2 seeds, corpus fsdd.\n")
    smoke = verdict_table(replace(results, scale="smoke"))
    assert "These are not verdicts on the paper." in smoke


def test_a_bar_or_a_star_in_a_statement_breaks_nothing(built):
    results = read_results(built / "results.json")
    odd = replace(results.claims[0], statement="a | b\n*c* `d`")
    row = verdict_table(replace(results, claims=(odd,))).splitlines()[-1]
    assert "a \\| b \\*c\\* \\`d\\`" in row
