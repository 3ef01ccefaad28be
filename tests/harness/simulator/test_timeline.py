import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.base.errors import UserError
from harness.commands.outputs import write_trace
from harness.simulator.cluster import Jitter
from harness.simulator.timeline import (
    KINDS,
    LOST,
    Contributions,
    Folds,
    Restarts,
    Spans,
    Timeline,
    concat,
)
from harness.simulator.timeline_file import load_timeline, save_timeline


@pytest.fixture
def timeline(simulate):
    return simulate(3, copy_s=0.2, fold_s=0.1, jitter=Jitter("gamma", 0.5)).advance(folds=40)


def test_a_saved_timeline_comes_back_the_same(timeline, tmp_path):
    digest = save_timeline(timeline, tmp_path / "timeline.parquet")
    again = load_timeline(tmp_path / "timeline.parquet")
    assert again.sha256() == digest == timeline.sha256()
    assert again.kinds == timeline.kinds
    assert [path.name for path in tmp_path.iterdir()] == ["timeline.parquet"]


def test_saving_twice_gives_the_same_file(timeline, tmp_path):
    for name in ("a", "b"):
        save_timeline(timeline, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_an_empty_timeline_and_a_decode_version_survive_the_file(timeline, tmp_path):
    rows = timeline.contributions
    decoded = replace(timeline, contributions=replace(rows, decode_version=rows.read_version))
    for kept in (Timeline(), decoded):
        save_timeline(kept, tmp_path / "t")
        assert load_timeline(tmp_path / "t").sha256() == kept.sha256()
    assert decoded.sha256() != timeline.sha256()


def test_any_parquet_reader_finds_the_three_tables_in_the_file(timeline, tmp_path):
    save_timeline(timeline, tmp_path / "t")
    rows = pq.read_table(tmp_path / "t", filters=[("table", "=", "folds")])
    assert rows.column("time_s").to_pylist() == timeline.folds.time_s.tolist()


def test_a_changed_file_is_refused(timeline, tmp_path):
    save_timeline(timeline, tmp_path / "t")
    table = pq.read_table(tmp_path / "t")
    times = table.column("time_s").to_pylist()
    times[5] += 1e-9
    place = table.schema.get_field_index("time_s")
    changed = table.set_column(place, "time_s", pa.array(times, pa.float64()))
    notes = pq.read_metadata(tmp_path / "t").metadata
    kept = {name: notes[name] for name in (b"kinds", b"sha256")}
    pq.write_table(changed.replace_schema_metadata(kept), tmp_path / "t")
    with pytest.raises(UserError, match="does not match its SHA-256"):
        load_timeline(tmp_path / "t")


def test_a_file_that_is_no_timeline_is_refused(tmp_path):
    (tmp_path / "text").write_text("hello")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other")
    for name in ("text", "other", "missing"):
        with pytest.raises(UserError, match=f"{name}: "):
            load_timeline(tmp_path / name)


def test_a_timeline_that_cannot_be_written_leaves_nothing(timeline, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="parquet"):
        save_timeline(timeline, tmp_path / "file" / "t.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("column", ["time_s", "fold"])
def test_the_hash_sees_every_value(timeline, column):
    values = getattr(timeline.folds, column).copy()
    values[7] += 1
    changed = replace(timeline, folds=replace(timeline.folds, **{column: values}))
    assert changed.sha256() != timeline.sha256()


def test_staleness_and_lag_are_those_of_the_definition(timeline):
    rows = timeline.folded()
    for k in range(40):
        assert timeline.staleness()[k] == rows.fold[k] - rows.read_version[k] >= 0
        assert timeline.lag_s()[k] == timeline.folds.time_s[k] - rows.read_time_s[k] > 0


def test_a_later_segment_knows_its_lag_too(simulate):
    simulation = simulate(3)
    simulation.advance(folds=5)
    segment = simulation.advance(folds=4)
    assert segment.folds.fold.tolist() == [5, 6, 7, 8]
    assert segment.lag_s().tolist() == [1.0] * 4


def test_a_row_in_flight_folds_in_a_later_segment_with_what_it_read(simulate):
    simulation = simulate(3, fold_s=0.1)
    first, second = simulation.advance(folds=4), simulation.advance(folds=4)
    known = dict(zip(*rows_of(first.in_flight()), strict=True))
    later = dict(zip(*rows_of(second.folded()), strict=True))
    assert known
    assert all(later[step] == version for step, version in known.items())


def rows_of(contributions):
    return contributions.first_step.tolist(), contributions.read_version.tolist()


def test_concat_of_nothing_is_empty_and_of_one_is_itself(timeline):
    assert concat([]).sha256() == Timeline().sha256()
    assert concat([timeline]).sha256() == timeline.sha256()


def test_the_trace_has_a_slice_a_span_and_an_arrow_a_fold(timeline, tmp_path):
    write_trace(timeline, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    by_phase = {phase: [e for e in events if e["ph"] == phase] for phase in "MXsfi"}
    assert len(events) == sum(map(len, by_phase.values()))
    assert len(by_phase["X"]) == len(timeline.spans)
    assert len(by_phase["s"]) == len(by_phase["f"]) == len(by_phase["i"]) == 40
    names = {e["tid"]: e["args"]["name"] for e in by_phase["M"] if e["name"] == "thread_name"}
    assert set(names.values()) == {"server", "worker 0", "worker 1", "worker 2"}
    assert all(e["tid"] in names and e["ts"] >= 0 for e in events if e["ph"] != "M")
    rows = timeline.folded()
    for number, (start, end) in enumerate(zip(by_phase["s"], by_phase["f"], strict=True)):
        assert start["id"] == end["id"] == number
        assert names[start["tid"]] == f"worker {rows.worker[number]}"
        assert start["ts"] == rows.read_time_s[number] * 1e6
        assert end["ts"] == pytest.approx(timeline.folds.time_s[number] * 1e6)
        assert by_phase["i"][number]["args"]["staleness"] == timeline.staleness()[number]


def test_columns_have_the_types_that_other_parts_rely_on(timeline):
    types = {name: c.dtype for t in timeline.tables().values() for name, c in t.columns().items()}
    assert types == {
        **dict.fromkeys(("fold", "read_version", "first_step"), np.int64),
        **dict.fromkeys(("worker", "steps", "kind"), np.int32),
        **dict.fromkeys(("time_s", "read_time_s", "start_s", "end_s"), np.float64),
    }


def test_what_a_restart_undid_is_from_the_checkpoint_to_the_failure():
    fold = np.array([0, 1, 2, 3, 4, 5, LOST])
    none = np.zeros(7, np.int64)
    rows = Contributions(fold, none.astype(np.int32), none, none * 0.0, none, none.astype(np.int32))
    restarts = Restarts(np.array([9.0]), np.array([4]), np.array([2]))
    made = Timeline(contributions=rows, restarts=restarts)
    assert made.kept().fold.tolist() == [0, 1, 4, 5]
    assert replace(made, restarts=Restarts()).kept().fold.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_timeline_prints_a_summary_of_five_lines():
    folds = Folds(np.arange(4), np.array([1.0, 2.0, 3.0, 4.0]))
    contributions = Contributions(
        np.arange(4), np.array([0, 1, 0, 1], np.int32), np.array([0, 0, 1, 2]),
        np.array([0.0, 0.0, 1.0, 2.0]), np.arange(4), np.ones(4, np.int32),
    )  # fmt: skip
    kind = np.full(4, KINDS.index("compute"), np.int32)
    starts = np.array([0.0, 0.0, 1.0, 2.0])
    spans = Spans(np.array([0, 1, 0, 1], np.int32), kind, starts, starts + 1.0)

    assert str(Timeline(folds, contributions, spans)).splitlines() == [
        "2 workers: 4 folds (updates of the model) of 4 contributions in 4 s of simulated time",
        "throughput  1 minibatches/s, 0.5 a worker",
        "staleness   mean 0.75, p95 1, max 1 folds",
        "lag         mean 1.75 s, p95 2 s, max 2 s, from a read to its fold",
        "computing   50% of the workers' time",
    ]
    assert Timeline()._repr_html_() == "<pre>timeline without folds</pre>"
