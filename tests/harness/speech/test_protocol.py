from pathlib import Path

import numpy as np
import pytest

from harness.base.errors import UserError
from harness.simulator.cluster import Jitter, load_cluster
from harness.simulator.simulation import Simulation
from harness.simulator.timeline import concat
from harness.speech.lags import outer_lag
from harness.speech.protocol import Sequence
from tests.harness.simulator.conftest import UNIT_JOB, make_cluster

LOGNORMAL = Jitter("lognormal", 0.3)
BUSY = {"copy_s": 0.2, "latency_s": 0.01, "fold_s": 0.1, "jitter": LOGNORMAL}
SMALL = {"slots": 4, "frames": 60.0, "kept": 0.1, "decode_cost": 1.0}
CLUSTERS = Path(__file__).parents[3] / "reproductions" / "clusters"


def run(workers=3, seed=0, durations=BUSY, lengths=None, **settings):
    """A simulation of sequence training on a cluster with the durations named."""
    machine, protocol = make_cluster(workers, **durations), Sequence(**settings)
    if lengths is not None:
        protocol = protocol.give(np.array(lengths))
    return Simulation(machine, protocol, UNIT_JOB, workers, seed)


def test_decoder_and_trainer_each_read_for_themselves():
    """Decoding takes 5 s, each of the 2 frames kept a step of 1 s; worked out by hand."""
    alone = {"slots": 1, "frames": 10.0, "frames_cv": 0.0, "kept": 0.2, "decode_cost": 0.5}
    timeline = run(1, durations={}, **alone).advance(folds=6)
    assert timeline.folds.time_s.tolist() == [6.0, 7.0, 11.0, 12.0, 16.0, 17.0]
    assert timeline.folded().read_version.tolist() == [0, 1, 2, 3, 4, 5]
    assert timeline.folded().decode_version.tolist() == [0, 0, 0, 0, 2, 2]
    assert timeline.decodes.decode_time_s.tolist() == [0.0, 5.0, 10.0]
    updates, seconds = outer_lag(timeline)
    assert updates.tolist() == [0, 1, 2, 3, 2, 3]
    assert seconds.tolist() == [6.0, 7.0, 6.0, 7.0, 6.0, 7.0]
    ages = Sequence(**alone).measure(timeline, 1)
    assert ages == {"outer_lag_s_mean": 6.5, "outer_staleness_mean": 11 / 6}


def test_pieces_queue_at_their_own_shards_and_the_fold_is_the_last_of_them():
    """Two workers, two shards: half a copy and half a fold are 0.5 s each."""
    one = {"slots": 1, "frames": 1.0, "frames_cv": 0.0, "kept": 1.0, "decode_cost": 0.0}
    simulation = run(2, durations={"copy_s": 1.0, "fold_s": 1.0}, shards=2, fetch_s=1e9, **one)
    timeline = simulation.advance(folds=2)
    # decode read 1, fetch 1, compute 1: pieces arrive at 3.5 and 4, each at a shard that is free
    assert timeline.folds.time_s.tolist() == [4.5, 4.5]
    spans = timeline.spans
    lanes = {
        lane: list(
            zip(spans.start_s[spans.worker == lane], spans.end_s[spans.worker == lane], strict=True)
        )
        for lane in (-1, -2)
    }
    assert lanes == {-1: [(3.5, 4.0), (4.0, 4.5)], -2: [(4.0, 4.5), (3.5, 4.0)]}


def test_with_nothing_to_decode_it_is_the_parameter_server():
    machine = make_cluster(7, fold_s=0.1, jitter=LOGNORMAL)
    free = Sequence(slots=1, frames=5.0, kept=1.0, decode_cost=0.0)
    ours = Simulation(machine, free, UNIT_JOB, 7, 3).advance(folds=500)
    theirs = Simulation(machine, "parameter_server", UNIT_JOB, 7, 3).advance(folds=500)
    assert ours.folds.time_s.tolist() == theirs.folds.time_s.tolist()
    assert ours.folded().worker.tolist() == theirs.folded().worker.tolist()
    assert ours.staleness().tolist() == theirs.staleness().tolist()


def test_a_contribution_tells_its_oldest_decode():
    timeline = run(workers=2, **SMALL).advance(folds=300)
    rows, decodes = timeline.folded(), timeline.decodes
    for worker in range(2):
        mine = rows.decode_version[rows.worker == worker]
        ours = decodes.where(decodes.worker == worker)
        for step in range(len(mine)):
            live = (ours.first_step <= step) & (step < ours.first_step + ours.steps)
            assert mine[step] == ours.decode_version[live].min()


def test_decoders_fetch_all_at_once_at_multiples_of_the_interval():
    timeline = run(fetch_s=50.0, **SMALL).advance(folds=600)
    times = np.unique(timeline.decodes.decode_time_s)
    assert times[0] == 0.0
    assert len(np.unique(np.floor(timeline.decodes.decode_time_s / 50.0))) > 3
    for worker in range(3):
        mine = timeline.decodes.decode_time_s[timeline.decodes.worker == worker]
        reads = np.unique(mine)
        assert len(np.unique(np.floor(reads / 50.0))) == len(reads)
    # A decoder that is decoding at a multiple reads when it begins its next utterance.
    rare, often = (outer_lag(run(fetch_s=f, **SMALL).advance(folds=600))[1] for f in (200.0, 1.0))
    assert rare.mean() > 1.5 * often.mean()


def test_lengths_have_the_mean_and_spread_asked_for():
    timeline = run(slots=8, frames=200.0, frames_cv=0.5, kept=1.0).advance(folds=20_000)
    lengths = timeline.decodes.steps
    assert lengths.mean() == pytest.approx(200.0, rel=0.03)
    assert lengths.std() / lengths.mean() == pytest.approx(0.5, rel=0.05)


def test_sequence_training_on_a_shared_link_is_refused():
    with pytest.raises(UserError, match="sharing"):
        run(durations={"copy_s": 1.0, "sharing": "fair"})


def test_more_replicas_make_outer_gradients_older_in_updates_and_not_in_seconds():
    cluster = load_cluster(CLUSTERS / "distbelief.toml")
    ages = {}
    for workers in (1, 10, 50):
        simulation = Simulation(cluster, "sequence", cluster.workload, workers)
        figures = Sequence().measure(simulation.advance(folds=200 * workers), workers)
        ages[workers] = figures["outer_lag_s_mean"], workers * figures["outer_staleness_mean"]
    seconds, updates = zip(*ages.values(), strict=True)
    assert seconds == pytest.approx([seconds[0]] * 3, rel=0.15)
    assert updates == pytest.approx([updates[0] * n**2 for n in ages], rel=0.1)


def given(lengths, **more):
    return run(workers=len(lengths), lengths=lengths, **more)


def told(simulation, keep, segments=None):
    """Everything that happens when ``keep(worker, number)`` frames are kept of each utterance."""
    segments = [] if segments is None else segments
    while True:
        segments.append(simulation.advance(folds=10**6))
        waiting = simulation.asked()
        if not len(waiting.worker):
            return concat(segments)
        pairs = zip(waiting.worker.tolist(), waiting.number.tolist(), strict=True)
        simulation.answer(waiting.worker, np.array([keep(*pair) for pair in pairs]))


def test_a_segment_ends_before_a_decoding_of_which_nobody_was_told():
    """Decoding 10 frames takes 5 s; worked out by hand."""
    settings = {"slots": 1, "decode_cost": 0.5}
    simulation = given([[10, 4, 6]], durations={}, **settings)
    first = simulation.advance(folds=100)
    assert (len(first.folds), simulation.now_s) == (0, 0.0)
    waiting = simulation.asked()
    assert [field.tolist() for field in waiting] == [[0], [0], [0], [0], [0.0]]
    simulation.answer(waiting.worker, np.array([2]))
    second = simulation.advance(folds=100)
    assert second.folds.time_s.tolist() == [6.0, 7.0]
    # The next decoding began at 5 s with version 0 and would end at 7 s, where a fold comes first.
    waiting = simulation.asked()
    assert [field.tolist() for field in waiting] == [[0], [1], [1], [0], [5.0]]
    simulation.answer(waiting.worker, np.array([0]))
    third = simulation.advance(folds=100)
    waiting = simulation.asked()
    assert (len(third.folds), waiting.number.tolist()) == (0, [2])
    assert waiting.decode_version.tolist() == [2]
    simulation.answer(waiting.worker, np.array([1]))
    assert simulation.advance(folds=100).folds.time_s.tolist() == [11.0]
    assert simulation.drained


def test_given_what_drawn_lengths_keep_the_timeline_is_the_drawn_one():
    constant = {"slots": 4, "frames": 50.0, "frames_cv": 0.0, "kept": 0.2, "decode_cost": 1.0}
    drawn = run(workers=3, **constant).advance(folds=200)
    simulation = given([[50] * 1000] * 3, slots=4, decode_cost=1.0)
    segments = []
    while simulation.version < 200:
        segments.append(simulation.advance(folds=200 - simulation.version))
        waiting = simulation.asked()
        if simulation.version < 200:
            simulation.answer(waiting.worker, np.full(len(waiting.worker), 10))
    assert concat(segments).sha256() == drawn.sha256()


@pytest.mark.parametrize("shuffled", [True, False])
def test_every_kept_frame_is_trained_on_once_and_then_nobody_is_busy(shuffled):
    draw = np.random.default_rng(1)
    lengths = draw.integers(5, 30, (3, 17))
    lengths[1, 11:] = 0
    kept = draw.integers(0, 9, (3, 17)) % (lengths + 1)
    simulation = given(lengths, slots=4, shuffled=shuffled)
    timeline = told(simulation, lambda worker, number: kept[worker, number])
    assert simulation.drained
    decodes, rows = timeline.decodes, timeline.folded()
    for worker in range(3):
        mine = decodes.where(decodes.worker == worker)
        expected = [k for k, n in zip(kept[worker], lengths[worker], strict=True) if n and k]
        assert mine.steps.tolist() == expected
        steps = int((rows.worker == worker).sum())
        if shuffled:
            assert steps == (mine.first_step + mine.steps).max()
        else:
            assert steps == -(-sum(expected) // 4)
            before = np.concatenate([[0], np.cumsum(mine.steps)[:-1]])
            assert mine.first_step.tolist() == (before // 4).tolist()
    assert len(timeline.contributions) == len(timeline.folds) == len(rows)


def test_a_minibatch_that_is_not_full_takes_its_share_of_the_time():
    """Three frames for two slots: the last minibatch has one frame and takes half a second."""
    simulation = given([[3]], durations={}, slots=2, decode_cost=0.0, shuffled=False)
    timeline = told(simulation, lambda worker, number: 3)
    assert timeline.folds.time_s.tolist() == [1.0, 1.5]


def test_given_lengths_survive_segments_and_a_restore():
    draw = np.random.default_rng(2)
    lengths = draw.integers(5, 30, (3, 12))

    def keep(worker, number):
        return int(lengths[worker, number]) // 3

    whole = told(given(lengths, slots=4), keep)
    simulation, segments = given(lengths, slots=4), []
    for _ in range(9):
        segments.append(simulation.advance(folds=10**6))
        waiting = simulation.asked()
        state = simulation.state()
        simulation = Simulation.restore(simulation.cluster, simulation.protocol, state, 3)
        pairs = zip(waiting.worker.tolist(), waiting.number.tolist(), strict=True)
        simulation.answer(waiting.worker, np.array([keep(*pair) for pair in pairs]))
    assert told(simulation, keep, segments).sha256() == whole.sha256()


def test_what_was_kept_is_told_once():
    simulation = given([[10]], slots=1)
    simulation.advance(folds=1)
    simulation.answer(np.array([0]), np.array([1]))
    with pytest.raises(ValueError, match="set once"):
        simulation.answer(np.array([0]), np.array([1]))


def test_a_protocol_that_does_not_declare_questions_asks_none():
    simulation = Simulation(make_cluster(), "parameter_server", UNIT_JOB)
    with pytest.raises(ValueError, match="'parameter_server' does not declare 'questions'"):
        simulation.asked()
    with pytest.raises(ValueError, match="'parameter_server' does not declare 'questions'"):
        simulation.answer(np.array([0]), np.array([1]))


def test_lengths_are_of_as_many_workers_as_there_are_and_of_no_identity():
    given = Sequence().give(np.array([[1]]))
    assert (given, given.to_dict()) == (Sequence(), Sequence().to_dict())
    for lengths in ([[1], [2]], [[]]):
        with pytest.raises(ValueError, match=r"lengths of shape \(.*\) for 1 workers"):
            run(workers=1, lengths=lengths)


def test_outer_lag_follows_frames_that_are_not_shuffled_to_their_minibatches():
    lengths = np.random.default_rng(3).integers(5, 30, (3, 20))
    simulation = given(lengths, slots=4, shuffled=False)
    timeline = told(simulation, lambda worker, number: int(lengths[worker, number]) // 2)
    decodes, rows = timeline.decodes, timeline.folded()
    expected, waiting = [], {worker: [] for worker in range(3)}
    folds = {worker: rows.fold[rows.worker == worker].tolist() for worker in range(3)}
    for row in range(len(decodes)):
        frames = waiting[int(decodes.worker[row])]
        for _ in range(int(decodes.steps[row])):
            fold = folds[int(decodes.worker[row])][len(frames) // 4]
            frames.append(fold)
            expected.append(fold - int(decodes.decode_version[row]))
    assert outer_lag(timeline, slots=4)[0].tolist() == expected
