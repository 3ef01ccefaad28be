"""docs/algorithms.md says of every algorithm what it is, and what theory says of it."""

from pathlib import Path

import pytest

from harness.algorithms.catalogue import Algorithm
from harness.base.settings import dataclasses_below
from tests.theory.oracles import ORACLES

PAGE = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text(encoding="utf-8")


def test_the_page_names_every_algorithm():
    own = (kind for kind in dataclasses_below(Algorithm) if kind.__module__.startswith("harness."))
    assert [kind.__name__ for kind in own if f"`{kind.__name__}`" not in PAGE] == []


@pytest.mark.nightly
def test_the_page_has_what_theory_says_of_each():
    for name, oracle in ORACLES.items():
        figure = oracle()
        assert f"| {name} | {figure.what} | {figure.expected:.4g} |" in PAGE
