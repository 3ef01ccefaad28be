"""A cell that cannot be trained is told, and the others of the comparison are."""

import pytest
from torch.nn import functional

import lagbench
from tests.modules import mlp, points


@pytest.fixture
def usual(tmp_path) -> dict:
    few = {"store": tmp_path / "store", "minibatch": 8, "passes": 2, "seeds": 1, "rates": 0.1}
    return {"cluster": "k20m-server", "step_seconds": 0.01, **few}


def test_an_impossible_cell_does_not_refuse_the_others(usual, capsys):
    found = lagbench.compare(
        mlp, functional.cross_entropy, points(90), algorithms=["async", "averaging:4"],
        workers=[1, 99], **usual,
    )  # fmt: skip

    cells = [(row.cell.method, row.cell.workers) for row in found.rows]
    assert cells == [("async", 1), ("async", 99), ("averaging:4", 1)]
    (each,) = found.table.impossible
    assert (each.method, each.workers) == ("averaging:4", 99)
    told = "not possible: averaging:4 with 99 workers (workers: 99 leave one of them"
    assert told in str(found)
    assert told in capsys.readouterr().err


def test_a_comparison_without_a_possible_cell_is_refused(usual):
    with pytest.raises(lagbench.UserError, match="workers: 500 leave one of them 0 examples"):
        lagbench.compare(
            mlp, functional.cross_entropy, points(90), algorithms=["averaging:4"],
            workers=[500, 600], **usual,
        )  # fmt: skip
