"""Every algorithm does what theory says of it (`oracles`)."""

import pytest

from tests.theory.oracles import ORACLES


@pytest.mark.parametrize("name", ORACLES)
def test_an_algorithm_does_what_theory_says_of_it(name):
    figure = ORACLES[name]()
    assert figure.holds, figure
