"""What is said of the project in several places is the same everywhere."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import unquote

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSION = PROJECT["version"]


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_newest_version_of_the_changelog_is_the_projects_and_has_a_date():
    newest = re.search(r"^## \[(\d[\d.]*)\] - (\d{4}-\d\d-\d\d)$", text("CHANGELOG.md"), re.M)
    assert newest is not None
    citation = dict(re.findall(r"^([\w-]+): (.+)$", text("CITATION.cff"), re.M))
    assert newest.groups() == (citation["version"], citation["date-released"])
    assert newest[1] == VERSION


def test_badges_say_what_the_project_says_and_none_is_of_what_nobody_runs():
    badges = re.findall(r"img\.shields\.io/badge/(\S+?)-blue\)\]\((\S+?)\)", text("README.md"))
    told = [(unquote(badge).replace("--", "\0").split("-", 1), link) for badge, link in badges]
    said = {what: value.replace("\0", "-") for (what, value), _ in told}
    least = PROJECT["requires-python"].removeprefix(">=")
    assert said == {"licence": "Apache-2.0", "python": f"≥{least}", "version": VERSION}
    assert all((ROOT / link).exists() for _, link in told)
    assert text("README.md").count("img.shields.io") == len(badges)


def test_what_runs_before_a_commit_has_the_versions_of_the_constraints():
    constraints = set(text("constraints.txt").split())
    pinned = re.findall(r'"([\w-]+==[\d.]+)"', text(".pre-commit-config.yaml"))
    assert len(pinned) == 3
    assert set(pinned) <= constraints


def test_no_pinned_version_is_one_that_another_distribution_refuses():
    """A fresh environment is resolved with the pins; one that has grown here may be of others."""
    lines = [line for line in text("constraints.txt").split("\n") if line and line[0] != "#"]
    pins = {canonicalize_name(name): pin for name, pin in (line.split("==") for line in lines)}
    asked = [
        (here.metadata["Name"], Requirement(line))
        for here in distributions()
        if canonicalize_name(here.metadata["Name"]) in pins
        for line in here.requires or []
    ]
    held = [
        (whose, wish)
        for whose, wish in asked
        if canonicalize_name(wish.name) in pins
        and (wish.marker is None or wish.marker.evaluate({"extra": ""}))
    ]
    assert len(held) > 50
    refused = [
        f"{whose}: {wish}"
        for whose, wish in held
        if not wish.specifier.contains(pins[canonicalize_name(wish.name)], prereleases=True)
    ]
    assert refused == []
