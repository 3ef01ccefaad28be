"""What a report costs beside drawing one bare figure and setting one bare page."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path

import typst
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import reports

MADE = Path(__file__).parents[1] / "reports" / "conftest.py"
SPEC = importlib.util.spec_from_file_location("made", MADE)
made = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(made)


def one_figure_and_one_page():
    figure = Figure()
    FigureCanvasAgg(figure)
    figure.subplots().plot(range(20))
    figure.savefig(io.BytesIO(), format="svg")
    figure.savefig(io.BytesIO(), format="png")
    typst.compile(b"= A page", format="pdf", ignore_system_fonts=True)


def test_a_report_over_one_bare_figure_and_page(compare, tmp_path):
    folder = made.make_out(tmp_path)
    compare(lambda: reports.build(folder), one_figure_and_one_page, at_most=30.0, rounds=3)
    assert (folder / "report.pdf").stat().st_size > 0
