import torch

from harness.networks.contract import Minibatch
from harness.networks.feedforward import Dnn, Layout

LAYOUT = Layout((4, 5, 3))
NET = Dnn(LAYOUT)
WORKERS = 3


def drawn(steps: int) -> tuple[torch.Tensor, list[Minibatch]]:
    """Parameters of each worker, and minibatches of six frames."""
    draw = torch.Generator().manual_seed(0)
    stack = torch.randn(WORKERS, LAYOUT.parameters, dtype=torch.float64, generator=draw)
    x = torch.randn(steps, WORKERS, 6, 4, dtype=torch.float64, generator=draw)
    y = torch.randint(0, 3, (steps, WORKERS, 6), generator=draw)
    return stack, [Minibatch(*pair) for pair in zip(x, y, strict=True)]
