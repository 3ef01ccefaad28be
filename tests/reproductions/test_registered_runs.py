"""Runs keep the commit and the registration that they were begun under."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.base.errors import UserError
from harness.base.seeds import identity
from harness.judge.builders import Maker
from harness.judge.results import Claim, Exhibit
from harness.store import Store
from reproductions.changes_after_runs import compare_with_registration
from reproductions.paper import Paper, Subject
from reproductions.reproduce import Request, execute_share

TEXT = """
seeds = [1]
[settings.a]
rate = 1
[settings.b]
rate = 2
[claims.one]
settings = ["a"]
bands = { ratio = [0.9, 1.1] }
[scaling.curve]
sizes = [{ at = 1, seeds = [1] }]
"""


@dataclass(frozen=True)
class Config:
    """A run without training."""

    seed: int
    effort: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return {"seed": self.seed}

    def execute(self, store: Store, watch: object) -> object:
        return store.obtain(self.to_dict(), lambda writer: writer.finish())


def paper_in(folder: Path, text: str = TEXT) -> Paper:
    (folder / "registered").mkdir(exist_ok=True)
    (folder / "registered" / "smoke.toml").write_text(text)
    return Paper(
        "paper", "corpus", {}, {"smoke": 2},
        lambda subject, seed: {"a": Config(seed)},
        lambda subject: [],
        (Maker("p.fig1", ("a",), lambda subject, runs: Exhibit("p.fig1", "table", "")),), (),
        folder=folder,
    )  # fmt: skip


def moments(folder: Path, paper: Paper, seeds: tuple[int, ...]) -> list[dict[str, Any]]:
    subject: Any = Subject("smoke", None, 1, "cpu")  # pyright: ignore[reportArgumentType]
    request = Request(seeds, (), 1, None, folder)
    assert execute_share(paper, subject, request) == len(seeds)
    runs = [request.store.load(identity({"seed": seed})) for seed in seeds]
    return [run.provenance["under"] for run in runs]


def test_a_run_keeps_the_digest_of_the_committed_file_and_of_its_entries(tmp_path):
    first, *_ = moments(tmp_path, paper_in(tmp_path), (1,))
    path = tmp_path / "registered" / "smoke.toml"
    assert first["registration"]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert first["commit"]
    before, after = moments(tmp_path, paper_in(tmp_path, TEXT.replace("1.1", "1.2")), (1, 2))
    assert before == first  # a finished run keeps those of its beginning
    entries = [each["registration"]["entries"] for each in (before, after)]
    assert entries[0]["one"].keys() == {"seeds", "settings", "bands"}
    changed = {key for key in entries[0]["one"] if entries[0]["one"][key] != entries[1]["one"][key]}
    assert changed == {"bands"}
    assert entries[0]["curve"] == entries[1]["curve"]


def test_a_setting_is_an_entry_of_the_claims_that_need_it(tmp_path):
    registered = [
        paper_in(tmp_path, TEXT.replace(was, now)).registration("smoke")
        for was, now in (("", ""), ("rate = 1", "rate = 3"), ("rate = 2", "rate = 3"))
    ]
    entries = [each.describe()["entries"]["one"] for each in registered if each]
    assert entries[0]["settings"] != entries[1]["settings"]
    assert entries[0] == entries[2]


def test_a_file_that_is_no_toml_is_refused_before_a_run(tmp_path):
    with pytest.raises(UserError, match=r"smoke\.toml: cannot be read as TOML"):
        moments(tmp_path, paper_in(tmp_path, "seeds ="), (1,))
    assert not Store(tmp_path / "runs").runs()


def test_a_paper_without_a_file_registers_nothing(tmp_path):
    paper = paper_in(tmp_path)
    (tmp_path / "registered" / "smoke.toml").unlink()
    assert moments(tmp_path, paper, (1,))[0].keys() == {"commit"}


def test_a_band_that_is_changed_after_its_runs_is_noticed_by_the_judge(tmp_path):
    paper = paper_in(tmp_path)
    moments(tmp_path, paper, (1,))
    run = Store(tmp_path / "runs").load(identity({"seed": 1}))
    claim = Claim("one", "", "", "", None, None, None, "holds", runs=(run.hash,))

    def changes(text: str) -> str:
        changed = paper_in(tmp_path, text)
        subject: Any = Subject("smoke", SimpleNamespace(name="corpus"), 1, "cpu")  # pyright: ignore[reportArgumentType]
        (told,), _ = compare_with_registration(changed, subject, (1,), [claim], {"a": [run]}, None)
        return told.changed_after_runs

    assert changes(TEXT) == ""
    assert changes(TEXT.replace("1.1", "1.2")) == "its bands"
    assert changes(TEXT.replace("rate = 2", "rate = 3")) == ""
