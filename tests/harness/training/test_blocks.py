"""Training in blocks of folds: here on a processor, which by itself takes them one by one."""

from __future__ import annotations

from dataclasses import replace

import torch
from safetensors.torch import load_file

from harness.algorithms.async_sgd import AsyncSgd, AveragedSgd
from harness.algorithms.schedules import Constant
from harness.replay.block_replay import BlockReplay
from harness.simulator import ParameterServer
from harness.store import Store
from harness.training import executors
from harness.training.run import train


def nobody(progress):
    del progress


def test_a_run_in_blocks_trains_what_a_run_one_by_one_does(
    configure, corpus, tmp_path, monkeypatch
):
    made = []
    begin = BlockReplay.__init__
    monkeypatch.setattr(
        BlockReplay, "__init__", lambda self, *a, **k: made.append(self) or begin(self, *a, **k)
    )
    ends = []
    for name, devices in (("one by one", ()), ("in blocks", ("cpu",))):
        monkeypatch.setattr(executors, "IN_BLOCKS", devices)
        run = train(configure(), corpus, Store(tmp_path / name), nobody)
        ends.append(load_file(run.path("model.safetensors")))
    assert len(made) == 1
    for name, tensor in ends[0].items():
        torch.testing.assert_close(ends[1][name], tensor, rtol=1e-4, atol=1e-5)


def test_runs_whose_folds_are_not_alike_are_told_one_by_one(configure, monkeypatch):
    monkeypatch.setattr(executors, "IN_BLOCKS", ("cpu",))
    config = replace(configure(), algorithm=AveragedSgd(), protocol=None)
    assert executors.is_blockwise(config)
    assert not executors.is_blockwise(replace(config, algorithm=AsyncSgd("memory_of_one")))
    assert not executors.is_blockwise(replace(config, shards=2))
    pushes = replace(config, schedule=Constant(0.1), protocol=ParameterServer(push_every=2))
    assert not executors.is_blockwise(pushes)
    monkeypatch.setattr(executors, "IN_BLOCKS", ("cuda",))
    assert not executors.is_blockwise(config)
