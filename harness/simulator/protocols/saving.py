"""Checkpoints of training in rounds, and restarts from them, which cost time.

With checkpoints nobody goes on without a worker that is gone. After every so many folds all stand
still until a checkpoint is written. When a worker dies, the present round is lost, and so are all
folds since the last checkpoint that is complete; when everybody is there again, or has been
replaced, they restart from it, which takes time too. A death during the restart begins it anew. A
worker that is going to leave (it is preempted, or has been told of its death) leaves behind a
checkpoint of the newest version, if that is written before it dies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from harness.simulator.cluster import Checkpoints
from harness.simulator.protocols.absences import Absences
from harness.simulator.timeline import Restarts

__all__ = ["Saving", "fail", "folded", "joined", "new_saving", "restarted", "stands_until_s"]

WELL, MISSED, RESTARTING = range(3)

SAVED = np.dtype(
    [(name, np.int64) for name in ("version", "step", "newest", "writing", "health")]
    + [("until_s", np.float64)]
)
"""The version and the step of the last complete checkpoint, the newest version, whether one is
being written, whether anybody is missing or all restart, and until when all stand still."""


class Saving(NamedTuple):
    """Where checkpoints stand.

    Attributes:
        saved: [1] of `SAVED`; empty where there are no checkpoints.
    """

    saved: Any


def new_saving(checkpoints: Checkpoints | None) -> Saving:
    """The initial model is a checkpoint."""
    return Saving(np.zeros(0 if checkpoints is None else 1, SAVED))


def folded(saving: Saving, rules: Checkpoints | None, version: int, now_s: float) -> None:
    """A fold is complete: write a checkpoint if one is due."""
    if rules is not None:
        saved = saving.saved[0]
        saved["newest"] = version
        if version - saved["version"] >= rules.every_folds:
            _write(saved, rules, now_s)


def fail(saving: Saving) -> None:
    """A worker is missing: a checkpoint that was being written is none."""
    saved = saving.saved[0]
    saved["writing"], saved["until_s"], saved["health"] = 0, 0.0, MISSED


def stands_until_s(
    saving: Saving, rules: Checkpoints, absences: Absences, step: int, now_s: float
) -> float:
    """Before a round: when more is known of whether it may begin; now if it may.

    Args:
        saving: where checkpoints stand.
        rules: what they cost.
        absences: who is away, or about to leave.
        step: minibatches each worker has been handed.
        now_s: the present time.
    """
    saved = saving.saved[0]
    if saved["until_s"] > now_s:
        return float(saved["until_s"])
    if saved["writing"]:
        saved["version"], saved["step"], saved["writing"] = saved["newest"], step, 0
    back_s = float(absences.until_s.max(initial=-np.inf))
    if back_s > now_s:
        return back_s
    if saved["health"] == MISSED:
        saved["health"], saved["until_s"] = RESTARTING, now_s + rules.restart_s
    elif absences.leave_s.max(initial=0.0) > 0.0 and saved["newest"] > saved["version"]:
        _write(saved, rules, now_s)
    else:
        return now_s
    # what takes no time is over at once
    return stands_until_s(saving, rules, absences, step, now_s)


def restarted(saving: Saving, now_s: float) -> tuple[Restarts, int] | None:
    """Once everybody has restarted: what that undid, and the step to go on from."""
    saved = saving.saved[0]
    if saved["health"] != RESTARTING or saved["until_s"] > now_s:
        return None
    newest, restored = saved["newest"].reshape(1).copy(), saved["version"].reshape(1).copy()
    # the newest version is now what was saved
    saved["health"], saved["version"] = WELL, saved["newest"]
    return Restarts(np.array([now_s]), newest, restored), int(saved["step"])


def joined(rows: Sequence[Restarts]) -> Restarts:
    """Restarts of one segment."""
    columns = ("time_s", "version", "restored_version")
    if not rows:
        return Restarts()
    return Restarts(*(np.concatenate([getattr(row, name) for row in rows]) for name in columns))


def _write(saved: Any, rules: Checkpoints, now_s: float) -> None:
    saved["writing"], saved["until_s"] = 1, now_s + rules.write_s
