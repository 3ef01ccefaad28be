"""Where a run diverged, in words."""

import math

from harness.training.loop import Moment, describe_divergence

AT = Moment(6695, 0.41, 315.86)


def row(value: float, fold: int, name: str = "held_out_criterion") -> dict[str, object]:
    return {"name": name, "value": value, "fold": fold, "time_s": 0.0, "epoch": 0.0}


def test_the_last_criterion_that_was_a_number_is_told_beside_the_first():
    rows = [row(-0.059, 0), row(-1.926, 6600), row(math.nan, 6695)]
    assert describe_divergence("MMI", AT, rows, "held_out_criterion", 0.0012) == (
        "in MMI at fold 6,695 (pass 0.41, 315.9 s): "
        "criterion −1.93 nats a frame at fold 6,600 (−0.059 at first), rate 0.0012"
    )


def test_of_several_models_one_is_followed():
    rows = [row(2.0, 0, "dev_loss/iterate"), row(3.0, 0, "dev_loss/average")]
    told = describe_divergence("AsyncSgd", AT, rows, "dev_loss", 0.1)
    assert told.endswith("loss 2 nats a frame at fold 0, rate 0.1")


def test_a_criterion_that_never_was_a_number_is_told_as_such():
    told = describe_divergence(
        "AsyncSgd", AT, [row(math.inf, 0, "dev_loss/iterate")], "dev_loss", 0.1
    )
    assert told.endswith("loss never a number, rate 0.1")
