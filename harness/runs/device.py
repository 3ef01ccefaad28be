"""The device that a run executes on, from ``--device``."""

from __future__ import annotations

from harness.base.errors import UserError, name_error

CHOICES = ("auto", "cpu", "cuda")


def known_device(choice: str) -> str:
    """Check a choice of ``--device`` without importing torch, and return it.

    Raises:
        UserError: an unknown choice; a device that is missing here passes.
    """
    if choice not in CHOICES:
        raise name_error("--device", choice, CHOICES)
    return choice


def resolve(choice: str) -> str:
    """The device, ``"cpu"`` or ``"cuda"``, for ``--device auto|cpu|cuda``.

    Raises:
        UserError: an unknown choice, or CUDA where PyTorch sees none.
    """
    known_device(choice)
    import torch

    available = torch.cuda.is_available()
    if choice == "cuda" and not available:
        raise UserError(
            "--device: cuda asked for, but PyTorch sees no CUDA device; allowed here: cpu"
        )
    return choice if choice != "auto" else ("cuda" if available else "cpu")
