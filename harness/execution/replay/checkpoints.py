"""What a server that fails goes back to: its state at some of its past versions.

Versions only grow. A restart at version v means that the model of v is from then on that of the
version it was restored to; workers that have read v before keep what they read, and the server
keeps its `past`: what they answer to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.algorithms.contract import Server
from harness.base.errors import UserError
from harness.execution.replay.state import (
    Arrays,
    Facts,
    copy_arrays,
    part,
    prefixed,
    reinstate_vectors,
    state_of,
)
from harness.simulator import Restarts

PREFIX = "checkpoint/"


@dataclass
class Checkpoints:
    """The server's states by version, and at which versions it keeps one or goes back.

    Args:
        kept: copies of the vectors and numbers of the server, and its number of folds.
        restarted: the last version at which the server went back.
    """

    kept: dict[int, tuple[Arrays, Facts]] = field(default_factory=dict[int, tuple[Arrays, Facts]])
    restarted: int = -1
    _keep: set[int] = field(default_factory=set[int])
    _restore: dict[int, int] = field(default_factory=dict[int, int])

    def wanted(self, restarts: Restarts, restorable: int | None) -> dict[int, float]:
        """Prepare for a segment.

        Args:
            restarts: in it.
            restorable: what a failure after it may go back to; None if the server cannot fail.

        Returns:
            The versions at which the server fails, and when it is there again for the first time.
        """
        columns = (restarts.version, restarts.restored_version, restarts.time_s)
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        self._restore = {version: restored for version, restored, _ in reversed(rows)}
        self._keep = {restored for _, restored, _ in rows}
        if restorable is not None:
            self._keep.add(restorable)
        self._forget(min(self._keep, default=None))
        return {version: time_s for version, _, time_s in reversed(rows)}

    def concern(self, version: int) -> bool:
        """Whether there is something to do at a version."""
        return version in self._keep or version in self._restore

    def meet(self, server: Server) -> None:
        """Go back if the server fails at its version, and keep it if that is asked for.

        Raises:
            UserError: what it goes back to is not kept.
        """
        version = server.version
        restored = self._restore.get(version, version)
        if restored != version:
            if restored not in self.kept:
                raise UserError(
                    "cluster: a server that fails can be timed but not trained with here"
                )
            _go_back(server, *self.kept[restored])
        if version in self._restore:
            self._forget(restored)
            # A second failure at one version finds the model of the first restart: no change.
            server.restarts += version != self.restarted
            self.restarted = version
        if version in self._keep:
            numbers = {"folds": server.folds, "numbers": dict(server.numbers)}
            self.kept[version] = copy_arrays(state_of(server)), numbers

    def _forget(self, before: int | None) -> None:
        """Nothing goes back beyond a version any more; None is to none at all."""
        oldest = math.inf if before is None else before
        self.kept = {version: state for version, state in self.kept.items() if version >= oldest}

    def arrays(self) -> Arrays:
        """The states' vectors, for `of`."""
        return {
            name: array
            for version, (arrays, _) in self.kept.items()
            for name, array in prefixed(arrays, f"{PREFIX}{version}/").items()
        }

    def facts(self) -> Facts:
        """The states' other facts, and where the server last went back, for `of`."""
        kept = [[version, facts] for version, (_, facts) in self.kept.items()]
        return {"kept": kept, "restarted": self.restarted}

    @classmethod
    def of(cls, arrays: Mapping[str, Any], facts: Facts) -> Checkpoints:
        """Undo `arrays` and `facts`."""
        named = dict(arrays)
        kept = {v: (part(named, f"{PREFIX}{v}/"), its) for v, its in facts["kept"]}
        return cls(kept, facts["restarted"])


def _go_back(server: Server, arrays: Arrays, facts: Facts) -> None:
    """Put a kept state in the place of a server's, whose version and past stay."""
    reinstate_vectors(state_of(server), arrays)
    server.undone = server.version - facts["folds"]
    server.numbers = dict(facts["numbers"])
