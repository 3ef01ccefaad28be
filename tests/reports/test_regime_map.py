"""The regime map: a panel a paper, with its runs and the paper's own point."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from reports import regime_map, verdicts

ROOT = Path(__file__).parents[2]


def published() -> dict[str, Any]:
    largest = verdicts._largest(verdicts.read_published(ROOT))
    return {results.paper: results for results in largest.values()}


@pytest.fixture
def panels(monkeypatch) -> list[Any]:
    figures = list[Figure]()
    monkeypatch.setattr(
        regime_map.style, "render_figure", lambda figure, form: figures.append(figure) or b"png"
    )
    assert regime_map.draw_map(published()) == b"png"
    return figures[0].axes


def test_a_panel_has_every_run_and_the_point_of_its_paper(panels):
    results = published()
    for axes, panel in zip(panels, regime_map.PANELS, strict=True):
        (exhibit,) = (
            entry for entry in results[f"paper{panel.paper}"].exhibits if entry.id == panel.exhibit
        )
        rows = [row for row in exhibit.rows if panel.series in row.label]
        shown = {float(y) for line in axes.lines for y in line.get_ydata()}
        assert {row.measured for row in rows if row.measured is not None} <= shown
        assert {row.paper for row in rows if row.paper is not None} <= shown
        low, high = axes.get_ylim()
        assert all(low < row.measured < high for row in rows if row.measured is not None)


def test_without_a_paper_there_is_no_map():
    results = published()
    del results["paper2"]
    assert regime_map.draw_map(results) is None
