# matplotlib's keyword arguments have no types:
# pyright: reportUnknownMemberType=false
"""Style of figures: colours safe for colour-blind readers, and readable in grey."""

from __future__ import annotations

import io
import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_IN, COLUMN_IN, HEIGHT_IN, LINE_IN = 6.7, 4.1, 2.5, 0.17
"""Letters of a column are at least 11 pixels high on a page of 390."""
MOST_SPAN = 200  # largest over smallest value of an axis with numbers between powers of ten
ACROSS = 54  # characters of a legend's line
INK, MUTED, GRID = "#222222", "#6b6b6b", "#dddddd"

# Okabe & Ito (2008), in an order in which neighbours also differ in lightness
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.6)), (0, (5, 1.4, 1, 1.4)), (0, (1.2, 1.2)), (0, (8, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
PRINTED: dict[str, Any] = {"mfc": "white", "mec": INK, "mew": 1.3, "ms": 6.5, "ls": "", "zorder": 5}
"""Look of the paper's own figure, a diamond."""

RC: dict[Any, Any] = {
    "font.family": ["STIXGeneral", "DejaVu Sans"],
    "font.size": 9.5,
    "text.color": INK,
    "text.parse_math": False,  # a label's dollar sign is a dollar sign
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.0,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "legend.fontsize": "medium",
    "axes.titlesize": "medium",
    "legend.handlelength": 2.8,
    "svg.fonttype": "path",  # the same letters wherever it is opened
    "svg.hashsalt": "lagbench",  # ids of SVG elements depend on nothing else
    "savefig.bbox": None,
}


def cycle(options: tuple[Any, ...], index: int) -> Any:
    """The ``index``-th option, starting over at the end."""
    return options[index % len(options)]


def look_of(index: int) -> dict[str, Any]:
    """Colour, dashes and marker of the ``index``-th line."""
    options = {"color": COLOURS, "linestyle": DASHES, "marker": MARKERS}
    return {name: cycle(choices, index) for name, choices in options.items()}


UNSTEADY = {"svg": "Date", "png": "Software"}
"""Metadata of each file format that differs from run to run, and is left out."""


@contextmanager
def use_style() -> Generator[None]:
    """The house style, whatever a user's own matplotlib settings are."""
    import matplotlib as mpl  # when needed: it takes a third of a second

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(RC)
        yield


@contextmanager
def canvas(panels: int = 1) -> Generator[tuple[Any, ...]]:
    """A figure of a column's width in the house style, then its axes from the top.

    Args:
        panels: number of panels below each other, with one x axis; those after the first are half
            as high.
    """
    with use_style():
        shares = [1.0] + [0.55] * (panels - 1)
        figure = empty_figure(HEIGHT_IN * sum(shares), COLUMN_IN)
        axes = figure.subplots(panels, sharex=True, height_ratios=shares, squeeze=False)
        yield (figure, *axes[:, 0])


def empty_figure(height_in: float, width_in: float = WIDTH_IN) -> Figure:
    """A figure of the width of a page, or of a column of a report, without axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def set_log_scale(axis: Any) -> None:
    """Make an axis logarithmic, with plain numbers at powers of ten, of few also at 2 and 5 times.

    Args:
        axis: the ``xaxis`` or ``yaxis`` of axes.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    class Ticks(LogLocator):
        def tick_values(self, vmin: float, vmax: float) -> Any:
            self.set_params(subs=(1.0, 2.0, 5.0) if vmax < MOST_SPAN * vmin else (1.0,))
            return super().tick_values(vmin, vmax)

    scale = axis.axes.set_xscale if axis.axis_name == "x" else axis.axes.set_yscale
    scale("log")
    axis.set_major_locator(Ticks())
    axis.set_major_formatter(format_tick)
    axis.set_minor_formatter(NullFormatter())


def format_tick(value: float, position: float = 0.0) -> str:
    """A tick's label in digits; the position is matplotlib's and does not matter."""
    del position
    return f"{value:,.12g}"


def set_lanes(axes: Axes, names: Sequence[str], ends: tuple[float, float]) -> None:
    """Make the y axis one of lanes with names, without grid and ticks."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(ends)
    axes.grid(visible=False)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def set_y_title(axes: Axes, text: str) -> None:
    """The y axis's title above the axes: beside them it is cut where it is longer than they."""
    axes.set_title(text, loc="left", color=INK, pad=3.0)


def set_legend(axes: Axes, handles: Sequence[Any]) -> None:
    """A legend above the axes and their title, where no data are, with room of its own."""
    from matplotlib.transforms import ScaledTranslation

    longest = max(len(str(handle.get_label())) for handle in handles)
    columns = max(1, min(len(handles), ACROSS // (longest + 8)))
    figure: Any = axes.figure
    title_in = LINE_IN * bool(axes.get_title("left"))
    axes.legend(
        handles=handles, ncols=columns, borderpad=0, loc="lower left", bbox_to_anchor=(0, 1),
        bbox_transform=axes.transAxes + ScaledTranslation(0, title_in, figure.dpi_scale_trans),
    )  # fmt: skip
    lines = math.ceil(len(handles) / columns) - 1
    figure.set_figheight(figure.get_figheight() + lines * LINE_IN)


def draw_arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], head: float, **look: Any
) -> None:
    """An arrow between two points; its head is twice as long as half its width ``head``."""
    shape = f"-|>,head_width={head},head_length={2 * head}"
    look |= {"arrowstyle": shape, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=end, xytext=start, arrowprops=look)


def render_figure(figure: Figure, form: str) -> bytes:
    """The figure's file: the same bytes for the same figure.

    Args:
        figure: a finished figure, while its ``canvas`` is open.
        form: ``"svg"`` or ``"png"``.
    """
    buffer = io.BytesIO()
    figure.draw_without_rendering()  # the first layout leaves no room for a legend above the axes
    figure.savefig(buffer, format=form, dpi=150, metadata={UNSTEADY[form]: None})
    return buffer.getvalue()
