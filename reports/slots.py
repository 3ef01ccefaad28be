# matplotlib's keyword arguments have no types:
# pyright: reportUnknownMemberType=false
"""On-the-fly shuffling as a drawing: which utterance every slot of a minibatch comes from."""

from __future__ import annotations

from matplotlib.axes import Axes

from harness.judge import Exhibit
from reports.series import by_label
from reports.style import COLOURS, cycle

HEIGHT = 0.72


def slots(axes: Axes, exhibit: Exhibit) -> None:
    """A lane for each label, from the top; a bar for each run of columns with one figure.

    A row is one frame: its label is the slot, its column the minibatch, its figure the
    utterance.
    """
    lanes = by_label(exhibit.rows)
    for lane, rows in enumerate(lanes.values()):
        spans: dict[int, list[float]] = {}
        for row in rows:
            spans.setdefault(int(row.measured or 0), []).append(float(row.column))
        for utterance, steps in spans.items():
            left, width = min(steps), max(steps) - min(steps) + 1
            colour = cycle(COLOURS[:6], utterance)
            axes.barh(lane, width, HEIGHT, left, color=colour, alpha=0.35, ec="white", lw=1.0)
            if width >= 2:
                axes.text(left + width / 2, lane, str(utterance), ha="center", va="center",
                          fontsize=7.5)  # fmt: skip
    axes.set_yticks(range(len(lanes)), [label.removeprefix("slot ") for label in lanes])
    axes.invert_yaxis()
    axes.grid(visible=False)
