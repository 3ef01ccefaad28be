"""Where the classes are in outputs, and which targets a loss compares them with."""

import pytest
from torch import nn
from torch.nn import functional

from harness.base.errors import UserError
from harness.modules.inspection import inspect_module
from harness.modules.network import own_loss
from harness.modules.values import OTHER, UNDECIDED
from tests.harness.modules.test_whole_sets import drawn, scores_of

N, SAME = 40, 5
X = drawn(N, SAME, 6)
MARKS = drawn(N, SAME, SAME, seed=1).argmax(2)


def last_loss(outputs, targets, **further):
    return functional.cross_entropy(outputs.mT, targets, **further)


def test_classes_that_can_be_along_two_dimensions_have_no_metric_of_ours():
    classes = inspect_module(nn.Linear(6, SAME), last_loss, X, MARKS).classes
    assert classes.mistake == UNDECIDED.format([N, SAME, SAME])


class Causal(nn.Module):
    """A model with its own loss, whose targets are those ``ahead`` positions on."""

    def __init__(self, ahead: int) -> None:
        super().__init__()
        self.out, self.ahead = nn.Linear(6, 7), ahead

    def forward(self, x, labels=None):
        logits = self.out(x)
        ahead = functional.pad(labels, (0, self.ahead), value=-100)[:, self.ahead :]
        return {"loss": functional.cross_entropy(logits.float().mT, ahead), "logits": logits}


def next_loss(outputs, targets):
    return functional.cross_entropy(outputs[:, :-1].mT, targets[:, 1:])


def from_one(outputs, targets):
    return last_loss(outputs, targets - 1)


@pytest.mark.parametrize("metric", ["error", "accuracy"])
@pytest.mark.parametrize(("model", "loss", "targets"), [
    (Causal(1), "model", MARKS), (nn.Linear(6, 7), next_loss, MARKS),
    (nn.Linear(6, 7), from_one, MARKS + 1),
])  # fmt: skip
def test_a_loss_of_other_targets_has_no_metric_of_ours(model, loss, targets, metric):
    told = f"^metric: {metric}: {OTHER}; allowed: metric='loss' or a function$"
    with pytest.raises(UserError, match=told):
        scores_of(model, loss, (X, targets), metric, train=(X, targets))
    assert [*scores_of(model, loss, (X, targets), "loss", train=(X, targets))] == ["loss"]


def log_loss(outputs, targets):
    return functional.nll_loss(outputs.log().mT, targets)


@pytest.mark.parametrize(("model", "loss"), [
    (Causal(0), own_loss), (nn.Linear(6, 7), last_loss),
    (nn.Sequential(nn.Linear(6, 7), nn.Softmax(2)), log_loss),
])  # fmt: skip
def test_a_loss_of_the_targets_is_taken(model, loss):
    classes = inspect_module(model, loss, X, MARKS).classes
    assert (classes.count, classes.axis, classes.mistake) == (7, -1, "")
