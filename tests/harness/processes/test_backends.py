"""Backends of averages: what is refused, and where tensors are staged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from harness.base.errors import UserError
from harness.processes.rendezvous import assign_device, check, device_of, staging_device
from harness.train import main
from tests.run_files import ROUNDS, written


def test_gloo_is_there_and_stages_in_host_memory_whatever_computes() -> None:
    check("gloo")
    assert [staging_device(b, d) for b in ("gloo", "mpi") for d in ("cpu", "cuda")] == ["cpu"] * 4
    assert device_of("gloo") == device_of("mpi") == "cpu"


def test_nccl_averages_where_the_gpu_has_it_and_nowhere_else() -> None:
    assert device_of("nccl") == "cuda"
    assert staging_device("nccl", "cuda") == "cuda"
    with pytest.raises(UserError, match="--backend nccl: not for a run on cpu; allowed: gloo"):
        staging_device("nccl", "cpu")


@pytest.mark.parametrize("backend", ["nccl", "mpi"])
def test_a_backend_torch_is_built_without_is_refused_with_those_it_has(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, f"is_{backend}_available", lambda: False)
    with pytest.raises(UserError, match=f"--backend {backend}: this torch is built without it"):
        check(backend)


def test_nccl_needs_a_gpu_for_every_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="--backend nccl: no GPU here; allowed: gloo"):
        check("nccl")
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    for rank in range(3):
        assign_device("cuda", "nccl", rank)
    assert taken == [0, 1]
    with pytest.raises(UserError, match="2 GPUs here; needed: one a worker"):
        assign_device("cuda", "nccl", 3)
    assign_device("cuda", "gloo", 3)  # GPUs are shared where averages go through host memory
    assert taken == [0, 1, 0]


def test_under_srun_a_worker_takes_the_gpu_of_its_place_on_its_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    for rank, node, place in ((1, 0, 1), (2, 0, 2), (3, 1, 0), (4, 1, 1)):
        monkeypatch.setenv("SLURM_NODEID", str(node))
        monkeypatch.setenv("SLURM_LOCALID", str(place))
        assign_device("cuda", "nccl", rank)
    assert taken == [0, 1, 0, 1]


def test_a_device_that_is_not_here_or_not_for_the_backend_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of("gloo", "auto") == device_of("gloo", "cpu") == "cpu"
    with pytest.raises(UserError, match="--backend nccl: not for a run on cpu"):
        device_of("nccl", "cpu")
    file = str(written(tmp_path, ROUNDS))
    assert main([file, "--processes", "3", "--device", "cuda"]) == 2
    assert "--device: cuda asked for, but PyTorch sees no CUDA" in capsys.readouterr().err
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device_of("gloo", "cuda") == "cuda"


def test_the_command_refuses_before_it_starts_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dist, "is_mpi_available", lambda: False)
    words = [str(written(tmp_path, ROUNDS)), "--processes", "3", "--backend"]
    assert main([*words, "mpi"]) == 2
    assert "--backend mpi: this torch is built without it; allowed: gloo" in capsys.readouterr().err
    assert main([*words, "glo"]) == 2
    assert "did you mean 'gloo'?" in capsys.readouterr().err
