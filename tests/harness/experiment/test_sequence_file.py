from pathlib import Path

import pytest

from harness.acoustics.mmi import Criterion
from harness.algorithms.stale import DelayCompensated
from harness.base.errors import UserError
from harness.experiment.run_file import load_folds, load_run
from harness.speech.frames import corpus_of
from harness.speech.sequence_task import Sequences
from harness.speech.task import Frames
from tests.run_files import written

RUNS = Path(__file__).parents[3] / "reproductions" / "runs"
RUN = (RUNS / "sequence.toml").read_text(encoding="utf-8")


def asked_for(folder: Path, old: str = "", new: str = "") -> Path:
    assert old in RUN
    text = RUN.replace(old, new, 1) if old else RUN
    where = f"{RUNS / 'clusters' / 'two-replicas.toml'}"
    return written(folder, text.replace("clusters/two-replicas.toml", where))


def test_a_file_says_what_is_trained_and_what_it_starts_from(tmp_path: Path) -> None:
    config = load_run(asked_for(tmp_path), seed=7)
    task = config.task
    corpus = corpus_of(task)
    assert (config.seed, task.start.seed) == (7, 0)
    assert task.criterion == Criterion(numerator="sum")
    assert task.start.cluster == config.cluster
    assert task.start.task.fingerprint == task.fingerprint == corpus.fingerprint
    inputs = corpus.dim * (2 * corpus.context + 1)
    assert task.timed_layers == task.start.task.timed_layers == (inputs, 64, corpus.n_targets)


def test_gradients_are_folded_as_the_file_says(tmp_path: Path) -> None:
    named = 'evaluations = 2\nalgorithm = { is = "DelayCompensated", strength = 0.5 }'
    config = load_run(asked_for(tmp_path, "evaluations = 2", named))
    assert config.algorithm == DelayCompensated(0.5)


def test_the_two_kinds_of_run_files_are_told_apart(tmp_path: Path) -> None:
    path = asked_for(tmp_path)
    assert type(load_run(path).task) is Sequences
    assert type(load_folds(RUNS / "async-averaged.toml").task) is Frames
    with pytest.raises(UserError, match=r"task\.is: not allowed"):
        load_folds(path)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("workers = 2", 'device = "cpu"', "device: not allowed; it follows from the rest"),
        ("workers = 1", 'scale = "smoke"', "task.start.scale: not allowed; it follows"),
        ('scale = "smoke"', "scale = 3", "task.scale: 3 is not allowed; allowed: a string"),
        ("slots = 16", "slts = 16", "key in protocol: unknown 'slts' (did you mean 'slots'?)"),
        ("slots = 16", "slots = 0", "protocol.slots: 0 is not allowed; allowed: a whole number"),
        (
            "evaluations = 2",
            'algorithm = { is = "Easgd" }',
            "algorithm: Easgd is not allowed; al",
        ),
        ("held_out = 50", "corpus_seed = -1", "corpus_seed: -1 is not allowed"),
        ("hidden = [64]", "", "task.start.hidden: missing"),
        ('numerator = "sum"', 'numerator = "some"', "task.criterion.numerator"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, old: str, new: str, line: str) -> None:
    with pytest.raises(UserError) as refused:
        load_run(asked_for(tmp_path, old, new))
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_without_a_start_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        'cluster = "k20m-server"\ntask = { is = "sequence", corpus = "parametric" }\n',
        encoding="utf-8",
    )
    with pytest.raises(UserError, match=r"task\.start: missing"):
        load_run(path)
