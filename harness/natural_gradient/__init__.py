"""Natural-gradient SGD: an optimizer for any PyTorch model, and the same over a stack of replicas.

Example:
    >>> import torch
    >>> from harness.natural_gradient import NGSGD
    >>> model = torch.nn.Linear(3, 2)
    >>> optimizer = NGSGD(model, lr=0.1)
    >>> model(torch.ones(4, 3)).square().mean().backward()
    >>> optimizer.step()

``docs/natural_gradient.md`` has the options and the method (Povey, Zhang and Khudanpur,
arXiv 1410.7455). Importing this package loads little else of the harness.
"""

from __future__ import annotations

from harness.natural_gradient.estimate import PerComponent, PerSample, Preconditioner
from harness.natural_gradient.layer import NaturalGradient
from harness.natural_gradient.sgd import NGSGD

__all__ = ["NGSGD", "NaturalGradient", "PerComponent", "PerSample", "Preconditioner"]
