"""Folders that somebody forged are named, and disturb none of the others."""

import contextlib
import csv
import io
import json
import os
import re
from itertools import count

import pytest

from harness.base.seeds import identity
from harness.cli import main
from harness.store import Store, files, schema
from tests.harness.commands.test_runs import finish, trained

DEEP = "[" * 100_000 + "]" * 100_000
ODD = [
    None, True, 3, -1.5, 10**18, -(10**18), 1e308, 5e-324, "", "text", "a\x1b[2Jb", "one\ntwo",
    "\r", "\u2028", "\u202e", "\ud800", "\x00", "x" * 100_000, [], [1], ["a", {}], {}, {"is": "A"},
    {"is": ["\x1b[31m"]}, {"is": {"a": 1}}, {"every": "x"}, {"rate": "fast"},
    {"\x1b]0;t\x07": "\x1b"},
]  # fmt: skip
"""Values of JSON, in place of those that the store writes."""
TEXTS = [
    "", "[]", "3", "null", '"text"', "{", "{}", '{"a": NaN}', '{"a": 1e999}', '{"a": 1, "a": 2}',
    DEEP, f'{{"a": {DEEP}}}', '{"a": ' * 900 + "1" + "}" * 900, '{"a": ' + "9" * 4000 + "}",
    '{"a": ' + "9" * 5000 + "}", '{"schema": 2}', "\ufeff{}", "\x00" * 100,
]  # fmt: skip
"""Contents in place of a file's."""
COMMANDS = ((), ("--wide",), ("--csv",), ("--json",), ("--verify",))


def names_of(config):
    return sorted({"is", "algorithm", "protocol", "schedule", "seed", "rate", *config})


class Forger:
    """Writes runs that are not what a program wrote, into one store."""

    def __init__(self, store):
        self.store, self.number = store, count()
        self.whole = Store(store).obtain(trained(0, 4, 10), finish)
        self.record = json.loads((self.whole.dir / "run.json").read_text())
        self.folders = []

    def folder(self, name):
        self.folders.append(self.store / name)
        self.folders[-1].mkdir()
        return self.folders[-1]

    def write(self, config, **changed):
        """A run whose digests are right, with other values in its record."""
        folder = self.folder(identity(config))
        record = {**self.record, "hash": folder.name, "config": config, **changed}
        del record["sha256"]
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "run.json").write_text(json.dumps(files.add_digest(record)))
        (folder / "metrics.parquet").write_bytes((self.whole.dir / "metrics.parquet").read_bytes())
        return folder

    def new(self, **changed):
        return self.write({**trained(0), "number": next(self.number)}, **changed)


@pytest.fixture(scope="module")
def forged(tmp_path_factory):
    """A store of one run that is as it was written, and hundreds of others."""
    by = Forger(tmp_path_factory.mktemp("store"))
    for odd in ODD:
        for key in ("schema", "status", "summary", "note", "rows", "files"):
            by.new(**{key: odd})
        for key in ("virtual_s", "rate", "dev_error/iterate", "timeline_sha256", "\x1b[1m"):
            by.new(summary={"folds": 3, key: odd})
        for name in ("metrics.parquet", "model.safetensors", "../../x", "/etc/passwd", "a\x00b"):
            by.new(files={name: odd})
        for key in names_of(trained(0)):
            by.write({**trained(0), "number": next(by.number), key: odd})
        moment = {"schema": 2, "wall_s": odd, schema.UNDER: odd, schema.UNREAD: odd}
        (by.new() / "provenance.json").write_text(json.dumps(files.add_digest(moment)))
    for text in TEXTS:
        for name in ("run.json", "config.json", "metrics.parquet", "provenance.json"):
            (by.new() / name).write_text(text, encoding="utf-8", errors="surrogatepass")
    for name in ("run.json", "config.json", "metrics.parquet"):
        for odd in ("a folder", "a pipe", "a device", "a loop"):
            (path := by.new() / name).unlink()
            match odd:
                case "a folder":
                    path.mkdir()
                case "a pipe":
                    os.mkfifo(path)
                case "a device":
                    path.symlink_to("/dev/zero")
                case "a loop":
                    path.symlink_to(name)
    for name in ("\x1b[2J", "a\nb", "\u202e", os.fsdecode(b"\xff\xfe"), "x" * 255, "-", "*"):
        folder = by.folder(name)
        (folder / "run.json").write_text(json.dumps(by.record))
    (by.store / "a file").write_text("{}")
    return by


@pytest.mark.sampled(3)
@pytest.mark.parametrize("options", COMMANDS, ids=" ".join)
def test_a_store_with_forged_folders_is_listed_to_its_end(forged, capsys, options):
    assert len(forged.folders) > 700
    assert main(["runs", str(forged.store), *options]) == 3
    told = capsys.readouterr()
    assert told.err.endswith(" damaged\n")
    assert told.err.count("\n") == 1
    assert not re.search("[^\\n -~\xa0-\uffff]|[\u2028-\u202e\ud800-\udfff]", told.out + told.err)
    if options == ("--json",):
        rows = [each["hash"] for each in json.loads(told.out)]
    elif options == ("--csv",):
        csv.field_size_limit(10**7)
        rows = [each["hash"] for each in csv.DictReader(io.StringIO(told.out))]
    else:
        lines = told.out.splitlines()
        assert max(map(len, lines)) < 4000
        shown = [line for line in lines if line.startswith(forged.whole.hash[:12])]
        assert "dev_error 0.25" in shown[0].replace("  ", " ")
        rows = [
            line for line in lines if line and not line.startswith(("run ", "results", "others"))
        ]
        assert len(rows) == len(forged.folders) + 2
        return
    assert len(rows) == len(forged.folders) + 1
    assert forged.whole.hash in rows


def test_what_is_forged_is_damaged_and_what_only_looks_odd_is_not(forged):
    status = {run.dir: run.status for run in Store(forged.store).runs()}
    assert set(status) == {*forged.folders, forged.whole.dir}
    assert set(status.values()) == {"done", "unfinished", "damaged", "diverged"} - {"diverged"}
    assert status[forged.whole.dir] == "done"


def test_a_folder_that_is_forged_is_no_result_and_is_made_again(forged):
    store = Store(forged.store)
    config = {**trained(0), "number": -1}
    forged.write(config, summary={"dev_error/iterate": [0.0]})
    with contextlib.redirect_stderr(io.StringIO()) as told:
        assert store.obtain(config, finish).summary["dev_error/iterate"] == 0.25
    assert "run.json: damaged, summary: missing, or of another type" in told.getvalue()
