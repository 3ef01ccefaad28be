"""A task of one's own: a line through points, trained, compared and resumed."""

from dataclasses import dataclass

import torch

import lagbench


class Line(lagbench.Problem):
    def __init__(self, slope: float) -> None:
        self.network = self  # it has `gradient`, and no weight matrices
        x = torch.linspace(-1, 1, 512)
        self.pieces = lagbench.Rows(x, slope * x + 1)

    def initial(self):
        return torch.zeros(2)

    def gradient(self, stack, x, y, out):
        error = stack[:, :1] * x + stack[:, 1:] - y  # [workers, minibatch]
        out[:, 0], out[:, 1] = (error * x).mean(1), error.mean(1)
        return error.square().mean(1) / 2

    def evaluate(self, model):
        x, y = self.pieces.x, self.pieces.y
        return {"loss": (model[0] * x + model[1] - y).square().mean().item() / 2}


@dataclass(frozen=True)
class Fit(lagbench.Task):
    slope: float = 3.0

    def open(self, experiment, store=None, watch=None):
        return Line(self.slope)

    def workload(self, experiment, stage=0):
        return lagbench.Workload(experiment.stage(stage).minibatch, 1e9, 8.0)


print(lagbench.compare(Fit(), cluster="k20m-server", rates=0.05, workers=[4], minibatch=8))
