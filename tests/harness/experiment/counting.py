"""A run that counts, with a checkpoint after each step, and the mishaps that it may meet."""

import os
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harness.base.errors import UserError
from harness.base.log import LOG
from harness.base.seeds import identity
from harness.experiment import loop
from harness.experiment.contract import Progress, Watch
from harness.store import Run, RunWriter, Store

STEPS = 4


@dataclass(frozen=True)
class Counting:
    """Counts to `STEPS`.

    Args:
        seed: of the run.
        folder: where it notes the step that it began with.
        mishap: ``"is killed"`` once, at step 2; ``"is always killed"`` at step 2; ``"moves on"``:
            is killed after each step; ``"bad input"``, ``"a fault"``.
        unpackable: what cannot be sent to another process.
    """

    seed: int
    folder: Path
    mishap: str = ""
    unpackable: Any = field(default=None, compare=False)
    effort: float = 1.0

    def to_dict(self) -> dict[str, Any]:
        """All but the mishap: equal runs have equal results."""
        return {"is": "Counting", "seed": self.seed}

    @property
    def hash(self) -> str:
        """Identity of the run."""
        return identity(self.to_dict())

    def execute(self, store: Store, watch: Watch) -> Run:
        """Count, from the checkpoint if there is one."""

        def train(writer: RunWriter) -> None:
            saved = loop.load(writer.checkpoint)
            begun = len(saved[0][loop.FOLDS]) if saved else 0
            with (self.folder / f"{self.seed}").open("a") as file:
                file.write(f"{begun}\n")
            LOG.info("run %d begins", self.seed)
            for step in range(begun, STEPS):
                self._meet_mishap(step, begun)
                loop.save(writer.checkpoint, {loop.FOLDS: np.zeros(step + 1)}, {})
                watch(Progress(self.hash, step + 1, STEPS))
            writer.finish(summary={"steps": STEPS, "seed": self.seed})

        return store.obtain(self.to_dict(), train)

    def _meet_mishap(self, step: int, begun: int) -> None:
        if self.mishap == "bad input":
            raise UserError("corpus x: changed on disk")
        if self.mishap == "a fault":
            raise ZeroDivisionError("a fault of ours")
        dies_at = {"is killed": 2, "is always killed": 2, "moves on": begun + 1}
        once = self.mishap != "is killed" or begun == 0
        if step == dies_at.get(self.mishap) and once:
            os.kill(os.getpid(), signal.SIGKILL)
            threading.Event().wait()


def begun_at(folder: Path, seed: int) -> list[int]:
    """The steps that a run was begun with, each time."""
    return [int(line) for line in (folder / f"{seed}").read_text().split()]
