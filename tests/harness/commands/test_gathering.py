"""`lagbench runs --push` and `--pull`, and what goes wrong with an object store."""

from __future__ import annotations

from datetime import timedelta

import pytest

from harness.cli import main
from harness.store import Store, schema, shared_store


def execute(writer, loss=0.5):
    writer.log("loss", loss, fold=1, time_s=0.0, epoch=0.0)
    writer.finish(summary={"loss": loss})


@pytest.fixture
def address(tmp_path):
    (tmp_path / "bucket").mkdir()
    return (tmp_path / "bucket").as_uri()


def test_stores_are_sent_and_fetched_and_nothing_twice(tmp_path, address, capsys):
    for seed in (1, 2):
        Store(tmp_path / "here" / "runs").obtain({"seed": seed}, execute)
    Store(tmp_path / "here" / "runs").begin({"seed": 3}).release()
    here, there = str(tmp_path / "here"), str(tmp_path / "there")
    for words, told in (
        (["runs", here, "--push", address], "2 pushed, 1 unfinished"),
        (["runs", here, "--push", address], "2 there, 1 unfinished"),
        (["runs", there, "--pull", address], "2 pulled"),
        (["runs", there, "--pull", address], "2 here"),
    ):
        assert main(words) == 0
        assert sorted(capsys.readouterr().err.split(": ")[1].strip().split(", ")) == sorted(
            told.split(", ")
        )
    assert {run.status for run in Store(tmp_path / "there" / "runs").runs()} == {"done"}


def test_light_runs_are_whole_without_models_and_timelines(tmp_path, address, capsys):
    def trained(writer):
        for name in sorted(schema.LARGE):
            writer.attach(name, bytes(100_000))
        execute(writer)

    made = Store(tmp_path / "here").obtain({"seed": 1}, trained)
    here, there = str(tmp_path / "here"), str(tmp_path / "there")
    assert main(["runs", here, "--push", address, "--light"]) == 0
    assert (tmp_path / "bucket" / "runs" / f"{made.hash}.tar").stat().st_size < 50_000
    assert main(["runs", there, "--pull", address]) == 0
    assert main(["runs", there, "--verify"]) == 0
    (fetched,) = Store(tmp_path / "there" / "runs").runs()
    assert fetched.without(schema.LARGE) == sorted(schema.LARGE)
    kept = {"config.json", "provenance.json", "run.json", *made.digests} - schema.LARGE
    assert all((fetched.dir / n).read_bytes() == (made.dir / n).read_bytes() for n in kept)
    for folder, words, told in (
        (here, [], "1 there, light"),  # they stay as they are, without models
        (here, ["--light"], "1 there"),
        (there, [], "1 there"),
        (there, ["--light"], "1 there"),
    ):
        capsys.readouterr()
        assert main(["runs", folder, "--push", address, *words]) == 0
        assert capsys.readouterr().err.endswith(f": {told}\n")
    assert main(["runs", there]) == 0
    assert "done, light" in capsys.readouterr().out


def test_what_is_damaged_or_different_is_told_and_what_is_damaged_there_is_replaced(
    tmp_path, address, capsys
):
    runs = [Store(tmp_path / "here").obtain({"seed": seed}, execute) for seed in (1, 2)]
    assert main(["runs", str(tmp_path / "here"), "--push", address]) == 0
    (runs[0].dir / "metrics.parquet").write_bytes(b"")
    object_ = tmp_path / "bucket" / "runs" / f"{runs[1].hash}.tar"
    object_.write_bytes((whole := object_.read_bytes())[:-11_000])
    assert main(["runs", str(tmp_path / "there"), "--pull", address]) == 3
    assert "1 damaged" in capsys.readouterr().err
    assert main(["runs", str(tmp_path / "here"), "--push", address]) == 3
    told = capsys.readouterr().err
    assert f"run {runs[0].hash[:12]} is damaged; left as it is" in told
    assert "1 replaced, 1 damaged" in told
    assert object_.read_bytes() == whole
    other = Store(tmp_path / "other").obtain({"seed": 2}, lambda writer: execute(writer, 7))
    assert main(["runs", str(other.dir.parent), "--push", address]) == 3
    told = capsys.readouterr().err
    assert f"run {runs[1].hash[:12]} differs from the one in {address}; left as it is" in told
    assert object_.read_bytes() == whole


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("ftp://somewhere/runs", "is no address of an object store; allowed: s3://"),
        ("bucket/runs", "is no address of an object store; allowed: s3://"),
        ("file:///no/such/folder", "/no/such/folder: there is no such folder, and none is made"),
        ("s3://bucket/prefix", "http://127.0.0.1:1"),  # nobody answers
        ("s3://", "s3://: "),
    ],
)
def test_what_cannot_be_reached_is_one_line(address, told, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(shared_store, "TRIED_FOR", timedelta(milliseconds=50))
    for name, value in {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "a",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    _is_refused(address, told, tmp_path, capsys)


def test_who_has_no_credentials_is_told_so_in_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(shared_store, "TRIED_FOR", timedelta(milliseconds=50))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")
    _is_refused(
        "s3://bucket/prefix", "no credentials; allowed: AWS_ACCESS_KEY_ID", tmp_path, capsys
    )


@pytest.mark.parametrize(
    ("address", "error", "told"),
    [
        ("gs://b", "GET http://169.254.169.254/computeMetadata/v1/instance", "GOOGLE_APPLICATION"),
        ("az://b", "GET http://169.254.169.254/metadata/identity/oauth2", "AZURE_STORAGE_ACCOUNT"),
    ],
)
def test_nobody_is_told_of_a_machine_that_was_asked_for_credentials(address, error, told):
    with pytest.raises(OSError, match=f"{address}: no credentials; allowed: {told}"):  # noqa: SIM117
        with shared_store.Objects(address)._convert_errors():
            raise ValueError(error)


def _is_refused(address, told, folder, capsys):
    assert main(["runs", str(folder), "--pull", address]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert told in line
    assert len(line) < 400


@pytest.mark.parametrize("words", [[], ["--pull", "file:///tmp"], ["--csv"]])
def test_light_is_about_what_is_sent(words, tmp_path, capsys):
    assert main(["runs", str(tmp_path), *words, "--light"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("runs --light: allowed: with --push")
