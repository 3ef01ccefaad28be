"""What can be timed can be trained: each run file against a walk that keeps every version.

The walk takes the record as it is: contribution by contribution, each computed by itself at a copy
of the version that it read, fold by fold.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from harness.algorithms.averaging import GradientAveraging, ModelAveraging
from harness.experiment.experiment import Stage
from harness.experiment.run import run as train
from harness.experiment.run_file import load_run
from harness.natural_gradient import NaturalGradient, PerSample, Preconditioner
from harness.simulator.cluster import Fault
from harness.simulator.timeline import Timeline
from harness.simulator.timeline_file import load_timeline
from harness.store import Store
from harness.store.schema import MODEL, TIMELINE
from tests.equivalence.walk import Walk

RUNS = Path(__file__).parents[2] / "reproductions" / "runs"
NAMES = (
    *("bounded-staleness", "two-under-way", "backup-workers", "averaging-with-deaths"),
    "elastic-diloco",
)


def trained(name: str, folder: Path, **choices: Any) -> tuple[Walk, Timeline, Tensor]:
    asked, store = load_run(RUNS / f"{name}.toml"), Store(folder)
    config = replace(asked, **choices)
    run = train(config, store, lambda progress: None)
    assert run.status == "done"
    problem = config.task.open(config, store)
    fetch = problem.minibatches(config).fetch
    parts = (config.algorithm, problem.network, fetch, problem.initial(), config.schedule.rate)
    return Walk(*parts), load_timeline(run.dir / TIMELINE), load_file(run.path(MODEL))["model"]


def ahead(timeline: Timeline) -> int:
    """How many more contributions than the slowest the quickest worker had, at most."""
    counts = (timeline.folded().worker[:, None] == np.arange(4)).cumsum(0)
    return int((counts.max(1) - counts.min(1)).max())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NAMES)
def test_a_run_file_trains_to_the_bits_of_a_walk_that_keeps_every_version(name, tmp_path):
    walk, timeline, model = trained(name, tmp_path)
    assert torch.equal(walk.around_a_server(timeline), model)
    if name == "bounded-staleness":
        _, free, _ = trained(name, tmp_path, protocol=None)
        assert ahead(timeline) <= 3 + 1 < ahead(free)
    if name == "two-under-way":
        assert timeline.staleness().mean() > 5  # three workers have one under way meanwhile
    if name == "backup-workers":
        assert len(timeline.lost()) > 0
        assert len(timeline.folded()) == 3 * len(timeline.folds)
    if name == "averaging-with-deaths":
        assert len(timeline.lost()) > 0
        assert len(timeline.folded()) < 4 * len(timeline.folds)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["backup-workers", "averaging-with-deaths"])
def test_what_workers_remember_is_of_what_was_folded_however_often_models_are_scored(
    name, tmp_path
):
    kind = GradientAveraging if name == "backup-workers" else ModelAveraging
    algorithm = kind(NaturalGradient(Preconditioner(5), Preconditioner(5), PerSample(0.1)))
    fewer = {"stages": (Stage(32, 256, 0.25),), "algorithm": algorithm, "tested": "never"}
    seldom, often = (trained(name, tmp_path, evaluations=times, **fewer) for times in (2, 40))
    assert len(seldom[1].lost()) > 0
    assert seldom[1].sha256() == often[1].sha256()
    assert torch.equal(seldom[2], often[2])
    assert torch.equal(seldom[0].around_a_server(seldom[1]), seldom[2])


@pytest.mark.nightly
def test_rounds_that_everybody_leaves_are_handed_out_anew(tmp_path):
    cluster = load_run(RUNS / "averaging-with-deaths.toml").cluster
    gone = replace(cluster, faults=(Fault("death", at_s=(0.5,), down_s=0.3),))
    walk, timeline, model = trained("averaging-with-deaths", tmp_path, cluster=gone)
    assert len(timeline.lost()) == 4
    assert torch.equal(walk.around_a_server(timeline), model)
