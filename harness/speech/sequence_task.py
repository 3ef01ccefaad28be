"""Sequence training as an application: its run files and prediction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np

from data_synth.corpus import Utterances
from harness.base.errors import UserError
from harness.base.settings import build
from harness.experiment.contract import (
    TASK,
    WITHOUT_LIMIT,
    Application,
    RunRequest,
    Say,
    Watch,
    key_in_file,
)
from harness.simulator import Timeline, concat
from harness.simulator.full_run import Whole, steady_rate
from harness.speech.frames import corpus_of
from harness.speech.protocol import Sequence
from harness.speech.sequence import SequenceConfig
from harness.speech.sequence_training import train_sequence
from harness.speech.task import FOLLOWS, load_corpus_with_targets, read_corpus
from harness.store import Run, Store

SHARED = ("corpus", "scale", "corpus_seed", "cluster", "timed_layers")
"""Fields that a sequence training and its start share."""

SAMPLE = 2000
"""Folds of the single-replica simulation that speed-ups are computed from."""


class SequenceApplication(Application[SequenceConfig]):
    """Sequence training of speech: see `Application`."""

    config = SequenceConfig
    worker = "replica"

    follows = FOLLOWS

    def read(self, asked: RunRequest) -> SequenceConfig:
        """See `Application`; the table ``start`` omits the keys it shares with the run.

        Raises:
            UserError: ``start`` is missing, or sets a shared or derived key.
        """
        asked = replace(asked, table={"seed": 0, "criterion": {}, **asked.table})
        start: object = asked.table.get("start")
        if not isinstance(start, Mapping):
            lack = "start: missing; needed: a table with the run it starts from"
            raise UserError(asked.task + lack)
        part = dict(cast(Mapping[str, Any], start))
        asked.refuse([f"{TASK}.start.{name}" for name in (*FOLLOWS, *SHARED) if name in part])
        table = read_corpus(asked, part.get("hidden"))
        shared = {name: table[name] for name in (*SHARED, "fingerprint", "device")}
        table["start"] = {**part, **shared}
        return build(SequenceConfig, table, str(asked.path), named=key_in_file)

    def execute(self, config: SequenceConfig, store: Store, watch: Watch) -> Run:
        """See `Configuration`."""
        return train_sequence(
            config, load_corpus_with_targets(config.start, store, watch), store, watch
        )

    def pieces(self, config: SequenceConfig, say: Say) -> Utterances:
        """The training utterances."""
        return corpus_of(config, say).split("train")

    def time(self, config: SequenceConfig, pieces: Utterances, share: float, most: int) -> Whole:
        """See `Application`; a pass ends with its share of the folds.

        The frames that decoders keep depend on the parameters, which are unknown before training:
        ``share`` gives the kept share of each utterance.

        Raises:
            UserError: frames are shuffled over whole passes, or there are no folds.
        """
        if config.shuffling == "full":
            raise UserError("shuffling: 'full' cannot be predicted; allowed: none, on the fly")
        if not config.passes:
            raise UserError("passes: 0 trains nothing; allowed: at least 1")
        timeline = time_decoded(config, pieces, share, most)
        folds = len(timeline.folds)
        if not folds:
            raise UserError(f"frames kept: {share:.3g} of all fill no minibatch")
        if folds >= most:  # simulated in part: the run's folds follow from the kept frames
            folds = round(config.passes * float(pieces.frames.sum()) * share / config.slots)
        ends = np.diff(np.linspace(0, folds, config.passes + 1).round().astype(int))
        return Whole.from_timeline(timeline, steady_rate(timeline), ends.tolist())

    def sampled(self, config: SequenceConfig) -> tuple[SequenceConfig, int]:
        """See `Application`."""
        return config.with_cluster(replace(config.cluster, faults=()), 1), SAMPLE

    def share(self, config: SequenceConfig, finished: Run | None, asked: float | None) -> float:
        """See `Application`; without ``asked``, the finished run's share, or the default.

        Raises:
            UserError: the finished run kept no frame.
        """
        if config.frames == "all":
            return 1.0
        if asked is not None:
            return asked
        if finished is None:
            return Sequence().kept
        share_kept = float(finished.summary["kept_frames"])
        if not share_kept > 0.0:
            raise UserError(f"{finished.dir}: kept no frame; give --kept")
        return share_kept

    def describe(self, config: SequenceConfig, share: float) -> Iterator[tuple[str, str]]:
        """See `Application`."""
        yield "  timed network", "-".join(map(str, config.timed_layers))
        yield "frames kept", f"{share:.3g} of all"


SEQUENCE = SequenceApplication()


def time_decoded(
    config: SequenceConfig, train: Utterances, share: float, most: int = WITHOUT_LIMIT
) -> Timeline:
    """Simulate the timeline of a run that keeps a share of every utterance's frames.

    Args:
        config: configuration of the run.
        train: the training utterances.
        share: the share, rounded to whole frames.
        most: largest number of folds to simulate.
    """
    simulation, order = config.simulation(train), config.orders(train)
    counts = np.rint(share * train.frames).astype(np.int64)
    segments: list[Timeline] = []
    while True:
        segments.append(simulation.advance(folds=WITHOUT_LIMIT))
        queries = simulation.asked()
        if not len(queries.worker) or simulation.version >= most:
            return concat(segments)
        simulation.answer(queries.worker, counts[order[queries.worker, queries.number]])
