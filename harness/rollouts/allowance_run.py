"""The prediction of a plan of allowances as a run of the store."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.base.settings import load_spec
from harness.rollouts.allowances import Allowances, predict_allowances
from harness.store import Run, RunWriter, Store
from harness.tasks.contract import Configuration, Watch

__all__ = ["AllowanceConfig"]

FORMAT = 1
"""Version of the figures: incremented when the same configuration gives other ones."""


@dataclass(frozen=True)
class AllowanceConfig(Configuration):
    """A prediction of seconds by allowance; see `harness.rollouts.allowances`.

    Args:
        path: the plan's file.
        draws: number of draws, in place of the plan's.
        seed: of the draws, in place of the plan's.
    """

    path: Path
    draws: int
    seed: int
    format: int = FORMAT

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: what the run's identity hashes."""
        plan = tomllib.loads(self.path.read_text(encoding="utf-8"))
        told = {"draws": self.draws, "seed": self.seed, "format": self.format}
        return {"is": "AllowanceConfig", "plan": plan, **told}

    def execute(self, store: Store, watch: Watch) -> Run:
        """See `Configuration`.

        The summary has ``measured_s`` of the plan, and for each allowance ``seconds/A``, ``low/A``
        and ``high/A``.
        """
        del watch  # it takes a minute at most
        plan = replace(load_spec(Allowances, self.path), draws=self.draws, seed=self.seed)

        def execute(writer: RunWriter) -> None:
            summary = {"measured_s": plan.synchronous_s}
            for each in predict_allowances(plan, self.path):
                summary[f"seconds/{each.allowance}"] = each.seconds
                summary[f"low/{each.allowance}"] = each.low
                summary[f"high/{each.allowance}"] = each.high
            writer.finish("done", summary)

        return store.obtain(self.to_dict(), execute)
