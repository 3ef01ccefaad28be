# matplotlib's keyword arguments have no types:
# pyright: reportUnknownMemberType=false
"""Messages between workers: a lane each, an arrow from when a message leaves to its arrival."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from harness.base.errors import UserError
from harness.judge import Exhibit
from reports.style import COLOURS, DASHES, INK, MUTED

LABEL = {True: "added by its receiver", False: "takes the place of the receiver's part"}


def messages(axes: Axes, exhibit: Exhibit) -> None:
    """Draw the messages of ``exhibit.draw``.

    ``workers`` is how many lanes there are; ``messages`` is a list of
    ``{"from", "to", "sent_s", "arrived_s", "part", "adds"}``: two worker numbers from 0,
    seconds, what is sent in words, and whether it is added or replaces. All messages between
    two workers are told apart by their times.

    Raises:
        UserError: there are no messages.
    """
    rows: list[dict[str, Any]] = exhibit.draw.get("messages", [])
    if not rows:
        raise UserError(f"results.json: exhibit {exhibit.id}: draw.messages: empty")
    workers = int(exhibit.draw["workers"])
    scale, unit = (1e3, "ms") if max(row["arrived_s"] for row in rows) < 2 else (1.0, "s")
    for row in rows:
        _arrow(axes, row, scale)
    for lane in range(workers):
        axes.axhline(lane, color=MUTED, lw=0.8, zorder=1)
    axes.set_yticks(range(workers), [f"worker {lane + 1}" for lane in range(workers)])
    axes.set_ylim(workers - 0.6, -0.6)
    axes.set_xlim(0, 1.02 * scale * max(row["arrived_s"] for row in rows))
    axes.grid(visible=False)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.legend(
        handles=[
            Line2D([], [], color=COLOURS[not adds], ls=DASHES[not adds], label=label)
            for adds, label in LABEL.items()
            if any(row["adds"] == adds for row in rows)
        ],
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=2,
        borderpad=0,
    )
    exhibit.axes.setdefault("x", f"time since the all-reduce began ({unit})")


def _arrow(axes: Axes, row: dict[str, Any], scale: float) -> None:
    adds = bool(row["adds"])
    start = (row["sent_s"] * scale, row["from"])
    end = (row["arrived_s"] * scale, row["to"])
    axes.annotate(
        "",
        xy=end,
        xytext=start,
        arrowprops={
            "arrowstyle": "-|>,head_width=0.18,head_length=0.36",
            "color": COLOURS[not adds],
            "ls": DASHES[not adds],
            "lw": 1.2,
            "shrinkA": 0,
            "shrinkB": 0,
        },
    )
    axes.text(
        start[0] + 0.14 * (end[0] - start[0]),
        start[1] + 0.14 * (end[1] - start[1]),
        row["part"],
        fontsize=8,
        color=INK,
        ha="center",
        va="center",
        bbox={"boxstyle": "round,pad=0.12", "fc": "white", "ec": "none"},
    )
