"""Names and prose of the product are within bounds (``tests.architecture.words`` counts)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture.words import PACKAGES, measured

ROOT = Path(__file__).parents[2]
BOUNDS = {
    "participle first, %": 4.0,
    "  bare (told), %": 1.0,
    "preposition first (of_runs, at), %": 1.0,
    "docstrings that begin with what, who, how, %": 2.0,
    "  without those with 'whose' alone": 10,
    "  without a comment, %": 20.0,
}
WHOSE_ALONE = 80
SETS = ("harness/commands", "reproductions/")
"""Folders of a set: one file a command, or the same files for each paper."""
TOLD_BY_FOLDER = {
    "averaging.py": "the algorithms, and their protocol of time",
    "cluster.py": "of the simulator, and what a user makes one of",
    "comparison.py": "of methods, of verdicts' figures, of benchmarks and in a report",
    "compiling.py": "of numba for every room, and of the acoustic kernels",
    "contract.py": "what derives from a room's contract: algorithms, networks, protocols, tasks",
    "device.py": "benchmarks of a device, and where a run computes",
    "files.py": "of anybody, and of a stored run",
    "keys.py": "of cluster files, and their reference page",
    "network.py": "a module's, and a simulated network",
    "protocol.py": "of replicas with decoders, and of generators of rollouts",
    "rounds.py": "simulated, and on real processes",
    "task.py": "of speech, and of a module",
    "validate.py": "of the simulator, and of a corpus",
}


@pytest.fixture(scope="module")
def figures():
    return measured([ROOT / name for name in PACKAGES])["all"]


@pytest.mark.parametrize("title", BOUNDS)
def test_names_and_prose_are_within_bounds(figures, title):
    found = figures.rows()[title]
    assert found <= BOUNDS[title], "python -m tests.architecture.words --list"


def test_whose_is_said_of_things_and_seldom(figures):
    assert figures.who_docstrings - figures.people_docstrings <= WHOSE_ALONE


def test_a_file_name_occurs_twice_in_a_set_or_where_the_folder_tells(figures):
    twice = {
        name
        for name, folders in figures.repeated().items()
        if sum(not folder.startswith(SETS) for folder in folders) > 1
    }
    assert twice == set(TOLD_BY_FOLDER)


def test_words_are_counted_as_they_are_read(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "a.py").write_text(
        '"""What it is."""\n'
        "def told(): ...\n"
        "def weighted_mean(): ...\n"
        "def of_runs(): ...\n"
        "def on_arrival(): ...\n"
        "def read_run():\n"
        '    """Read a run that nobody holds."""\n'
    )
    found = measured([package])["package"]
    assert (found.functions, found.bare, found.before_noun, found.prepositions) == (5, 1, 1, 1)
    assert (found.docstrings, found.clause_docstrings, found.people_docstrings) == (2, 1, 1)
