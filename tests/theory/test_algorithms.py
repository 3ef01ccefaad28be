"""Every algorithm does what theory says of it (`oracles`), and docs/algorithms.md says it."""

from pathlib import Path

import pytest

from harness.algorithms.catalogue import Algorithm
from harness.base.settings import dataclasses_below
from tests.theory.oracles import ORACLES

PAGE = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text(encoding="utf-8")


def test_the_page_names_every_algorithm():
    own = (kind for kind in dataclasses_below(Algorithm) if kind.__module__.startswith("harness."))
    assert [kind.__name__ for kind in own if f"`{kind.__name__}`" not in PAGE] == []


@pytest.mark.parametrize("name", ORACLES)
def test_an_algorithm_does_what_theory_and_the_page_say_of_it(name):
    figure = ORACLES[name]()
    assert figure.holds, figure
    assert f"| {name} | {figure.what} | {figure.expected:.4g} |" in PAGE
