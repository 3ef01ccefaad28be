"""Paper 2's timing runs: one epoch of the paper's training, by worker count and frequency."""

from __future__ import annotations

from harness.execution.grid import Config
from harness.execution.timing import TimingConfig
from reproductions.paper import Subject
from reproductions.paper2_ng_averaging.prediction import (
    EVERY,
    REPORTED,
    averaging,
    cluster,
    fitted,
)

GPUS: tuple[int, ...] = tuple(REPORTED["timings"]["gpus"])
SEEDS = {"smoke": 2, "laptop": 3, "gpu": 3, "paper": 3}


def epoch(seed: int, workers: int, every: int = EVERY, reading: str = "minibatch") -> TimingConfig:
    """One epoch on the fitted cluster."""
    machine, paper = cluster(fitted(reading).free), REPORTED["paper"]
    rules = averaging(every)
    return TimingConfig(
        machine, workers, tuple(paper["layers"]), paper["minibatch"],
        rules.epoch_folds(machine, workers), seed, rules,
    )  # fmt: skip


def experiments(subject: Subject, seed: int) -> dict[str, Config]:
    """Every run of one seed, by the name the exhibits use."""
    return {
        **{f"timing_{n}": epoch(seed, n) for n in GPUS},
        "timing_16_every_20": epoch(seed, 16, 20),
        "other_1": epoch(seed, 1, reading="average"),
        "other_16_every_20": epoch(seed, 16, 20, "average"),
    }


def differences(subject: Subject) -> list[dict[str, str]]:
    """What is not as in the paper."""
    rows = [
        ("training", "15 epochs on 300 h Switchboard", "none: one epoch is timed by simulation"),
        ("cluster", "Stampede, one K20 a node", "simulated; four figures fitted on 1, 2, 4 GPUs"),
        ("all-reduce", "MPI's choice", "Rabenseifner's algorithm"),
        ("tables 1 to 6", "error rates", "not here"),
    ]
    return [dict(zip(("what", "paper", "here"), row, strict=True)) for row in rows]
