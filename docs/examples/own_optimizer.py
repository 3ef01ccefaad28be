"""An optimizer of your own, Lion (arXiv 2302.06675), for every algorithm."""

from dataclasses import dataclass

import torch
from own_data import pictures
from torch import nn

import lagbench


@dataclass(frozen=True)
class Lion(lagbench.LocalOptimizer):
    ahead: float = 0.9
    decay: float = 0.99

    def start(self, replicas):
        return {"momentum": torch.zeros_like(replicas)}  # a row for each worker

    def direct_(self, gradients, replicas, state, network):
        direction = torch.lerp(gradients, state["momentum"], self.ahead).sign_()
        state["momentum"].lerp_(gradients, 1 - self.decay)
        gradients.copy_(direction)  # the step is theta -= rate * gradients


model, loss = lambda: nn.Linear(64, 10), nn.functional.cross_entropy
cluster = lagbench.Cluster.of(4, step_s=0.01)
recipe = {"optimizer": Lion(), "clip": 1.0, "schedule": "linear", "rates": 0.003, "seeds": 2}
recipe |= {"algorithms": ["async", "localsgd:10"], "workers": [4]}
print(lagbench.compare(model, loss, pictures(2000, 0), cluster=cluster, **recipe))
