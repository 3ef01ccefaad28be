"""One run, three processes on hosts whose clocks disagree, and whatever may happen to them.

Processes begin the run, take a step, stop, go on, fail, are killed, even amid a change of the
disk, and files are damaged or, if large, removed. Time is virtual: who waits for a claim makes it
pass, and those that live show signs of life meanwhile. At every moment the run must be absent,
resumable, or whole and right, and it can always be finished.

``python -m tests.harness.store.stateful 1000`` tries a thousand histories.
"""

import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as tried

from harness.base.errors import UserError
from harness.base.seeds import identity
from harness.experiment import loop
from harness.store import AlreadyFinished, RunWriter, Store, schema
from harness.store import store as rooms
from harness.store.read import read_run, verify_run
from harness.store.store import CLAIM, STALE_S, Claim

CONFIG = {"seed": 0}
HASH = identity(CONFIG)
STEPS = 3
RESULTS = ("config.json", "run.json", "metrics.parquet", schema.MODEL)
DAMAGED = (*RESULTS, "checkpoint/checkpoint.safetensors", "provenance.json", CLAIM)
CLOCKS_APART_S = (0.0, 4e9, -3e7)
"""How far each host's clock is from the first one's."""
CHANGES = ("replace", "fsync", "mkdir", "unlink", "rmdir")
"""Calls that change the disk, at any of which a process may be killed."""
LONGEST_WAIT_S = 4 * STALE_S


class Killed(BaseException):
    """Nothing of a process happens after this."""


class Waits(BaseException):
    """A process waits for as long as anybody cares to look."""


@dataclass
class Process:
    """A process of a host, which may hold the run, or think that it does."""

    host: int
    number: int
    steps: Generator[RunWriter]
    writer: RunWriter | None = None
    claim: Claim | None = None
    alive: bool = True
    paused: bool = False


def _word(process: Process) -> str:
    return f"host-{process.host}-{process.number}"


def state(step: int) -> bytes:
    """What training has made after so many steps."""
    return hashlib.sha256(str(step).encode()).digest()


def trained(store: Store) -> Generator[RunWriter]:
    """The whole run, from wherever it stands, step by step."""
    with store.begin(CONFIG) as writer:
        found = loop.load(writer.checkpoint)
        began = int(found[0]["step"]) if found else 0
        writer.restore_rows(found[1]["rows"] if found else [])
        yield writer
        for step in range(began, STEPS):
            writer.log("step", step, fold=step, time_s=0.0, epoch=0.0)
            held = {"step": np.array(step + 1), "state": np.frombuffer(state(step + 1), np.uint8)}
            loop.save(writer.checkpoint, held, {"rows": writer.rows()})
            yield writer
        writer.attach(schema.MODEL, state(STEPS))
        yield writer
        writer.finish(summary={"steps": STEPS})


class Histories(RuleBasedStateMachine):
    """What may happen to a run."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="histories-"))
        self.store, self.run = Store(self.folder), self.folder / HASH
        self.holders: list[Process] = []
        self.processes: list[Process] = []
        self.now_s, self.forged = 1e6, False  # a damaged claim may name another process
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(rooms, "Claim", self._claim)
        now_s = lambda: self.now_s + CLOCKS_APART_S[self.acting.host]  # noqa: E731
        clock = {**vars(time), "monotonic": now_s, "sleep": self._passes}
        self.patch.setattr(rooms, "time", SimpleNamespace(**clock))
        self.patch.setattr(rooms, "Thread", lambda **_: SimpleNamespace(start=lambda: None))
        self.patch.setattr(rooms, "process_id", lambda: _word(self.acting))
        self.patch.setattr(rooms, "has_ended", self._has_ended)
        self.patch.setattr(os, "fsync", lambda handle: None)  # power has tests of its own

    def teardown(self) -> None:
        """Whatever happened, one more process finishes the run, to the same bytes."""
        self.holders.clear()
        for process in self.processes:
            process.alive = False
        for _ in range(2):  # what was damaged after it was written is made again
            with suppress(AlreadyFinished):
                self._act(self._process(0), list)
            self.processes[-1].alive = False
        assert self._files() == WHOLE
        self.patch.undo()
        shutil.rmtree(self.folder)

    @precondition(lambda self: len(self.holders) < 3)
    @rule(host=st.sampled_from((0, 1, 2)), strict=st.booleans())
    def begins(self, host: int, strict: bool) -> None:
        lives = [each for each in self.holders if not each.paused]
        process = self._process(host, strict)
        try:
            process.writer = self._act(process, next)
        except AlreadyFinished:
            assert read_run(self.run).status == "done"
        except Waits:
            near = any(each.host == host for each in self.holders)
            assert lives or near or self.forged, "it waits for nobody"
        else:
            assert not lives or self.forged, "two hold the run, and both live"
            self.holders.append(process)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def steps(self, data: Any) -> None:
        process = data.draw(st.sampled_from(self.holders))
        process.paused = process is not self.holders[-1]  # it has been taken over, and may not know
        self._goes_on(process, lambda steps: next(steps, None))

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), at=st.integers(1, 30))
    def is_killed(self, data: Any, at: int) -> None:
        """At its so-manieth change of the disk, or before its next."""
        process = data.draw(st.sampled_from(self.holders))
        with pytest.MonkeyPatch.context() as patch:
            changes = Countdown(at)
            for name in CHANGES:
                patch.setattr(os, name, changes.before(getattr(os, name)))
            with suppress(Killed):
                self._goes_on(process, list)
        process.alive = False
        self.holders = [each for each in self.holders if each is not process]

    @precondition(lambda self: self.holders)
    @rule()
    def stops(self) -> None:
        self.holders[-1].paused = True

    @precondition(lambda self: self.holders)
    @rule()
    def fails(self) -> None:
        process = self.holders[-1]
        self._goes_on(process, lambda _: process.writer.finish("failed", {}, "a fault of ours"))

    @rule()
    def is_lightened(self) -> None:
        """Its model is removed, whatever else goes on."""
        (self.run / schema.MODEL).unlink(missing_ok=True)

    @rule(name=st.sampled_from(DAMAGED), place=st.integers(0, 10**6), how=st.sampled_from("fz0"))
    def is_damaged(self, name: str, place: int, how: str) -> None:
        """A byte flips, the second half is zeros, or everything is gone."""
        path = self.run / name
        if not path.is_file() or not (old := path.read_bytes()):
            return
        at = place % len(old)
        flipped = old[:at] + bytes([old[at] ^ 1]) + old[at + 1 :]
        half = old[: len(old) // 2]
        self.forged |= name == CLAIM
        path.write_bytes({"f": flipped, "z": half + bytes(len(old) - len(half)), "0": b""}[how])

    @invariant()
    def is_never_wrong(self) -> None:
        """It is absent, resumable, or whole and right."""
        if (self.run / "run.json").exists():
            run = verify_run(read_run(self.run))
            if run.status == "done":
                there = [name for name in RESULTS[1:] if name not in run.without(schema.LARGE)]
                assert all((self.run / name).read_bytes() == WHOLE[name] for name in there)
                assert len(there) >= len(RESULTS) - 2
            assert self.store.has(HASH) == (run.status == "done")
        if found := loop.load(self.run / "checkpoint"):
            step = int(found[0]["step"])
            assert found[0]["state"].tobytes() == state(step)
            assert [row["fold"] for row in found[1]["rows"]] == list(range(step))

    def _process(self, number: int, strict: bool = True) -> Process:
        """A process of the host of a number, about to begin the run."""
        store = self.store.needing(schema.MODEL) if strict else self.store
        process = Process(number, len(self.processes), trained(store))
        self.processes.append(process)  # what is forgotten would be tidied up, as no death does
        return process

    def _has_ended(self, word: str) -> bool:
        host, _, number = word.rpartition("-")
        if host != f"host-{self.acting.host}" or not number.isdecimal():
            return False
        if int(number) == self.acting.number:  # a damaged claim; it knows of none of its own
            return True
        return not any(each.alive for each in self.processes[int(number) :][:1])

    def _act(self, process: Process, does: Callable[[Any], Any]) -> Any:
        """Have a process do something with the steps that it has before it."""
        self.acting, self.waited_s = process, 0.0
        return does(process.steps)

    def _goes_on(self, process: Process, does: Callable[[Any], Any]) -> None:
        """Have a holder do something; it holds no longer at its end, or when it has been told."""
        try:
            if self._act(process, does):
                return
        except UserError:
            assert not process.claim.is_held()
        self.holders.remove(process)

    def _claim(self, folder: Path) -> Claim:
        self.acting.claim = Claim(folder)
        return self.acting.claim

    def _passes(self, seconds: float) -> None:
        """Somebody waits: time goes on for all, and those that live show it."""
        del seconds  # however short: what is waited for is virtual
        self.now_s += STALE_S / 4
        self.waited_s += STALE_S / 4
        for process in self.holders:
            if not process.paused and process.claim.is_held():
                os.utime(self.run / CLAIM, (self.now_s, self.now_s))
        if self.waited_s > LONGEST_WAIT_S:
            raise Waits

    def _files(self) -> dict[str, bytes]:
        return {name: (self.run / name).read_bytes() for name in RESULTS}


@dataclass
class Countdown:
    """Kills at the n-th call, and lets nothing happen after it."""

    left: int

    def before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left <= 0:
                raise Killed
            return call(*arguments, **named)

        return counted


def _whole() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        list(trained(Store(folder)))
        return {name: (Path(folder) / HASH / name).read_bytes() for name in RESULTS}


WHOLE = _whole()
"""The files of a run to which nothing happened."""


if __name__ == "__main__":
    tried(Histories, settings=settings(max_examples=int(sys.argv[1]), deadline=None))
    print(f"{sys.argv[1]} histories of a run: never wrong, always finished")
