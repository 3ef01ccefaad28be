"""Sequence training on real processes: its record replays to the same bits, deaths cost little."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import cli
from harness.algorithms.async_sgd import AsyncSgd
from harness.base.errors import UserError
from harness.fidelity.compare import compare_to_prediction
from harness.fidelity.replay import config_of, load_finished_run, replay_run
from harness.processes.rank_main import serve
from harness.simulator import LOST, Timeline
from harness.simulator.timeline_file import load_timeline
from harness.speech.frames import corpus_of
from harness.speech.recorded_executor import replay
from harness.speech.sequence_server import DecodeLog, load_decode_log
from harness.speech.sequence_training import RECORD
from harness.store import Run, Store
from harness.store.schema import MODEL, TIMELINE
from harness.train import parser
from tests.harness.conftest import PAUSE
from tests.run_files import written
from tests.silence import silent

Launch = Callable[..., Any]
UTTERANCES = 300
IN_PARTS = 'algorithm = { is = "PartialFolds" }'
"""Which differs from plain folds however stale they are."""
FETCH_S = 0.5
CHECKPOINT = "*/checkpoint/checkpoint.safetensors"
OFTEN = """
import math, os, sys
from harness.processes import rank_main as command
from harness.speech import sequence_server as sequence_command
from harness.training import loop
from harness.train import main
words = sys.argv[1:]
class Often(sequence_command.SequenceServerExecutor):
    def __init__(self, *parts):
        super().__init__(*parts)
        loop.CHECKPOINT_EVERY_S, loop.CHECKPOINT_SHARE = 0.0, math.inf
sequence_command.SequenceServerExecutor = Often
def dies(*told, **asked):
    os._exit(9)
{special}
os._exit(main(words))
"""
"""The program, with a checkpoint after every step of sequence training."""
SPECIAL = {
    "joined": "command.await_run = dies",
    "of another seed": "words += ['--seed', '5']",
    "loading": "command.load_run = dies",
    "pauses": PAUSE,
}
"""When or how one process is another: it dies then, or it is."""
RUN = """
is = "SequenceConfig"
corpus = "voice-search-small"
cluster = "cluster.toml"
replicas = {replicas}
slots = 32
rate = 0.0001
evaluations = 4
held_out = 4
order = 1
test = false
decode_cost = 0.2
{more}
[criterion]
numerator = "sum"
cancel_below = 0.5
[start]
hidden = [16]
activation = "relu"
workers = 1
evaluations = 1
tested = "never"
algorithm = {{ is = "AsyncSgd" }}
schedule = {{ is = "Constant", rate = 0.01 }}
stages = [{{ minibatch = 32, timed_minibatch = 32, share = 0.1 }}]
"""


def asked_for(folder: Path, seconds: float, replicas: int = 2, more: str = "") -> Path:
    return written(folder, RUN.format(replicas=replicas, more=more), seconds)


@pytest.fixture
def group(tmp_path: Path, launch: Launch) -> Launch:
    """Starts a server, and a trainer and a decoder for each replica; one may be special."""

    def started(run: Path, size: int, when: str = "", who: int = -1) -> Any:
        programs = {}
        for rank in range(size):
            programs[rank] = tmp_path / f"{rank}.py"
            special = SPECIAL[when] if rank == who else ""
            programs[rank].write_text(OFTEN.format(special=special), encoding="utf-8")
        return launch(run, size, instead=programs)

    return started


def the_run(store: Path) -> Run:
    (told,) = store.glob(f"*/{RECORD}")
    return load_finished_run(told.parent)


def final(run: Run) -> bytes:
    return run.path(MODEL).read_bytes()


def record(run: Run) -> tuple[Timeline, DecodeLog]:
    timeline, (told, _) = load_timeline(run.dir / TIMELINE), load_decode_log(run.dir / RECORD)
    assert sorted(row.utterance for row in told.rows) == list(range(UTTERANCES))
    reads = timeline.contributions.first_step.tolist()
    assert sorted(reads) == list(range(len(reads)))
    return timeline, told


def each_fetches_once_in(interval_s: float, timeline: Timeline) -> None:
    decodes = timeline.decodes
    for worker in (0, 1):
        read_s = decodes.decode_time_s[decodes.worker == worker]
        distinct = set(read_s.tolist())
        assert 1 < len(distinct) < len(read_s)
        assert len({int(time_s / interval_s) for time_s in distinct}) == len(distinct)


def again(run: Run) -> None:
    found = replay_run(run.dir, silent)
    assert found.replayed_sha256 == found.recorded_sha256
    assert found.folds > 50


def test_a_run_is_recorded_replays_to_the_same_bits_and_measurements_and_is_predicted(
    tmp_path: Path, group: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = f'fetch_s = {FETCH_S}\nlayers = "last"\n{IN_PARTS}'
    run_file = asked_for(tmp_path, 0.002, more=asked)
    running = group(run_file, 5)
    codes, written_down = running.ended()
    assert codes == [0] * 5, written_down
    run = the_run(tmp_path / "s")
    timeline, told = record(run)
    assert told.lost_frames == 0
    assert set(timeline.folded().worker.tolist()) == {0, 1}
    assert timeline.staleness().max() >= 1
    assert int(timeline.decodes.steps.sum()) == sum(row.entering for row in told.rows)
    each_fetches_once_in(FETCH_S, timeline)
    config = config_of(run)
    corpus = corpus_of(config, silent)
    second = replay(config, corpus, run, Store(tmp_path / "again"), silent)
    assert final(second) == final(run)
    plain = replace(config, algorithm=AsyncSgd())
    with suppress(UserError):  # that its decoders keep other frames, mostly
        assert final(replay(plain, corpus, run, Store(tmp_path / "plain"), silent)) != final(run)
    for name in ("held_out_criterion", "train_criterion", "kept_frames", "rate"):
        (epochs, values, _), (repeated, theirs, _) = run.curve(name), second.curve(name)
        assert (epochs.tolist(), values.tolist()) == (repeated.tolist(), theirs.tolist())
    lags = compare_to_prediction(run.dir).recorded.lags
    for name in ("outer", "push"):
        mean = lags[name].staleness.mean()
        assert mean == pytest.approx(run.summary[f"{name}_staleness_mean"])
    assert cli.main(["compare", str(run.dir)]) == 0
    line = f"mean outer staleness{'':4}{lags['outer'].staleness.mean():12.4g}"
    assert line in capsys.readouterr().out


def test_a_killed_decoder_costs_its_replica_and_the_others_take_over(
    tmp_path: Path, group: Launch
) -> None:
    running = group(asked_for(tmp_path, 0.005), 5)
    running.wait_for(CHECKPOINT)
    running.kill(4)
    codes, told = running.ended()
    assert codes == [0, 0, 0, 3, -9], told
    assert "replica 1: its " in told[0]
    assert "; 1 left" in told[0]
    assert "the other half of the replica is gone" in told[3]
    timeline, kept = record(run := the_run(running.store))
    # A replica that dies before it has entered anything has nothing to lose.
    assert kept.lost_frames > 0 or all(row.worker == 0 for row in kept.rows)
    assert set(timeline.lost().worker.tolist()) <= {1}
    last = {worker: timeline.folds.time_s[fold] for fold, worker in _folded(timeline)}
    assert last.get(1, 0.0) < last[0]  # it may have died before its first fold
    again(run)


def test_a_killed_server_goes_on_from_its_checkpoint(tmp_path: Path, group: Launch) -> None:
    run_file = asked_for(tmp_path, 0.001, replicas=1)
    killed = group(run_file, 3, "pauses", 0)
    killed.wait_for_pause()
    killed.kill(0)
    codes, told = killed.ended()
    assert codes == [-9, 3, 3]
    assert all("error: replica 0: " in line for line in told[1:])
    resumed = group(run_file, 3)
    codes, told = resumed.ended()
    assert codes == [0, 0, 0], told
    timeline, kept = record(run := the_run(resumed.store))
    assert len(kept.restarts) == 1
    assert (timeline.contributions.fold == LOST).sum() <= 1
    times = timeline.folds.time_s
    assert (times[1:] > times[:-1]).all()
    again(run)
    finished = group(run_file, 3)
    assert finished.ended() == ([0, 0, 0], [""] * 3)


def test_a_trainer_that_dies_before_training_begins_costs_its_replica(
    tmp_path: Path, group: Launch
) -> None:
    running = group(asked_for(tmp_path, 0.001), 5, "loading", 3)
    codes, told = running.ended()
    assert codes == [0, 0, 0, 9, 3], told
    assert "replica 1: its trainer is gone: its connection closed; 0 frames lost" in told[0]
    timeline, _ = record(the_run(running.store))
    assert set(timeline.folded().worker.tolist()) == {0}


def test_a_trainer_of_another_seed_is_refused_and_contributes_nothing(
    tmp_path: Path, group: Launch
) -> None:
    run_file = asked_for(tmp_path, 0.001, replicas=1)
    running = group(run_file, 3, "of another seed", 1)
    codes, told = running.ended()
    assert codes == [3, 2, 3], told
    assert re.search(
        r"error: \S+: run \w+ is not allowed; allowed: \w+, as the server has it", told[1]
    )
    assert "error: no replica is left; " in told[0]
    assert not any("Traceback" in each for each in told)


def test_a_process_that_dies_before_the_run_begins_costs_its_replica_and_the_last_one_the_run(
    tmp_path: Path, group: Launch
) -> None:
    running = group(asked_for(tmp_path, 0.001, replicas=1), 3, "joined", 2)
    codes, told = running.ended()
    assert codes == [3, 3, 9], told
    assert told[0].splitlines()[-1].startswith("error: no replica is left; the")
    assert "Traceback" not in told[0] + told[1]


def _folded(timeline: Timeline) -> list[tuple[int, int]]:
    rows = timeline.folded()
    return list(zip(rows.fold.tolist(), rows.worker.tolist(), strict=True))


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ('shuffling = "full"', "shuffling: 'full' is not allowed on real processes"),
        ("shards = 2", "shards: 2 is not allowed on real processes; allowed: 1"),
        ("passes = 2", "replicas: 2 is not allowed with 3 processes; needed are 5"),
    ],
)
def test_what_cannot_be_is_one_line_and_nobody_waits(tmp_path: Path, more: str, line: str) -> None:
    asked = parser().parse_args([str(asked_for(tmp_path, 0.01, more=more))])
    with pytest.raises(UserError, match=line):
        serve(asked, 3)


def test_nobody_comes_back_to_sequence_training(tmp_path: Path) -> None:
    asked = parser().parse_args([str(asked_for(tmp_path, 0.01)), "--restarts", "2"])
    with pytest.raises(UserError, match="--restarts 2: workers cannot rejoin"):
        serve(asked, 5)
