"""What a simulated run did is a record too: walked again, it gives the same training."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import astuple, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from data_synth.corpus import Corpus
from harness.base.errors import UserError
from harness.fidelity.compare import Comparison, behaviour, format_comparison, remove_pauses
from harness.processes.recorder import PAUSE
from harness.simulator import LOST, Cluster, Simulation, Timeline, concat
from harness.simulator.timeline import Spans
from harness.speech.decoding import orders
from harness.speech.recorded_executor import SequenceRecordExecutor
from harness.speech.replica_worker import Assignment, Replica
from harness.speech.sequence import SequenceConfig, Setup
from harness.speech.sequence_server import DecodeLog, Row, load_decode_log
from harness.speech.sequence_task import time_record
from harness.speech.sequence_training import RECORD, SequenceTraining
from harness.store import Store
from tests.silence import silent

WAYS = {
    "on the fly": {},
    "none": {"shuffling": "none", "slots": 3},
    "last layer, seldom fetched": {"layers": "last", "fetch_s": 0.02},
}


@pytest.fixture
def simulated(
    corpus: Corpus, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[SequenceConfig, torch.Tensor], tuple[SequenceTraining, Timeline, DecodeLog]]:
    """Trains on a simulated cluster, and notes what its decoders said."""

    def run(
        config: SequenceConfig, start: torch.Tensor
    ) -> tuple[SequenceTraining, Timeline, DecodeLog]:
        told, answer = DecodeLog(), Simulation.answer
        order = orders(config.seed, len(corpus.split("train")), config.replicas, config.passes)

        def noted(self, worker, kept):
            begun = self.asked()
            for at, entering in enumerate(kept.tolist()):
                who = int(begun.worker[at])
                told.rows.append(
                    Row(
                        int(begun.utterance[at]), who, int(order[who, begun.number[at]]),
                        int(begun.decode_version[at]), entering, self.version,
                    )
                )  # fmt: skip
            answer(self, worker, kept)

        monkeypatch.setattr(Simulation, "answer", noted)
        with Store(tmp_path).begin(config.to_dict()) as writer:
            training = SequenceTraining(writer, config, corpus, start, silent)
            assert training.run() == "done"
        return training, concat(training.segments), told

    return run


@pytest.fixture
def beginning(corpus: Corpus) -> Callable[[SequenceConfig], torch.Tensor]:
    """A model that nobody trained."""

    def make(config: SequenceConfig) -> torch.Tensor:
        size = config.start.network(corpus).layout.parameters
        return 0.3 * torch.randn(size, generator=torch.Generator().manual_seed(3))

    return make


@pytest.mark.parametrize("way", WAYS)
def test_a_record_of_a_simulated_run_leads_to_its_model(
    way: str, sequence, corpus, beginning, simulated
) -> None:
    config = sequence(test=False, **WAYS[way])
    training, timeline, told = simulated(config, start := beginning(config))
    walked = SequenceRecordExecutor(
        config, Setup.from_config(config, corpus, start), timeline, told
    )
    seen, ended = [], False
    utterances = len(corpus.split("train"))
    for until in (5, 20, 21, 10**9):
        _, more, ended = walked.advance(config.rate, Fraction(until, utterances))
        assert ended == (until > len(told.rows))
        seen += more
    assert walked.server.version == len(timeline.folds) > 20
    assert len(seen) == len(told.rows) == training.total.utterances + training.tally.utterances
    # The simulated run computed many contributions as one batch: the last bits differ.
    torch.testing.assert_close(
        walked.server.model, training.executor.server.model, rtol=1e-4, atol=1e-6
    )
    assert not torch.allclose(
        walked.server.model, Setup.from_config(config, corpus, start).part, atol=1e-3
    )


def test_a_prediction_that_keeps_the_same_frames_is_the_simulated_run(
    sequence, corpus, beginning, simulated
) -> None:
    config = sequence(test=False, passes=3)
    _, timeline, told = simulated(config, beginning(config))
    predicted = time_record(config, corpus.split("train"), timeline, told)
    assert predicted.sha256() == timeline.sha256()


def beside(
    config: SequenceConfig, corpus: Corpus, recorded: Timeline, told: DecodeLog,
    cluster: Cluster | None = None,
) -> Comparison:  # fmt: skip
    predicted = time_record(config.with_cluster(cluster), corpus.split("train"), recorded, told)
    return Comparison(*(behaviour(each, config.reads()) for each in (recorded, predicted)))


PAUSES = ((0.02, 5.0), (0.05, 0.25))
"""After so many seconds at work the server rests for so many."""


def rested(timeline: Timeline) -> Timeline:
    """A timeline as a server would have recorded it that rests now and then."""

    def later(time_s: np.ndarray) -> np.ndarray:
        return time_s + sum((time_s > at) * rest for at, rest in PAUSES)

    spans, rows, decodes = timeline.spans, timeline.contributions, timeline.decodes
    start_s = np.array([at for at, _ in PAUSES])
    end_s = later(start_s) + [rest for _, rest in PAUSES]
    pauses = Spans(
        np.full(2, -1, np.int32), np.full(2, len(timeline.kinds), np.int32), later(start_s), end_s
    )
    moved = replace(spans, start_s=later(spans.start_s), end_s=later(spans.end_s))
    return replace(
        timeline,
        kinds=(*timeline.kinds, PAUSE),
        folds=replace(timeline.folds, time_s=later(timeline.folds.time_s)),
        contributions=replace(rows, read_time_s=later(rows.read_time_s)),
        spans=Spans(*map(np.concatenate, zip(astuple(moved), astuple(pauses), strict=True))),
        decodes=replace(decodes, decode_time_s=later(decodes.decode_time_s)),
    )


def test_without_its_pauses_a_record_is_as_if_the_server_had_never_rested(
    sequence, corpus, beginning, simulated
) -> None:
    config = sequence(test=False)
    _, timeline, _ = simulated(config, beginning(config))
    (found, kinds), there = _times(remove_pauses(rested(timeline))), _times(timeline)[0]
    assert PAUSE not in kinds
    for name, time_s in there.items():
        np.testing.assert_allclose(found[name], time_s, rtol=0.0, atol=1e-12, err_msg=name)
    assert timeline.folds.time_s[-1] > PAUSES[-1][0]


def _times(timeline: Timeline) -> tuple[dict[str, np.ndarray], set[str]]:
    spans = timeline.spans
    times = {
        "folds": timeline.folds.time_s,
        "reads": timeline.contributions.read_time_s,
        "starts": spans.start_s,
        "ends": spans.end_s,
        "decodes": timeline.decodes.decode_time_s,
    }
    return times, {timeline.kinds[kind] for kind in spans.kind.tolist()}


def test_a_record_with_pauses_is_compared_with_its_own_simulation(
    sequence, corpus, beginning, simulated
) -> None:
    config = sequence(test=False, passes=3)
    _, timeline, told = simulated(config, beginning(config))
    found = beside(config, corpus, rested(timeline), told)
    there, ours = found.recorded, found.predicted
    assert there.throughput_per_s == pytest.approx(ours.throughput_per_s, rel=1e-9)
    for name in ("outer", "push"):
        (staleness, lag_s), predicted = there.lags[name], ours.lags[name]
        assert staleness.tolist() == predicted.staleness.tolist()
        np.testing.assert_allclose(lag_s, predicted.lag_s, rtol=0.0, atol=1e-12)
    lines = list(format_comparison(found))
    assert [line[:24].strip() for line in lines[-6:]] == [
        "mean outer staleness", "mean outer lag, s", "outer, KS distance",
        "mean push staleness", "mean push lag, s", "push, KS distance",
    ]  # fmt: skip
    mean = ours.lags["outer"].staleness.mean()
    assert mean > 1.0
    assert lines[-6].split()[-3:] == [f"{mean:.4g}"] * 2 + ["+0.0%"]
    assert [float(lines[at].split()[-1]) for at in (-4, -1)] == [0.0, 0.0]


def test_a_cluster_twice_as_fast_is_predicted_to_be(sequence, corpus, beginning, simulated) -> None:
    config = sequence(test=False, passes=3, decode_cost=0.0)
    _, timeline, told = simulated(config, beginning(config))
    ((name, card),) = config.cluster.devices.items()
    fast = replace(
        config.cluster,
        devices={name: replace(card, achieved_flops_per_s=2.0 * card.achieved_flops_per_s)},
        link=replace(config.cluster.link, bandwidth_bytes_per_s=2e7),
        server=replace(config.cluster.server, fold_s=0.00005),
    )
    found = beside(config, corpus, timeline, told, fast)
    ratio = found.predicted.throughput_per_s / found.recorded.throughput_per_s
    assert ratio == pytest.approx(2.0, rel=0.02)
    line = next(line for line in format_comparison(found) if line.startswith("folds a second"))
    assert line.split()[-1] == f"{ratio - 1.0:+.1%}"


def test_a_record_in_which_somebody_died_is_not_compared(
    sequence, corpus, beginning, simulated
) -> None:
    config = sequence(test=False)
    _, timeline, told = simulated(config, beginning(config))
    rows = timeline.contributions
    fold = np.where(rows.fold == 3, LOST, rows.fold)
    lost = replace(timeline, contributions=replace(rows, fold=fold))
    for record, said in ((timeline, replace(told, restarts=[5])), (lost, told)):
        with pytest.raises(UserError, match="a worker failed during this run"):
            time_record(config, corpus.split("train"), record, said)


def test_a_record_of_other_arithmetic_is_refused(sequence, corpus, beginning, simulated) -> None:
    config = sequence(test=False)
    _, timeline, told = simulated(config, start := beginning(config))
    told.rows[7] = told.rows[7]._replace(entering=told.rows[7].entering + 1)
    walked = SequenceRecordExecutor(
        config, Setup.from_config(config, corpus, start), timeline, told
    )
    with pytest.raises(UserError, match="frames are kept"):
        walked.advance(config.rate, Fraction(10**9))


def test_what_a_replica_had_is_handed_on_or_counted() -> None:
    replica = Replica(deque([5, 6]), {3: Assignment(9, 0, 0.0)}, left=12, under_way=4)
    assert not replica.done
    assert replica.give_up() == ([9, 5, 6], 16)
    assert replica.done


def test_what_was_told_survives_being_written(tmp_path: Path) -> None:
    told, start = (
        DecodeLog([Row(0, 1, 2, 3, 4, 5), Row(6, 7, 8, 9, 10, 11)], [40], 17),
        torch.rand(3),
    )
    save_file({**told.arrays(), "start": start.numpy()}, tmp_path / RECORD)
    again, model = load_decode_log(tmp_path / RECORD)
    assert again == told
    assert torch.equal(model, start)
    assert DecodeLog.from_arrays(DecodeLog().arrays()) == DecodeLog()


def test_a_run_without_such_a_file_or_with_another_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no told\.safetensors; allowed: a run on real"):
        load_decode_log(tmp_path / RECORD)
    (tmp_path / RECORD).write_bytes(b"something else")
    with pytest.raises(UserError, match="cannot be read as a record of decoding"):
        load_decode_log(tmp_path / RECORD)
