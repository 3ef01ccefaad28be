"""What a simulated run did is a record too: walked again, it gives the same training."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.numpy import save_file

from data_synth.corpus import Corpus
from harness.errors import UserError
from harness.execution.distributed_sequence_comparing import predict
from harness.execution.distributed_sequence_record import TOLD, Row, Told, load_told
from harness.execution.distributed_sequence_recorded import RecordedSequence
from harness.execution.distributed_sequence_replica import Handed, Replica
from harness.execution.sequence_config import SequenceConfig
from harness.execution.sequence_order import orders
from harness.execution.sequence_setup import Setup, network
from harness.execution.sequence_streams import Streams
from harness.simulator import Simulation, Timeline, concat
from harness.store import Store

WAYS = {
    "on the fly": {},
    "none": {"shuffling": "none", "slots": 3},
    "last layer, seldom fetched": {"layers": "last", "fetch_s": 0.02},
}


def silent(progress: object) -> None:
    del progress


@pytest.fixture
def simulated(
    corpus: Corpus, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[SequenceConfig, torch.Tensor], tuple[Streams, Timeline, Told]]:
    """Trains on a simulated cluster, and notes what its decoders said."""

    def run(config: SequenceConfig, start: torch.Tensor) -> tuple[Streams, Timeline, Told]:
        told, tell = Told(), Simulation.tell
        order = orders(config.seed, len(corpus.split("train")), config.replicas, config.passes)

        def noted(self, worker, kept):
            begun = self.untold()
            for at, entering in enumerate(kept.tolist()):
                who = int(begun.worker[at])
                told.rows.append(
                    Row(
                        int(begun.utterance[at]), who, int(order[who, begun.number[at]]),
                        int(begun.decode_version[at]), entering, self.version,
                    )
                )  # fmt: skip
            tell(self, worker, kept)

        monkeypatch.setattr(Simulation, "tell", noted)
        with Store(tmp_path).begin(config.to_dict()) as writer:
            training = Streams(config, corpus, start, writer, silent)
            assert training.run() == "done"
        return training, concat(training.segments), told

    return run


@pytest.fixture
def beginning(corpus: Corpus) -> Callable[[SequenceConfig], torch.Tensor]:
    """A model that nobody trained."""

    def make(config: SequenceConfig) -> torch.Tensor:
        size = network(config, corpus).layout.parameters
        return 0.3 * torch.randn(size, generator=torch.Generator().manual_seed(3))

    return make


@pytest.mark.parametrize("way", WAYS)
def test_a_record_of_a_simulated_run_leads_to_its_model(
    way: str, sequence, corpus, beginning, simulated
) -> None:
    config = sequence(test=False, **WAYS[way])
    training, timeline, told = simulated(config, start := beginning(config))
    walked = RecordedSequence(config, Setup.of(config, corpus, start), timeline, told)
    seen, ended = [], False
    for until in (5, 20, 21, 10**9):
        _, more, ended = walked.advance(config.rate, until)
        assert ended == (until > len(told.rows))
        seen += more
    assert walked.version == len(timeline.folds) > 20
    assert len(seen) == len(told.rows) == training.total.utterances + training.tally.utterances
    # The simulated run computed many contributions as one batch: the last bits differ.
    torch.testing.assert_close(walked.model, training.model, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(walked.model, Setup.of(config, corpus, start).part, atol=1e-3)


def test_a_prediction_that_keeps_the_same_frames_is_the_simulated_run(
    sequence, corpus, beginning, simulated
) -> None:
    config = sequence(test=False, passes=3)
    _, timeline, told = simulated(config, beginning(config))
    predicted = predict(config, corpus.split("train"), told)
    assert predicted.sha256() == timeline.sha256()


def test_a_record_of_other_arithmetic_is_refused(sequence, corpus, beginning, simulated) -> None:
    config = sequence(test=False)
    _, timeline, told = simulated(config, start := beginning(config))
    told.rows[7] = told.rows[7]._replace(entering=told.rows[7].entering + 1)
    walked = RecordedSequence(config, Setup.of(config, corpus, start), timeline, told)
    with pytest.raises(UserError, match="frames are kept"):
        walked.advance(config.rate, 10**9)


def test_what_a_replica_had_is_handed_on_or_counted() -> None:
    replica = Replica(deque([5, 6]), {3: Handed(9, 0, 0.0)}, left=12, under_way=4)
    assert not replica.done
    assert replica.give_up() == ([9, 5, 6], 16)
    assert replica.done


def test_what_was_told_survives_being_written(tmp_path: Path) -> None:
    told, start = Told([Row(0, 1, 2, 3, 4, 5), Row(6, 7, 8, 9, 10, 11)], [40], 17), torch.rand(3)
    save_file({**told.arrays(), "start": start.numpy()}, tmp_path / TOLD)
    again, model = load_told(tmp_path / TOLD)
    assert again == told
    assert torch.equal(model, start)
    assert Told.of(Told().arrays()) == Told()


def test_a_run_without_such_a_file_or_with_another_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no told\.safetensors; allowed: a run on real"):
        load_told(tmp_path / TOLD)
    (tmp_path / TOLD).write_bytes(b"something else")
    with pytest.raises(UserError, match="cannot be read as what decoders said"):
        load_told(tmp_path / TOLD)
