"""Finished runs in an object store: S3, and a folder in its place."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import pytest

from harness.base.errors import UserError
from harness.store import AlreadyFinished, Bucket, BucketStore, Store, schema, shared_store
from harness.store import shared_store as objects
from harness.store.lease import PATIENCE_S, Host, Lease
from harness.store.read import read_run
from harness.store.shared_store import Objects, pack_run, unpack_run
from tests import processes, s3

RESULTS = ("config.json", "run.json", "metrics.parquet", "model.bin", "provenance.json")


@pytest.fixture(scope="module")
def port():
    with s3.serving() as port:
        yield port


@pytest.fixture(params=["s3", "file"])
def bucket(request, port, tmp_path, monkeypatch):
    monkeypatch.setattr(objects, "TRIED_FOR", timedelta(milliseconds=100))
    if request.param == "s3":
        s3.let_in(monkeypatch, port)
        return Bucket(f"s3://{s3.BUCKET}/{tmp_path.name}")
    (folder := tmp_path / "bucket").mkdir()
    return Bucket(folder.as_uri())


def execute(writer, loss=0.5):
    writer.log("loss", loss, fold=1, time_s=0.0, epoch=0.0)
    writer.attach("model.bin", bytes(50_000))
    writer.finish(summary={"loss": loss})


def never(writer):
    pytest.fail("it is trained again")


def files(run):
    return {name: (run.dir / name).read_bytes() for name in RESULTS}


def test_what_one_machine_finishes_another_has_to_the_byte(bucket, tmp_path):
    here, there = (BucketStore(tmp_path / name, bucket) for name in "ab")
    made = here.obtain({"seed": 1}, execute)
    assert files(there.obtain({"seed": 1}, never)) == files(made)
    assert bucket.hashes() == {made.hash}


def test_what_was_finished_before_is_gathered_with_the_first_question(bucket, tmp_path):
    runs = [Store(tmp_path / "a").obtain({"seed": seed}, execute) for seed in (1, 2)]
    asked = [run.hash for run in runs]
    assert BucketStore(tmp_path / "a", bucket).missing([*asked, "0" * 64]) == {"0" * 64}
    assert BucketStore(tmp_path / "b", bucket).missing(asked) == set()
    assert [files(Store(tmp_path / "b").load(name)) for name in asked] == list(map(files, runs))


def test_a_bucket_that_goes_away_ends_no_training_and_has_its_result_when_it_is_back(
    bucket, tmp_path, monkeypatch, capsys
):
    away, asked = [], Objects._convert_errors

    @contextmanager
    def perhaps(objects):
        if away:
            raise OSError(f"{bucket.url}: away")
        with asked(objects):
            yield

    def train(writer):
        away.append(True)
        writer.rows()
        execute(writer)

    monkeypatch.setattr(Objects, "_convert_errors", perhaps)
    run = BucketStore(tmp_path, bucket).obtain({"seed": 1}, train)
    told = capsys.readouterr().err.splitlines()
    assert run.status == "done"
    assert [line.partition("; ")[0] for line in told] == [f"{bucket.url}: away"] * 2
    away.clear()
    assert bucket.hashes() == set()
    assert BucketStore(tmp_path, bucket).missing([run.hash]) == set()
    assert bucket.hashes() == {run.hash}


def test_a_failed_run_is_nobody_elses(bucket, tmp_path):
    for name in "ab":
        begun = BucketStore(tmp_path / name, bucket).begin({"seed": 1})
        begun.finish("failed", note="a fault of ours")
    assert bucket.hashes() == set()


def test_other_results_are_told_and_replace_nothing(bucket, tmp_path, capsys):
    first = BucketStore(tmp_path / "a", bucket).obtain({"seed": 1}, execute)
    other = Store(tmp_path / "b").obtain({"seed": 1}, lambda writer: execute(writer, 0.25))
    assert (bucket.push(first), bucket.push(other)) == ("there", "different")
    BucketStore(tmp_path / "b", bucket).missing([])
    assert capsys.readouterr().err == ""
    BucketStore(tmp_path / "b", bucket)._on_finished(other.dir)
    assert capsys.readouterr().err.endswith("is there with other results, and stays so\n")
    again = BucketStore(tmp_path / "c", bucket).obtain({"seed": 1}, never)
    assert again.summary == {"loss": 0.5}


def test_a_run_that_was_damaged_here_is_fetched_and_one_damaged_there_is_made(
    bucket, tmp_path, capsys
):
    run = BucketStore(tmp_path / "a", bucket).obtain({"seed": 1}, execute)
    whole = files(run)
    (run.dir / "model.bin").write_bytes(b"")
    assert files(BucketStore(tmp_path / "a", bucket).obtain({"seed": 1}, never)) == whole
    path, data = f"runs/{run.hash}.tar", pack_run(run)
    for damaged in (
        data.replace(bytes(9), b"123456789", 1),
        data.replace(b'"seed"', b'"need"'),
        b"",
    ):
        bucket.objects.replace(path, damaged)
        (tmp_path / "b" / run.hash / "run.json").unlink(missing_ok=True)
        assert BucketStore(tmp_path / "b", bucket).obtain({"seed": 1}, execute).status == "done"
        told = capsys.readouterr().err
        assert "it stays until a whole one is sent" in told
        assert told.count("\n") == 1
        assert unpack_run(bucket.objects.read(path), run.hash)["model.bin"] == whole["model.bin"]


def test_a_damaged_run_is_replaced_by_a_whole_one_and_a_whole_one_by_nothing(bucket, tmp_path):
    run = Store(tmp_path / "a").obtain({"seed": 1}, execute)
    other = Store(tmp_path / "b").obtain({"seed": 1}, lambda writer: execute(writer, 0.25))
    alien = Store(tmp_path / "c").obtain({"seed": 2}, execute)
    path = f"runs/{run.hash}.tar"
    for damaged in (pack_run(run)[:1000], pack_run(alien)):
        bucket.objects.replace(path, damaged)
        assert bucket.compare(run) == "damaged there"
        assert bucket.push(run) == "replaced"
        assert (bucket.push(run), bucket.push(other)) == ("there", "different")
        assert bucket.objects.read(path) == pack_run(run)


def test_a_store_that_lets_nobody_in_is_no_damage(bucket, tmp_path, monkeypatch):
    run = Store(tmp_path / "a").obtain({"seed": 1}, execute)
    bucket.push(run)

    def refuse(*_):
        raise UserError("no key")

    monkeypatch.setattr(objects.Objects, "read", refuse)
    with pytest.raises(UserError, match="no key"):
        bucket.compare(run)


@pytest.mark.parametrize("name", RESULTS)
def test_a_damaged_run_is_not_sent(tmp_path, name):
    run = Store(tmp_path).obtain({"seed": 1}, execute)
    for damage in (
        lambda path: path.write_bytes(path.read_bytes()[:9]),
        lambda path: path.unlink(),
    ):
        damage(run.dir / name)
        with pytest.raises(UserError, match=f"damaged, not as written: {name}"):
            pack_run(run)


def test_a_run_in_anothers_folder_is_not_sent(tmp_path):
    one, other = (Store(tmp_path).obtain({"seed": seed}, execute) for seed in (1, 2))
    for name in RESULTS:
        (one.dir / name).write_bytes((other.dir / name).read_bytes())
    with pytest.raises(UserError, match=r"not as written: run\.json, config\.json"):
        pack_run(one)


@pytest.mark.parametrize("bucket", ["s3"], indirect=True)
@pytest.mark.parametrize("share", [0.001, 0.3, 0.9, 0.999])
def test_a_line_that_breaks_amid_a_push_leaves_nothing(bucket, port, share, tmp_path, monkeypatch):
    run = Store(tmp_path).obtain({"seed": 1}, execute)
    with s3.line_to(port, int(share * len(pack_run(run))), lambda: None) as broken:
        s3.let_in(monkeypatch, broken)
        with pytest.raises(OSError, match=bucket.url):
            Bucket(bucket.url).push(run)
    s3.let_in(monkeypatch, port)
    assert bucket.hashes() == set()
    assert bucket.push(run) == "pushed"


@pytest.mark.parametrize("bucket", ["s3"], indirect=True)
def test_who_is_killed_amid_a_push_leaves_nothing_and_has_it_sent_next_time(
    bucket, port, tmp_path, monkeypatch
):
    run = Store(tmp_path).obtain({"seed": 1}, execute)
    told = f"from harness.store import *; BucketStore({str(tmp_path)!r}, Bucket({bucket.url!r}))"
    pids = []
    with s3.line_to(port, 30_000, lambda: os.kill(pids[0], signal.SIGKILL)) as broken:
        s3.let_in(monkeypatch, broken)
        pusher = processes.start(["-c", f"{told}.missing([{run.hash!r}])"])
        pids.append(pusher.pid)
        assert pusher.ended().returncode == -signal.SIGKILL
    s3.let_in(monkeypatch, port)
    assert bucket.hashes() == set()
    assert BucketStore(tmp_path, bucket).missing([run.hash]) == set()
    assert bucket.hashes() == {run.hash}


def test_one_machine_at_a_time_makes_a_run(bucket):
    """Whatever it knows of processes elsewhere, which is nothing."""
    holding, most = [], []

    def hold(number):
        place = replace(bucket.leases("a"), poll_s=0.01)
        host = Host(lambda: f"host-{number}:1", lambda word: None, beats=False)
        (mine := Lease(place, host)).acquire()
        holding.append(number)
        most.append(len(holding))
        time.sleep(0.001)
        holding.remove(number)
        mine.release()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(hold, range(6)))
    assert most == [1] * 6


def test_a_machine_that_is_silent_is_taken_over_and_told_so(bucket, tmp_path):
    now_s = [0.0]

    def passes(seconds):
        now_s[0] += PATIENCE_S / 4

    def lease(name):
        host = Host(lambda: name, lambda _: None, lambda: now_s[0], passes, beats=False)
        return Lease(bucket.leases("a"), host)

    silent, other = lease("one:1"), lease("other:1")
    silent.acquire()
    assert other.is_held_by_other()
    other.acquire()
    assert now_s[0] > PATIENCE_S
    silent.beat()
    assert (silent.is_held(), other.is_held()) == (False, True)
    silent.release()
    assert other.is_held()


def test_a_lease_whose_making_was_answered_to_nobody_is_known_as_ones_own(bucket, monkeypatch):
    place, create = bucket.leases("a"), objects.Objects.create
    monkeypatch.setattr(objects.Objects, "create", lambda *told: create(*told) and False)
    assert place.make(1, "me 0")
    assert not bucket.leases("a").make(1, "me 0")


def test_a_run_that_another_machine_makes_is_known_to_be_elsewhere(bucket, tmp_path):
    here, there = (BucketStore(tmp_path / name, bucket) for name in "ab")
    with here.begin({"seed": 1}) as writer:
        assert there.elsewhere(writer.hash)
        execute(writer)
    assert not there.elsewhere(writer.hash)
    with pytest.raises(AlreadyFinished):
        there.begin({"seed": 1})


class ToldToEndError(Exception):
    """By a signal."""


def test_who_waits_for_an_answer_is_told_to_end_at_once_and_no_request_is_for_ever(monkeypatch):
    def told(*_):
        raise ToldToEndError

    monkeypatch.setattr(objects, "TRIED_FOR", timedelta(milliseconds=50))
    monkeypatch.setattr(objects, "LONGEST_REQUEST", timedelta(milliseconds=300))
    before = signal.signal(signal.SIGALRM, told)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it answers nobody
        s3.let_in(monkeypatch, silent.getsockname()[1])
        away = Bucket(f"s3://{s3.BUCKET}/away")
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            with pytest.raises(ToldToEndError):
                away.has("a")
            assert [each for each in threading.enumerate() if each.name == "asks"]
            with pytest.raises(OSError, match=away.url):
                away.leases("a").numbers()
        finally:
            signal.signal(signal.SIGALRM, before)


def test_members_that_are_no_files_of_a_run_are_not_unpacked(tmp_path):
    run = Store(tmp_path).obtain({"seed": 1}, execute)
    data = io.BytesIO(pack_run(run))
    with tarfile.open(fileobj=data, mode="a") as tar:
        for kind, name in ((tarfile.SYMTYPE, "link"), (tarfile.REGTYPE, "../outside")):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc"
            tar.addfile(member)
    assert set(unpack_run(data.getvalue(), run.hash)) == set(RESULTS)
    with pytest.raises(UserError, match=r"not as written: run\.json, config\.json"):
        unpack_run(pack_run(run), "0" * 64)


def test_an_archive_that_is_not_as_it_was_packed_is_not_unpacked_as_something_else(tmp_path):
    """Whichever byte of it has a bit turned."""
    run = Store(tmp_path).obtain({"seed": 1, "share": 0.25}, lambda writer: writer.finish())
    data, refused = pack_run(run), 0
    whole = _told(unpack_run(data, run.hash))
    for at, byte in enumerate(data):
        try:
            turned = data[:at] + bytes([byte ^ 1]) + data[at + 1 :]
            assert _told(unpack_run(turned, run.hash)) == whole, at
        except UserError:
            refused += 1
    assert refused > 1000


def _told(files):
    """What the files say: the layout of a record's text says nothing."""
    return {
        name: json.loads(data) if name.endswith(".json") else data for name, data in files.items()
    }


def test_runs_without_digests_are_not_sent(tmp_path):
    run = Store(tmp_path).obtain({"seed": 1}, execute)
    run.digests.clear()
    with pytest.raises(UserError, match="has no digests"):
        pack_run(run)
    unfinished = read_run(Store(tmp_path).begin({"seed": 2}).dir)
    with pytest.raises(UserError, match="is unfinished"):
        pack_run(unfinished)


def test_old_runs_are_told_and_left_and_the_others_are_gathered(bucket, tmp_path, capsys):
    old, new = (Store(tmp_path).obtain({"seed": seed}, execute) for seed in (1, 2))
    record = json.loads((old.dir / "run.json").read_text())
    del record["sha256"]  # as it was before there were digests
    record |= {"schema": 1, "files": list(record["files"])}
    (old.dir / "run.json").write_text(json.dumps(record))
    assert BucketStore(tmp_path, bucket).missing([old.hash, new.hash]) == set()
    assert bucket.hashes() == {new.hash}
    assert (
        capsys.readouterr().err
        == f"{tmp_path}: 1 run was made before version 0.2.0, without digests; not sent\n"
    )


def test_who_fetches_a_run_that_is_held_here_is_told_of_it(bucket, tmp_path, monkeypatch):
    run = BucketStore(tmp_path / "a", bucket).obtain({"seed": 1}, execute)
    here, told = BucketStore(tmp_path / "b", bucket), []
    holder = Store(here.path).begin({"seed": 1})

    def waiting(what):
        told.append(what)
        return lambda *_: holder.release()

    monkeypatch.setattr(shared_store, "Waiting", waiting)
    assert here.pull(run.hash)
    assert told == [f"run {run.hash[:12]}"]


def with_model(writer, loss=0.5):
    writer.attach(schema.MODEL, bytes(1000))
    execute(writer, loss)


def test_a_light_run_that_is_fetched_replaces_whatever_lies_there_under_a_large_name(
    bucket, tmp_path
):
    made = Store(tmp_path / "a").obtain({"seed": 1}, with_model)
    assert bucket.push(made, light=True) == "pushed"
    ours = Store(tmp_path / "b").obtain({"seed": 1}, with_model)
    (ours.dir / schema.MODEL).write_bytes(b"damaged")
    there = BucketStore(tmp_path / "b", bucket)
    assert there.missing([made.hash]) == set()
    assert there.load(made.hash).without([schema.MODEL]) == [schema.MODEL]


def test_a_light_run_that_is_here_is_not_replaced_by_other_results(bucket, tmp_path):
    bucket.push(Store(tmp_path / "a").obtain({"seed": 1}, with_model))
    ours = Store(tmp_path / "b").obtain({"seed": 1}, lambda writer: with_model(writer, 0.25))
    (ours.dir / schema.MODEL).unlink()
    strict = BucketStore(tmp_path / "b", bucket).needing(schema.MODEL)
    again = strict.obtain({"seed": 1}, lambda writer: with_model(writer, 0.25))
    assert again.summary == {"loss": 0.25}


def test_a_light_run_has_its_model_from_where_it_is(bucket, tmp_path):
    made = Store(tmp_path / "a").obtain({"seed": 1}, with_model)
    bucket.push(made)
    (made.dir / schema.MODEL).unlink()
    strict = BucketStore(tmp_path / "a", bucket).needing(schema.MODEL)
    assert strict.obtain({"seed": 1}, never).path(schema.MODEL).read_bytes() == bytes(1000)
