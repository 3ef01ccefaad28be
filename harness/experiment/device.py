"""The device that a run executes on, from ``--device``."""

from __future__ import annotations

from harness.base.errors import UserError, name_error

CHOICES = ("auto", "cpu", "cuda")


def known_device(choice: str, name: str = "--device") -> str:
    """Check a choice of a device without importing torch, and return it.

    Args:
        choice: the device.
        name: option or argument, for the message.

    Raises:
        UserError: an unknown choice; a device that is missing here passes.
    """
    if choice not in CHOICES:
        raise name_error(name, choice, CHOICES)
    return choice


def resolve(choice: str, name: str = "--device") -> str:
    """The device, ``"cpu"`` or ``"cuda"``, for ``--device auto|cpu|cuda``.

    Args:
        choice: the device.
        name: option or argument, for the message.

    Raises:
        UserError: an unknown choice, or CUDA where PyTorch sees none.
    """
    known_device(choice, name)
    import torch

    available = torch.cuda.is_available()
    if choice == "cuda" and not available:
        reason = "cuda asked for, but PyTorch sees no CUDA device"
        raise UserError(f"{name}: {reason}; allowed here: cpu")
    return choice if choice != "auto" else ("cuda" if available else "cpu")
