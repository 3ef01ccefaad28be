import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from harness.base.errors import UserError
from harness.base.seeds import identity
from harness.store import AlreadyFinished, Store

CONFIG = {"seed": 0, "rate": 0.1}


def log_some(writer, count=3, start=0):
    for fold in range(start, count):
        writer.log("loss", 1 / (1 + fold), fold=fold, time_s=0.5 * fold, epoch=fold / 8)


def finished(store, config=CONFIG, **finish):
    with store.begin(config) as writer:
        log_some(writer)
        writer.finish(**finish)
    return store.load(identity(config))


def test_a_finished_run_reads_back_as_it_was_logged(tmp_path):
    run = finished(Store(tmp_path), summary={"dev": 0.25, "epochs": 2}, note="a note")
    epoch, value, time_s = run.curve("loss")
    assert (run.status, run.summary, run.note) == ("done", {"dev": 0.25, "epochs": 2}, "a note")
    assert run.config == CONFIG
    assert value.tolist() == [1, 1 / 2, 1 / 3]
    assert epoch.tolist() == [0, 1 / 8, 2 / 8]
    assert time_s.tolist() == [0, 0.5, 1]


@pytest.mark.parametrize(
    ("status", "note", "told"),
    [
        ("diverged", "in MMI at fold 9: rate 0.1", " diverged in MMI at fold 9: rate 0.1"),
        ("diverged", "no longer finite at fold 9", " diverged: no longer finite at fold 9"),
        ("failed", "ValueError: no", " failed: ValueError: no"),
        ("done", "", " done"),
    ],
)
def test_what_became_of_a_run_is_one_line(tmp_path, status, note, told):
    run = finished(Store(tmp_path), status=status, note=note)
    assert run.ending("large, seed 22") == f"large, seed 22 ({run.hash[:12]}){told}"


def test_a_further_column_is_nan_where_a_row_has_none(tmp_path):
    store = Store(tmp_path)
    with store.begin(CONFIG) as writer:
        writer.log("loss", 1.0, fold=0, time_s=0, epoch=0)
        writer.log("loss", 2.0, fold=1, time_s=0, epoch=0, rate=0.1)
        writer.finish()
    rate = store.load(identity(CONFIG)).metrics["rate"]
    assert math.isnan(rate[0])
    assert rate[1] == 0.1


def test_equal_results_are_equal_bytes_and_provenance_stands_apart(tmp_path):
    one, other = (finished(Store(tmp_path / name), summary={"b": 1, "a": 2.5}) for name in "ab")
    for name in ("run.json", "metrics.parquet", "config.json"):
        assert (one.dir / name).read_bytes() == (other.dir / name).read_bytes()
    assert "started" not in (one.dir / "run.json").read_text()
    assert one.provenance["wall_s"] >= 0


def test_a_run_keeps_what_it_took_of_the_processor_and_not_what_it_waited(tmp_path):
    with Store(tmp_path).begin(CONFIG) as writer:
        time.sleep(0.3)
        begun = time.process_time()
        while time.process_time() < begun + 0.1:
            pass
        writer.finish()
    moment = Store(tmp_path).load(identity(CONFIG)).provenance
    assert moment["processor_s"] >= 0.1
    assert moment["wall_s"] - moment["processor_s"] >= 0.2


@pytest.mark.parametrize("continues", [True, False])
def test_a_run_that_is_continued_keeps_the_facts_of_its_beginning(tmp_path, continues):
    store = Store(tmp_path)
    with store.under({"commit": "first"}).begin(CONFIG) as writer:
        if continues:
            writer.checkpoint.mkdir()
    assert store.load(identity(CONFIG)).status == "unfinished"
    run = finished(store.under({"commit": "second"}))
    assert run.provenance["under"] == {"commit": "first" if continues else "second"}
    assert "under" not in (run.dir / "run.json").read_text()


def test_a_run_that_was_begun_without_facts_gets_none_later(tmp_path):
    with Store(tmp_path).begin(CONFIG) as writer:
        writer.checkpoint.mkdir()
    assert "under" not in finished(Store(tmp_path).under({"commit": "late"})).provenance


def test_rows_of_a_checkpoint_restore_the_same_bytes(tmp_path):
    straight = finished(Store(tmp_path / "straight"))
    store = Store(tmp_path / "resumed")
    with store.begin(CONFIG) as writer:
        log_some(writer, 2)
        writer.checkpoint.mkdir()
        (writer.checkpoint / "rows.json").write_text(json.dumps(writer.rows()))
        log_some(writer, 3, start=2)  # logged after the checkpoint, then the process dies
    with store.begin(CONFIG) as writer:
        writer.restore_rows(json.loads((writer.checkpoint / "rows.json").read_text()))
        log_some(writer, 3, start=2)
        writer.finish()
    resumed = store.load(identity(CONFIG))
    name = "metrics.parquet"
    assert (resumed.dir / name).read_bytes() == (straight.dir / name).read_bytes()
    assert not (resumed.dir / "checkpoint").exists()


def test_rows_survive_a_checkpoint_with_values_that_are_not_finite(tmp_path):
    store = Store(tmp_path)
    with store.begin(CONFIG) as writer:
        writer.log("loss", math.inf, fold=0, time_s=0, epoch=0)
        writer.log("loss", math.nan, fold=1, time_s=0, epoch=0, rate=0.5)
        before = writer.rows()
        kept = json.dumps(before)
        writer.restore_rows([])
        writer.restore_rows(json.loads(kept))
        assert repr(writer.rows()) == repr(before)


def test_a_summary_value_that_is_not_finite_is_null_on_disk_and_nan_when_read(tmp_path):
    run = finished(Store(tmp_path), status="diverged", summary={"dev": np.float32("inf")})
    assert '"dev": null' in (run.dir / "run.json").read_text()
    assert math.isnan(run.summary["dev"])
    assert run.status == "diverged"


def test_a_diverged_run_is_a_result_and_a_failed_one_is_tried_again(tmp_path):
    store = Store(tmp_path)
    finished(store, {"seed": 1}, status="diverged")
    finished(store, {"seed": 2}, status="failed")
    assert store.has(identity({"seed": 1}))
    assert not store.has(identity({"seed": 2}))
    with pytest.raises(AlreadyFinished) as caught:
        store.begin({"seed": 1})
    assert caught.value.run.status == "diverged"
    assert finished(store, {"seed": 2}).status == "done"


def test_obtain_executes_once_and_then_reuses(tmp_path):
    store, calls = Store(tmp_path), []

    def execute(writer):
        calls.append(writer.hash)
        writer.finish()

    assert store.obtain(CONFIG, execute).hash == store.obtain(CONFIG, execute).hash
    assert calls == [identity(CONFIG)]


def test_runs_lists_every_run_with_its_status(tmp_path):
    store = Store(tmp_path)
    finished(store, {"seed": 1})
    finished(store, {"seed": 2}, status="diverged")
    store.begin({"seed": 3}).release()
    by_seed = {run.config["seed"]: run.status for run in store.runs()}
    assert by_seed == {1: "done", 2: "diverged", 3: "unfinished"}
    assert Store(tmp_path / "nowhere").runs() == []


def test_attached_files_are_found(tmp_path):
    store = Store(tmp_path)
    (tmp_path / "source").write_bytes(b"spans")
    with store.begin(CONFIG) as writer:
        writer.attach("timeline.parquet", tmp_path / "source")
        writer.attach("note.txt", b"text")
        writer.finish()
    run = store.load(identity(CONFIG))
    assert run.path("timeline.parquet").read_bytes() == b"spans"
    with pytest.raises(UserError, match=r"no file 'missing.txt'"):
        run.path("missing.txt")


def test_the_short_hash_is_enough_and_an_unknown_one_is_the_users_mistake(tmp_path):
    store = Store(tmp_path)
    run = finished(store)
    assert store.load(run.hash[:12]) == run
    with pytest.raises(UserError, match="no run with hash 'feed'"):
        store.load("feed")


def test_an_unwritable_store_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UserError, match="store: cannot write in"):
        Store(tmp_path / "file" / "runs").begin(CONFIG)


def test_many_processes_make_each_run_once(tmp_path):
    program = textwrap.dedent(
        """
        import os, sys, time
        from harness.store import Store
        store = Store(sys.argv[1])
        def execute(writer):
            with open(sys.argv[1] + "/executions", "a") as file:
                file.write(f"{writer.config['seed']}\\n")
            for fold in range(20):
                writer.log("loss", 1.0, fold=fold, time_s=0, epoch=0)
                time.sleep(0.001)
            writer.finish()
        for seed in range(6):
            assert store.obtain({"seed": seed}, execute).metrics["fold"].size == 20
        """
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda _: subprocess.run(command, check=True), range(3)))
    assert len(done) == 3
    assert sorted((tmp_path / "executions").read_text().split()) == list("012345")
    assert [run.status for run in Store(tmp_path).runs()] == ["done"] * 6


def test_a_killed_owner_leaves_a_run_that_another_continues(tmp_path):
    program = textwrap.dedent(
        """
        import json, sys, time
        from harness.store import Store
        writer = Store(sys.argv[1]).begin({"seed": 0, "rate": 0.1})
        writer.checkpoint.mkdir()
        writer.log("loss", 1.0, fold=0, time_s=0.0, epoch=0.0)
        (writer.checkpoint / "rows.json").write_text(json.dumps(writer.rows()))
        (writer.dir / ".unfinished-part").write_text("half a file")
        print("ready", flush=True)
        time.sleep(60)
        """
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout.readline() == "ready\n"
        os.kill(owner.pid, signal.SIGKILL)
    with Store(tmp_path).begin(CONFIG) as writer:
        writer.restore_rows(json.loads((writer.checkpoint / "rows.json").read_text()))
        assert len(writer.rows()) == 1
        assert not (writer.dir / ".unfinished-part").exists()


def test_a_failure_while_finishing_leaves_the_run_unfinished(tmp_path):
    store = Store(tmp_path)
    with store.begin(CONFIG) as writer, pytest.raises(TypeError):
        writer.finish(summary={"bad": [1, 2]})
    assert store.load(identity(CONFIG)).status == "unfinished"
