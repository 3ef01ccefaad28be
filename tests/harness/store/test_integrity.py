"""A store may be missing something; it may not be wrong."""

import json
import shutil
from contextlib import suppress

import pytest

from harness.base.errors import UserError
from harness.base.seeds import identity
from harness.store import AlreadyFinished, Store, schema, verify_run
from harness.store.read import read_run

CONFIG = {"seed": 0, "rate": 0.1}


def execute(writer):
    for fold in range(3):
        writer.log("loss", 1 / (1 + fold), fold=fold, time_s=0.5 * fold, epoch=fold / 8)
    writer.attach("model.bin", bytes(range(200)))
    writer.finish(summary={"loss": 0.25})


def flipped(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def everything(folder):
    named = ("config.json", "run.json", "metrics.parquet", "model.bin")
    return {name: (folder / name).read_bytes() for name in named}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["run.json", "metrics.parquet", "model.bin"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.7, 0.99])
def test_a_flipped_bit_is_noticed_and_the_run_is_made_again(tmp_path, capsys, name, share):
    store = Store(tmp_path)
    run = store.obtain(CONFIG, execute)
    whole = everything(run.dir)
    flipped(run.dir / name, int(share * len(whole[name])))
    assert not store.has(run.hash)
    assert verify_run(store.load(run.hash)).status == "damaged"
    assert store.obtain(CONFIG, execute).status == "done"
    assert everything(run.dir) == whole
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert name in said
    assert "the run is made again" in said


def test_any_flipped_bit_of_a_record_is_noticed(tmp_path):
    run = Store(tmp_path).obtain(CONFIG, execute)
    path, meaning = run.dir / "run.json", json.loads((run.dir / "run.json").read_text())
    for at in range(path.stat().st_size):
        flipped(path, at)
        try:
            changed = json.loads(path.read_text()) != meaning
        except ValueError:
            changed = True
        assert Store(tmp_path).has(run.hash) is not changed, at
        flipped(path, at)


def test_a_damaged_file_is_named_and_not_read(tmp_path):
    run = Store(tmp_path).obtain(CONFIG, execute)
    flipped(run.dir / "model.bin", 100)
    flipped(run.dir / "metrics.parquet", 100)
    again = Store(tmp_path).load(run.hash)
    with pytest.raises(UserError, match=r"model\.bin: damaged, not as written"):
        again.path("model.bin")
    with pytest.raises(UserError, match=r"metrics\.parquet: damaged"):
        _ = again.metrics


def test_a_missing_file_makes_a_run_damaged(tmp_path):
    run = Store(tmp_path).obtain(CONFIG, execute)
    (run.dir / "model.bin").unlink()
    assert verify_run(Store(tmp_path).load(run.hash)).note == "damaged, not as written: model.bin"


def test_a_damaged_moment_is_named(tmp_path):
    run = Store(tmp_path).obtain(CONFIG, execute)
    path = run.dir / "provenance.json"
    path.write_text(path.read_text().replace('"cores": ', '"cores": 9'))
    with pytest.raises(UserError, match=r"provenance\.json: damaged"):
        _ = run.provenance


def kept(name, content):
    """Trains: logs nothing, keeps a file of some name."""

    def execute(writer):
        writer.attach(name, content)
        writer.finish(summary={"kept": name})

    return execute


def swap(one, other):
    aside = one.parent / "aside"
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def test_runs_in_each_others_folders_are_damaged_and_made_again(tmp_path, capsys):
    store = Store(tmp_path)
    made = [store.obtain({"seed": seed}, kept(f"{seed}.bin", bytes(9))) for seed in (1, 2)]
    swap(made[0].dir, made[1].dir)
    assert store.missing(run.hash for run in made) == {run.hash for run in made}
    assert {run.status for run in store.runs()} == {"damaged"}
    assert store.load(made[0].hash).note.endswith(
        f"of another run, {made[1].hash[:12]}; the folder's name is not its hash"
    )
    again = store.obtain({"seed": 1}, kept("1.bin", bytes(9)))
    said = capsys.readouterr().err
    assert (said.count("\n"), said.count("the run is made again")) == (1, 1)
    assert (again, again.damaged()) == (made[0], [])
    with pytest.raises(UserError, match=r"no file '2\.bin'"):  # the other run's, left there
        again.path("2.bin")
    shutil.copytree(again.dir, tmp_path / "copy")
    assert read_run(tmp_path / "copy").status == "damaged"


@pytest.mark.parametrize("name", ["run.json", "config.json", "provenance.json"])
def test_a_file_of_another_run_or_none_makes_a_run_damaged(tmp_path, name):
    store = Store(tmp_path)
    run, other = (store.obtain({"seed": seed}, execute) for seed in (1, 2))
    path = run.dir / name
    whole = path.read_text()
    others = (other.dir / name).read_text()
    half = whole[: len(whole) // 2]
    for text in (half, "", "[]", '{"seed": NaN}', whole.replace("1", "7"), others):
        path.write_text(text)
        assert not store.has(run.hash), text
        assert verify_run(store.load(run.hash)).status == "damaged", text
    path.unlink()
    assert store.has(run.hash) is False
    assert len(store.runs()) == 2
    assert store.obtain({"seed": 1}, execute).damaged() == []
    assert store.has(run.hash)


def test_lost_metrics_are_not_read_as_none(tmp_path):
    run = Store(tmp_path).obtain(CONFIG, execute)
    (run.dir / "metrics.parquet").unlink()
    with pytest.raises(UserError, match=r"no file 'metrics\.parquet'"):
        _ = Store(tmp_path).load(run.hash).metrics


def test_a_damaged_run_is_listed_among_the_others(tmp_path):
    store = Store(tmp_path)
    store.obtain({"seed": 1}, execute)
    flipped(store.obtain({"seed": 2}, execute).dir / "run.json", 30)
    store.begin({"seed": 3}).release()
    store.begin({"seed": 4}).release()
    flipped(tmp_path / identity({"seed": 4}) / "config.json", 5)
    assert sorted(run.status for run in store.runs()) == [
        "damaged",
        "damaged",
        "done",
        "unfinished",
    ]


def test_a_damaged_configuration_is_written_again(tmp_path):
    store = Store(tmp_path)
    store.begin(CONFIG).release()
    folder = tmp_path / identity(CONFIG)
    flipped(folder / "config.json", 5)
    assert store.obtain(CONFIG, execute).status == "done"
    assert json.loads((folder / "config.json").read_text()) == CONFIG


def test_a_damaged_configuration_of_a_finished_run_is_written_again_and_nothing_else(tmp_path):
    store = Store(tmp_path)
    run = store.obtain({"seed": 0}, lambda writer: writer.finish())
    (config := run.dir / "config.json").write_bytes(b"{")
    assert store.obtain({"seed": 0}, lambda writer: pytest.fail("made again")).status == "done"
    assert json.loads(config.read_text()) == {"seed": 0}


def executed_with_large(writer):
    for name in sorted(schema.LARGE):
        writer.attach(name, bytes(range(100)))
    execute(writer)


@pytest.mark.parametrize("name", sorted(schema.LARGE))
def test_a_run_is_whole_without_a_large_file_and_made_again_where_that_is_needed(
    tmp_path, capsys, name
):
    store = Store(tmp_path)
    run = store.obtain(CONFIG, executed_with_large)
    (run.dir / name).unlink()
    assert verify_run(run).status == "done"
    assert store.has(run.hash)
    assert (run.without(schema.LARGE), run.without(())) == ([name], [])
    with pytest.raises(UserError, match=f"light, its {name} is not in {run.dir}"):
        run.path(name)
    assert store.obtain(CONFIG, lambda writer: pytest.fail("made again")).without([name])
    strict = store.needing(name)
    assert strict.missing([run.hash]) == {run.hash}
    assert strict.obtain(CONFIG, executed_with_large).path(name).read_bytes() == bytes(range(100))
    assert strict.missing([run.hash]) == set()
    assert capsys.readouterr().err == (
        f"{run.dir}: without its {name}, which is needed; the run is made again\n"
    )


def test_a_large_file_that_is_there_has_to_be_as_it_was_written(tmp_path):
    run = Store(tmp_path).obtain(CONFIG, executed_with_large)
    flipped(run.dir / schema.MODEL, 3)
    assert verify_run(run).status == "damaged"


def test_what_a_run_never_had_is_not_missed(tmp_path):
    store = Store(tmp_path).needing(schema.MODEL)
    run = store.obtain(CONFIG, execute)
    assert store.has(run.hash)
    with pytest.raises(UserError, match="no file"):
        run.path(schema.MODEL)


def test_a_light_run_stays_what_it_is_until_it_has_been_made_again(tmp_path):
    def killed(writer):
        writer.log("loss", 1.0, fold=1, time_s=0.0, epoch=0.0)
        raise KeyboardInterrupt

    store = Store(tmp_path)
    run = store.obtain(CONFIG, executed_with_large)
    (run.dir / schema.MODEL).unlink()
    with pytest.raises(KeyboardInterrupt):
        store.needing(schema.MODEL).obtain(CONFIG, killed)
    assert store.load(run.hash).summary == {"loss": 0.25}
    assert store.has(run.hash)
    with suppress(AlreadyFinished), store.begin(CONFIG) as writer:
        writer.finish("failed")
    assert store.load(run.hash).status == "done"


def test_other_results_of_a_light_run_that_is_made_again_are_told(tmp_path, capsys):
    def otherwise(writer):
        writer.attach(schema.MODEL, b"")
        writer.finish(summary={"loss": 0.75})

    store = Store(tmp_path)
    run = store.obtain(CONFIG, executed_with_large)
    (run.dir / schema.MODEL).unlink()
    again = store.needing(schema.MODEL).obtain(CONFIG, otherwise)
    assert again.summary == {"loss": 0.75}
    assert "made again with other results than it had" in capsys.readouterr().err


def test_a_run_that_diverged_is_not_made_again_for_its_model(tmp_path):
    def diverges(writer):
        writer.attach(schema.MODEL, b"")
        writer.finish("diverged")

    store = Store(tmp_path).needing(schema.MODEL)
    run = store.obtain(CONFIG, diverges)
    (run.dir / schema.MODEL).unlink()
    assert store.obtain(CONFIG, lambda writer: pytest.fail("made again")).status == "diverged"
