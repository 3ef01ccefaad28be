"""The regime map: a panel a paper, with its runs and the paper's own point."""

from pathlib import Path
from typing import Any

from reports import regime_map, verdicts


def test_a_panel_has_every_run_and_the_point_of_its_paper(monkeypatch):
    results = {of.paper: of for of in verdicts._largest(verdicts.read_published(Path())).values()}
    exhibits = {entry.id: entry for of in results.values() for entry in of.exhibits}
    figures = list[Any]()
    monkeypatch.setattr(regime_map.style, "render_figure", lambda *drawn: figures.append(drawn[0]))
    regime_map.draw_map(results)
    for axes, panel in zip(figures[0].axes, regime_map.PANELS, strict=False):
        rows = [row for row in exhibits[panel.exhibit].rows if panel.series in row.label]
        shown = {float(y) for line in axes.lines for y in line.get_ydata()}
        ratios = {ratio for row in rows for ratio in (row.measured, row.paper)} - {None}
        assert ratios <= shown
        assert all(axes.get_ylim()[0] < ratio < axes.get_ylim()[1] for ratio in ratios)
    assert regime_map.draw_map({}) is None
