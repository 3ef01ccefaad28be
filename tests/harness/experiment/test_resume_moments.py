"""A run may die at its awkward moments; what it resumes to is what it would have been."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.algorithms.async_sgd import AveragedSgd
from harness.algorithms.saved import unpack
from harness.algorithms.schedules import Constant, Search
from harness.base.seeds import identity
from harness.experiment import folds, loop
from harness.experiment import loop as module
from harness.experiment.experiment import Experiment
from harness.experiment.folds import Boundaries
from harness.experiment.folds import FoldTraining as Training
from harness.experiment.run import run as train
from harness.networks.feedforward import denormals_flushed
from harness.speech.task import Frames
from harness.store import Store
from tests.killed import KEPT, Killed
from tests.silence import silent

SEARCH = Search(0.02, least_minibatches=3, clear=0.0)
Moment = Callable[[Training], bool]


class Ended:
    """A finished run with what it leaves in memory: the server's tensors and numbers."""

    def __init__(self, config, corpus, folder: Path) -> None:
        seen: list[Training] = []
        execute = Training.run

        def watched(training: Training) -> None:
            seen.append(training)
            execute(training)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Training, "run", watched)
            self.run = train(config, Store(folder), silent)
        self.server = seen[0].executor.server

    def must_equal(self, other: Ended) -> None:
        """The same bytes on disk, parameters, averages and counts; not nearly, but exactly."""
        assert self.run.summary == other.run.summary
        for name in KEPT:
            assert self.run.path(name).read_bytes() == other.run.path(name).read_bytes(), name
        assert torch.equal(self.server.model, other.server.model)
        assert self.server.numbers == other.server.numbers
        assert self.server.vectors.keys() == other.server.vectors.keys()
        for name, vector in self.server.vectors.items():
            assert torch.equal(vector, other.server.vectors[name]), name


@pytest.fixture(scope="module")
def undisturbed(corpus, tmp_path_factory) -> Callable[[Experiment[Frames]], Ended]:
    """What a run ends as that nothing happens to; executed once for each configuration."""

    made: dict[str, Ended] = {}

    def ended(config: Experiment[Frames]) -> Ended:
        name = identity(config.to_dict())
        if name not in made:
            made[name] = Ended(config, corpus, tmp_path_factory.mktemp("undisturbed"))
        return made[name]

    return ended


@contextmanager
def saving(monkeypatch, when: Moment, then_die: bool) -> Iterator[list[int]]:
    """Checkpoints only at boundaries where ``when`` holds; gives the steps they were made at."""
    save, steps = Training._save, []

    def chosen(training: Training) -> None:
        if when(training):
            save(training)
            steps.append(training.position.step)
            training._next_save = -1e18
            if then_die:
                raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(module, "CHECKPOINT_EVERY_S", -1e18)
        patch.setattr(Training, "_save", chosen)
        yield steps


def left_behind(folder: Path, name: str) -> tuple[dict, list[dict]]:
    """State and measurements in the checkpoint of a run that died."""
    arrays, facts = loop.load(folder / name / "checkpoint")
    return unpack(arrays, facts["state"], "cpu"), facts["rows"]


def inside_a_chunk(training: Training) -> bool:
    chunk_steps = Boundaries(training.config, training.order, 1).chunk_steps
    within = training.position.step % chunk_steps
    return training.position.stage == 1 and 0 < within < chunk_steps - 1


def test_death_in_the_middle_of_a_chunk_with_stale_reads_under_way_changes_nothing(
    configure, undisturbed, corpus, tmp_path, monkeypatch
):
    config = configure(schedule=SEARCH, evaluations=9)
    whole = undisturbed(config)
    with saving(monkeypatch, inside_a_chunk, then_die=True) as steps, pytest.raises(Killed):
        train(config, Store(tmp_path / "killed"), silent)
    assert len(steps) == 1
    state, _ = left_behind(tmp_path / "killed", whole.run.hash)
    replay = state["executor"]["replay"]
    assert len(replay["in_flight"]) >= 2  # workers that had read and not yet folded
    assert not np.array_equal(*replay["replicas"][:2])  # … at different versions
    Ended(config, corpus, tmp_path / "killed").must_equal(whole)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("minibatches", [1, 2, 3])
@pytest.mark.parametrize("search", [2, 4])
def test_death_in_the_middle_of_a_search_resumes_from_the_last_checkpoint_before_it(
    search, minibatches, configure, undisturbed, corpus, tmp_path, monkeypatch
):
    config = configure(schedule=SEARCH, evaluations=9)
    whole = undisturbed(config)
    descend, begun = folds.trial_losses, 0

    def dying(gradient, model, rates, data):
        nonlocal begun
        begun += 1

        def until_death():
            for number, minibatch in enumerate(data):
                if begun == search and number == minibatches - 1:
                    raise Killed
                yield minibatch

        return descend(gradient, model, rates, until_death())

    with saving(monkeypatch, lambda training: True, then_die=False) as steps:
        monkeypatch.setattr(folds, "trial_losses", dying)
        with pytest.raises(Killed):
            train(config, Store(tmp_path / "killed"), silent)
    assert begun == search
    monkeypatch.setattr(folds, "trial_losses", descend)
    state, _ = left_behind(tmp_path / "killed", whole.run.hash)
    assert state["pace"].rate != SEARCH.rate
    assert state["position"].step == steps[-1]
    Ended(config, corpus, tmp_path / "killed").must_equal(whole)


def switched(training: Training) -> bool:
    return training.executor.server.numbers["averaged"] > 0


@pytest.mark.parametrize("after", [True, False], ids=["just after", "just before"])
def test_death_right_at_the_averaging_switch_changes_nothing(
    after, configure, undisturbed, corpus, tmp_path, monkeypatch
):
    config = configure(algorithm=AveragedSgd(eta=0.3, considers=5), schedule=Constant(0.5))
    whole = undisturbed(config)
    (epoch,), _, _ = whole.run.curve("switch")
    assert 0 < epoch < 2

    if after:
        died = saving(monkeypatch, switched, then_die=True)
    else:
        died = saving(monkeypatch, lambda training: not switched(training), then_die=False)
    consider = AveragedSgd.consider
    with died as steps:
        if not after:
            monkeypatch.setattr(AveragedSgd, "consider", dying_at_the_switch())
        with pytest.raises(Killed):
            train(config, Store(tmp_path / "killed"), silent)
    monkeypatch.setattr(AveragedSgd, "consider", consider)
    state, rows = left_behind(tmp_path / "killed", whole.run.hash)
    assert state["executor"]["replay"]["server"]["numbers"]["averaged"] == (1.0 if after else 0.0)
    assert any(row["name"] == "switch" for row in rows) == after
    assert state["position"].step == steps[-1]
    Ended(config, corpus, tmp_path / "killed").must_equal(whole)


def dying_at_the_switch():
    """``consider`` that dies once it has decided to switch, before it is recorded."""
    consider = AveragedSgd.consider

    def dying(algorithm, server, errors):
        if consider(algorithm, server, errors):
            raise Killed
        return {}

    return dying


def test_death_at_the_end_of_a_pass_before_its_tests_changes_nothing(
    configure, undisturbed, corpus, tmp_path, monkeypatch
):
    config = configure(schedule=SEARCH)
    whole = undisturbed(config)

    def at_the_end(training: Training) -> bool:
        return training.position.step == training.order.steps

    with saving(monkeypatch, at_the_end, then_die=True), pytest.raises(Killed):
        train(config, Store(tmp_path / "killed"), silent)
    state, rows = left_behind(tmp_path / "killed", whole.run.hash)
    assert state["position"].stage == 0
    assert not any(row["name"].startswith("clean") for row in rows)
    Ended(config, corpus, tmp_path / "killed").must_equal(whole)


def test_a_run_that_dies_at_every_boundary_still_ends_the_same(
    configure, undisturbed, corpus, tmp_path, monkeypatch
):
    config = configure(schedule=SEARCH, passes=1)
    whole = undisturbed(config)
    deaths = 0
    with saving(monkeypatch, lambda training: True, then_die=True) as steps, denormals_flushed():
        while True:
            try:
                train(config, Store(tmp_path / "killed"), silent)
                break
            except Killed:
                deaths += 1
    assert deaths == len(set(steps)) > 6
    finished = Store(tmp_path / "killed").load(whole.run.hash)
    for name in KEPT:
        assert finished.path(name).read_bytes() == whole.run.path(name).read_bytes()
    assert json.loads(finished.path("run.json").read_text())["status"] == "done"
