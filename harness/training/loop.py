"""One run from its configuration to the store: loop, executors' contract, checkpoints.

One run from its configuration to the store: what all training shares. A training moves from
boundary to boundary. Its executor does what lies between two of them: a simulated cluster whose
timeline is replayed on one device, a recorded timeline, or real workers. What is decided and
measured at a boundary is up to the kind of training (`frames`, `sequence`).

One file that holds a run in progress: tensors and numbers, no pickle, replaced atomically. It
carries a digest of all it holds: a checkpoint that is not as it was written is not gone on from.

Where a run diverged, in one line: its stage, fold, last criterion and rate.

What executes a run's contributions and folds, and says when they happened. Training decides at
boundaries and leaves the way between them to an executor: a simulated cluster whose timeline is
replayed on one device, a recorded timeline, or real workers.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np
from safetensors import SafetensorError, safe_open
from torch import Tensor

from harness.algorithms.contract import Server
from harness.base.log import LOG
from harness.replay import stale as resume
from harness.replay.stale import Arrays, Facts
from harness.simulator import Timeline, concat
from harness.simulator.timeline_file import save_timeline
from harness.store import RunWriter
from harness.store.files import MetricRow, make_folder, replacing, save_arrays
from harness.store.schema import MODEL, TIMELINE, WORD_ERRORS, Outcome


class Executor(Protocol):
    """The workers and the server of one run."""

    @property
    def server(self) -> Server:
        """The model, and how often it was folded into."""
        ...

    @property
    def now_s(self) -> float:
        """Seconds on the run's clock."""
        ...

    def capture(self) -> tuple[Arrays, Facts]:
        """Everything a resume needs."""
        ...

    def reinstate(self, arrays: Arrays, facts: Facts) -> None:
        """Undo `capture`."""
        ...


class FrameExecutor(Executor, Protocol):
    """Of training on frames, whose boundaries are folds."""

    @property
    def loss(self) -> float:
        """Loss of everything computed so far, summed over frames, in nats."""
        ...

    def advance(self, folds: int, *, drain: bool, handing_out: int | None, rate: float) -> Timeline:
        """Execute so many further folds at one rate.

        Args:
            folds: how many.
            drain: whether nothing is to be in flight afterwards.
            handing_out: contributions that may be handed out, counted from the first of these
                folds; None for as many as there are folds.
            rate: of folds and local steps.
        """
        ...

    def pause(self, seconds: float, kind: str) -> Timeline:
        """Let everybody wait, idle, while something else takes so long on the cluster."""
        ...

    def begin_stage(self) -> None:
        """The minibatches have begun their next stage, and nothing is in flight."""
        ...


CHECKPOINT_EVERY_S = 5.0

CHECKPOINT_SHARE = 0.02
"""Checkpoints are as rare as it takes to spend at most this share of the time on them."""

LAYOUT = 9
"""Grows when checkpoints hold other things than before: an older one is not taken up.

What a simulation holds is part of it: `tests/harness/training/test_layout.py`.
"""

Executing = TypeVar("Executing", bound=Executor)


class Diverged(Exception):  # noqa: N818 (what happened, not what was wrong)
    """The parameters give no numbers any more, or far worse ones than at the start."""


@dataclass
class Training(ABC, Generic[Executing]):
    """A run in progress.

    Args:
        writer: where its metrics go.

    Attributes:
        executor: does what lies between boundaries.
        segments: what happened, from boundary to boundary.
        word_errors: errors ``[utterances]`` for each ``test/candidate/stage``, and lengths.
    """

    writer: RunWriter
    executor: Executing = field(init=False)
    segments: list[Timeline] = field(default_factory=list[Timeline], init=False)
    word_errors: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray], init=False)

    # -- what a kind of training is ------------------------------------------------------

    @abstractmethod
    def step(self) -> bool:
        """Execute up to the next boundary and do what is due there; False if none is left.

        Raises:
            Diverged: it makes no sense to go on.
        """

    @abstractmethod
    def evaluate(self) -> None:
        """Measure the model as it is now.

        Raises:
            Diverged: it gives no numbers, or far worse ones than at the start.
        """

    @abstractmethod
    def finish(self) -> None:
        """Do what is due after the last boundary.

        Raises:
            Diverged: see `evaluate`.
        """

    @property
    @abstractmethod
    def epoch(self) -> float:
        """Passes over the training set so far."""

    @abstractmethod
    def model_to_deploy(self) -> Tensor:
        """The parameters ``[P]`` that the tests are about."""

    @abstractmethod
    def summarise(self, status: Outcome, timeline: Timeline) -> tuple[dict[str, Any], str]:
        """The run's summary, and where it diverged if it did, in words.

        Args:
            status: how it ended.
            timeline: of the whole run.
        """

    @abstractmethod
    def loop_state(self) -> Facts:
        """What a resume needs besides the executor, the timeline and what was measured."""

    @abstractmethod
    def restore_loop_state(self, facts: Facts) -> None:
        """Undo `decided`; the executor is reinstated afterwards."""

    def attachments(self) -> dict[str, Arrays | bytes]:
        """Further files of the run, by name: arrays, or their content."""
        return {}

    # -- the way through a run -----------------------------------------------------------

    def run(self) -> Outcome:
        """Train to the end: ``"done"`` or ``"diverged"``."""
        self._next_save = time.monotonic() + CHECKPOINT_EVERY_S
        try:
            if not self.writer.rows():
                self.evaluate()
            while self.step():
                if time.monotonic() > self._next_save:
                    self._save()
            self.finish()
        except Diverged:
            return "diverged"
        return "done"

    def moment(self) -> Moment:
        """Where the run stands."""
        return Moment(self.executor.server.version, self.epoch, self.executor.now_s)

    def log(self, name: str, value: float) -> None:
        """Keep a measurement of this moment."""
        now = self.moment()
        self.writer.log(name, value, fold=now.fold, time_s=now.time_s, epoch=now.passes)

    def last_measured(self) -> dict[str, float]:
        """The last value of everything that was logged."""
        return {row["name"]: row["value"] for row in self.writer.rows()}

    # -- resuming ------------------------------------------------------------------------

    def _save(self) -> None:
        """Write a checkpoint of everything the rest of the run depends on."""
        began = time.monotonic()
        executor_arrays, executor_facts = self.executor.capture()
        self.segments = [concat(self.segments)]
        history_arrays, history_facts = resume.capture_timeline(self.segments[0])
        arrays = {
            **resume.add_prefix(executor_arrays, "executor/"),
            **resume.add_prefix(history_arrays, "timeline/"),
            **resume.add_prefix(self.word_errors, "word_errors/"),
        }
        facts = {
            "layout": LAYOUT,
            "run": self.writer.hash,
            "decided": self.loop_state(),
            "executor": executor_facts,
            "timeline": history_facts,
            "rows": self.writer.rows(),
        }
        save(self.writer.checkpoint, arrays, facts)
        now = time.monotonic()
        self._next_save = now + max(CHECKPOINT_EVERY_S, (now - began) / CHECKPOINT_SHARE)

    def resume(self) -> None:
        """Take up the last checkpoint, if there is one; once everything is set up."""
        found = load(self.writer.checkpoint)
        if found is None:
            return
        arrays, facts = found
        run = self.writer.hash  # an older checkpoint does not say whose it is
        if facts.get("layout") != LAYOUT or facts.get("run", run) != run:
            whose = "version" if facts.get("layout") != LAYOUT else "run"
            told = f"another {whose}'s checkpoint; the run begins again"
            LOG.warning(f"{self.writer.checkpoint}: {told}")
            return
        history = resume.part(arrays, "timeline/")
        self.segments = [resume.reinstate_timeline(history, facts["timeline"])]
        self.word_errors = resume.part(arrays, "word_errors/")
        self.writer.restore_rows(facts["rows"])
        self.restore_loop_state(facts["decided"])
        self.executor.reinstate(resume.part(arrays, "executor/"), facts["executor"])


NAME = "checkpoint.safetensors"

FOLDS = "timeline/folds.time_s"
"""The column of a checkpoint that has an element a fold."""


def save(folder: Path, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
    """Write arrays and JSON facts as the folder's checkpoint; the last one stays until then."""
    make_folder(folder)
    text = json.dumps(facts)
    metadata = {"facts": text, "sha256": _digest(arrays, text)}
    with replacing(folder / NAME) as fresh:
        save_arrays(fresh, arrays, metadata)


def load(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """The last checkpoint in ``folder``; None where there is none or it is not as it was written.

    A damaged checkpoint costs the work since the run began, never the run: a line says so, and it
    is recomputed, to the same bytes.
    """
    path = folder / NAME
    if not path.exists():
        return None
    try:
        arrays, metadata = _read(path)
        if metadata["sha256"] != _digest(arrays, metadata["facts"]):
            raise ValueError("it does not match its digest")
        return arrays, json.loads(metadata["facts"])
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        LOG.warning(f"{path}: damaged ({error}); the run begins again")
        return None


def last_rows(folder: Path) -> dict[str, Any]:
    """What was measured last before a checkpoint, by name, and where the run stood; {} without.

    Reads no tensor, and may be asked of a run that goes on.
    """
    try:
        with cast(Any, safe_open)(folder / NAME, framework="numpy") as file:
            facts = json.loads(file.metadata()["facts"])
        rows = facts["rows"]
        at = {key: rows[-1][key] for key in ("fold", "time_s", "epoch")} if rows else {}
        return {**at, **{row["name"]: row["value"] for row in rows}}
    except (SafetensorError, KeyError, ValueError, OSError):
        return {}


def folds(folder: Path) -> int:
    """How many folds there were before a checkpoint; 0 without one. Reads no tensor."""
    try:
        with cast(Any, safe_open)(folder / NAME, framework="numpy") as file:
            return int(file.get_slice(FOLDS).get_shape()[0])
    except (SafetensorError, OSError):
        return 0


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    with cast(Any, safe_open)(path, framework="numpy") as file:  # it says no types
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return arrays, file.metadata() or {}


def _digest(arrays: Mapping[str, np.ndarray], facts: str) -> str:
    """SHA-256 of facts, names, kinds, shapes and content."""
    digest = hashlib.sha256(facts.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    return digest.hexdigest()


STAGES = {
    "mmi": "MMI",
    "bmmi": "boosted MMI",
    "smbr": "minimum Bayes risk",
    "numerator": "training without a denominator",
}
"""Sequence training by its criterion."""


@dataclass(frozen=True)
class Moment:
    """When a run diverged: folds and passes done, and seconds since it began."""

    fold: int
    passes: float
    time_s: float


def describe_divergence(
    stage: str,
    moment: Moment,
    rows: Sequence[MetricRow],
    metric: str,
    rate: float,
    unit: str = "nats a frame",
) -> str:
    """Which stage, when, the last criterion that was a number, and the rate.

    Args:
        stage: as a person calls it.
        moment: of the divergence.
        rows: everything the run has logged.
        metric: ``"dev_loss"`` or ``"held_out_criterion"``; of several models the first is told.
        rate: in force.
        unit: of the criterion.

    Example:
        >>> row = {"name": "dev_loss/iterate", "value": 3.5, "fold": 40, "epoch": 0.1}
        >>> describe_divergence("AsyncSgd", Moment(1200, 0.25, 61.04), [row], "dev_loss", 0.02)
        'in AsyncSgd at fold 1,200 (pass 0.25, 61.0 s): loss 3.5 nats a frame at fold 40, rate 0.02'
    """
    at = f"in {stage} at fold {moment.fold:,} (pass {moment.passes:.3g}, {moment.time_s:,.1f} s)"
    return f"{at}: {metric.rpartition('_')[2]} {_last(rows, metric, unit)}, rate {rate:.3g}"


def _last(rows: Sequence[MetricRow], metric: str, unit: str) -> str:
    """The last number of a metric, and the first, from which it came, if that is another."""
    known = [r for r in rows if r["name"].partition("/")[0] == metric and math.isfinite(r["value"])]
    if not known:
        return "never a number"
    first = known[0]
    last = [row for row in known if row["name"] == first["name"]][-1]
    told = f"{_format_signed(last['value'])} {unit} at fold {int(last['fold']):,}"
    return told + (f" ({_format_signed(first['value'])} at first)" if first is not last else "")


def _format_signed(value: float) -> str:
    return f"{'−' if value < 0 else ''}{abs(value):.3g}"


def carry_out(training: Training[Any]) -> None:  # whatever executes it
    """Train to the end and keep what came of it."""
    writer, status = training.writer, training.run()
    timeline = concat(training.segments)
    summary, note = training.summarise(status, timeline)
    with TemporaryDirectory() as folder:
        save_timeline(timeline, path := Path(folder) / TIMELINE)
        writer.attach(TIMELINE, path)
    for name, content in training.attachments().items():
        if isinstance(content, bytes):
            writer.attach(name, content)
        else:
            writer.attach_arrays(name, content)
    writer.attach_arrays(WORD_ERRORS, training.word_errors)
    writer.attach_arrays(MODEL, {"model": training.model_to_deploy().cpu().numpy()})
    writer.finish(status, summary, note)
