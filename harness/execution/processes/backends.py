"""The back end of all-reduces between workers in rounds: gloo, NCCL or MPI.

Everything else, models at the begin and the end and what workers tell, goes over gloo in any case.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist

from harness.base.errors import UserError, unknown
from harness.execution.runs.device import resolve

LOCAL_NAMES = ("LOCAL_RANK", "SLURM_LOCALID"), ("GROUP_RANK", "SLURM_NODEID")
"""Where torchrun and Slurm say which process on its machine this is, and on which machine."""
GLOO, NCCL, MPI = "gloo", "nccl", "mpi"
AVAILABLE: Mapping[str, Callable[[], bool]] = {
    GLOO: lambda: dist.is_gloo_available(),
    NCCL: lambda: dist.is_nccl_available(),
    MPI: lambda: dist.is_mpi_available(),
}


def check(backend: str) -> None:
    """Whether this torch, on this machine, has a backend.

    Raises:
        UserError: it is unknown, torch was built without it, or it needs GPUs and there are none.
    """
    if backend not in AVAILABLE:
        raise unknown("--backend", backend, AVAILABLE)
    there = [name for name, is_available in AVAILABLE.items() if is_available()]
    if backend not in there:
        allowed = ", ".join(there)
        raise UserError(f"--backend {backend}: this torch is built without it; allowed: {allowed}")
    if backend == NCCL and not torch.cuda.is_available():
        raise UserError(f"--backend {NCCL}: no GPU here; allowed: {GLOO}")


def device_of(backend: str, asked: str | None = None) -> str:
    """Where the processes of a run compute: on GPUs if their averages go between GPUs.

    Args:
        backend: of averages.
        asked: ``auto``, ``cpu`` or ``cuda``; None for what the backend needs.

    Raises:
        UserError: it is not here, or not for this backend.
    """
    if asked is None:
        return "cuda" if backend == NCCL else "cpu"
    staged_on(backend, device := resolve(asked))
    return device


def own_device(device: str, backend: str, rank: int) -> None:
    """Take this process's own GPU, or its share of one unless averages go between GPUs.

    Raises:
        UserError: NCCL finds fewer GPUs here than workers.
    """
    if device != "cuda" or rank == 0:
        return
    # Under torchrun and under srun ranks are counted on each machine; the server, which is on
    # the first one, needs no GPU.
    local, machine = (_first_of(*names) for names in LOCAL_NAMES)
    number = int(local or rank) - (int(machine or 0) == 0)
    found = torch.cuda.device_count()
    if backend == NCCL and number >= found:
        raise UserError(f"--backend {NCCL}: {found} GPUs here; needed: one a worker")
    torch.cuda.set_device(number % found)


def _first_of(*names: str) -> str | None:
    return next((os.environ[name] for name in names if name in os.environ), None)


def staged_on(backend: str, device: str) -> str:
    """Where a device's tensor must lie for an all-reduce: on the GPU for NCCL, else in host memory.

    Raises:
        UserError: NCCL is to average what is computed on no GPU.
    """
    if backend != NCCL:
        return "cpu"
    if torch.device(device).type != "cuda":
        raise UserError(f"--backend {NCCL}: not for a run on {device}; allowed: {GLOO}")
    return device
