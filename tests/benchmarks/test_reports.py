"""What a report costs beside drawing one bare figure and setting one bare page."""

from __future__ import annotations

import importlib.util
import io
import time
from pathlib import Path

import pytest
import typst
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from reports import build

MADE = Path(__file__).parents[1] / "reports" / "conftest.py"
SPEC = importlib.util.spec_from_file_location("made", MADE)
made = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(made)

pytestmark = pytest.mark.benchmark(timer=time.process_time)


def one_figure_and_one_page():
    figure = Figure()
    FigureCanvasAgg(figure)
    figure.subplots().plot(range(20))
    figure.savefig(io.BytesIO(), format="svg")
    figure.savefig(io.BytesIO(), format="png")
    typst.compile(b"= A page", format="pdf", ignore_system_fonts=True)


def test_a_report_over_one_bare_figure_and_page(benchmark, over, tmp_path):
    folder = made.make_out(tmp_path)
    build(folder)
    benchmark.pedantic(build, (folder,), rounds=3 if benchmark.enabled else 1)
    over(one_figure_and_one_page)
    assert (folder / "report.pdf").stat().st_size > 0
