"""Runs of no training, from which every exhibit and claim of every paper can be made."""

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from harness.base.seeds import identity
from harness.judge.builders import Maker, build_claim, build_exhibit
from harness.judge.claims import Here, all_of
from harness.judge.results import Claim
from harness.rollouts.records import ROLLOUTS
from harness.simulator.timeline import Timeline
from harness.simulator.timeline_file import save_timeline
from harness.store import Run
from harness.store.files import MetricRow, columns_of
from harness.store.schema import TEST_ERRORS, TIMELINE
from reproductions.command import PAPERS
from reproductions.paper import Paper
from reproductions.paper1_async_asgd.exhibits import OVER
from reproductions.paper3_async_mmi.exhibits import ALL

UTTERANCES, SEEDS, PASSES = 40, 3, 3
SUBJECTS: dict[str, Any] = {
    paper: SimpleNamespace(
        scale="laptop",
        corpus=SimpleNamespace(
            **{"name": corpus, "tests": tests, "lm_text": (), "split": lambda _: range(9)},
            **{"frames_of": lambda _: 9e4, "layers": lambda hidden: (429, *hidden, 355)},
        ),
        device="cpu",
    )
    for paper, corpus, tests in (
        ("paper1", "mandarin-like", ("clean", "noise")),
        ("paper2", "conversational", ("swb", "callhome")),
        ("paper3", "voice-search-small", ("test",)),
        ("paper4", "none", ()),
        ("staleness", "parametric", ("test",)),
    )
}
# Draws follow this order; "loss" is second, where no rank of the middle of five stays by chance.
SUMMARY = (
    "virtual_s", "loss", "folds", "throughput_per_s", "bare_throughput_per_s", "cancelled_frames",
    "kept_frames", "rejected_frames", "mean_lag_s", "mean_staleness",
    "moved_train", "utterances", "stable", "diverged", "dev_loss/iterate",
    "auxiliary_at_0", "criterion_at_0", "auxiliary_slope", "criterion_slope",
    "largest_difference", "largest_move", "rate",
    *(f"{path}_{what}_mean" for path in ("outer", "inner", "push")
      for what in ("lag_s", "staleness")),
    "train_loss", "swb_frame_error/iterate", "callhome_frame_error/iterate",
    "score", "score_before", "staleness_tokens", "tokens/s, decoded",
    "measured_s", "seconds/4", "thrown_away", "thrown_tokens", "trained_tokens", "thrown_reward",
    "trained_reward", "score/1", "score/2", "tokens_per_s", "staleness_most",
    "collapse", "clipped", *(f"bias_square/{age}" for age in (2, 4, 8)),
)  # fmt: skip
FALLING = (
    "dev_frame_error/average", "dev_frame_error/iterate", "dev_word_error/iterate",
    "test_frame_error/iterate", "held_out_criterion", "cancelled_frames",
    "clean_frame_error/average", "clean_frame_error/iterate",
    "noise_frame_error/average", "noise_frame_error/iterate",
)  # fmt: skip
SCANNED = ("run.sharing", *OVER, *ALL)
"""Figures of scanned machines, all of which are allowed."""
PLAN = {
    "printed": [{"name": SCANNED[0], "low": 0.0, "high": 9.0}],
    "unprinted": [{"key": name} for name in SCANNED],
}
EPOCHS = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0)


def makers() -> list[tuple[Paper, Maker[Any, Any]]]:
    """Every exhibit and claim, with its paper."""
    papers = [import_module(module).PAPER for module in PAPERS.values()]
    return [(paper, maker) for paper in papers for maker in (*paper.exhibits, *paper.claims)]


def made(maker: Maker[Any, Any], paper: Paper, runs: dict[str, list[Run]]) -> Any:
    """The exhibit or claim of these runs."""
    subject = SUBJECTS[paper.id]
    return (build_claim if maker in paper.claims else build_exhibit)(maker, subject, runs)


ERRORS = {"changed": (7, 9), "changed-again": (0, 3)}
"""Ranges of an utterance's errors in runs of other readings: worse than all others, or better."""


SIZES = {"changed": 0.1, "changed-again": 10.0}
"""Of a summary's numbers in them: less than all others, or more."""


class Book:
    """Runs that never trained, with whatever any exhibit or claim reads.

    A store has to keep only what is read as a file: there are hundreds of settings.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._timeline = folder / TIMELINE
        save_timeline(Timeline(), self._timeline)
        self._made: dict[tuple[str, int, str], Run] = {}

    def group(self, setting: str) -> list[Run]:
        """A run of each seed."""
        return [self.run(setting, seed) for seed in range(SEEDS)]

    def others(self, setting: str, maker: Maker[Any, Any], how: str) -> list[Run]:
        """Runs of other readings, and of another outcome where a maker asks about that.

        Each ``how`` gives others; the worst and the best are those of any setting.
        """
        status: Any = "diverged" if maker.divergence else "done"
        name = how if how in ERRORS else f"{how} {setting}"
        return [self.run(name, seed, status) for seed in range(SEEDS)]

    def lost(self, setting: str, maker: Maker[Any, Any]) -> list[Run]:
        """A run of each seed, one of which did not end in a way that the maker asks about.

        All of them where there is no other setting: an exhibit may draw its first run alone.
        """
        status: Any = "failed" if maker.divergence else "diverged"
        sound = self.group(setting)
        lost = [replace(run, status=status, note="in MMI at fold 9") for run in sound]
        return lost if len(maker.needs) == 1 else [*sound[:-1], lost[-1]]

    def run(self, setting: str, seed: int, status: Any = "done") -> Run:
        """A run, always the same one, as a store gives it back once its files were compared."""
        asked = (setting, seed, status)
        if asked not in self._made:
            self._made[asked] = self._run(*asked)
        return self._made[asked]

    def _run(self, setting: str, seed: int, status: Any) -> Run:
        config = {
            "setting": setting, "seed": seed, "status": status, "passes": PASSES,
            "protocol": {"slots": 8, "fetch_s": 60.0}, "stages": [{"share": 1.0}],
            "training": {"seed": seed}, "start": {"targets": {"is": "ForcedAlignment"}},
            "folds": 9, "replicas": 10, "workers": 4, "size_bytes": 4.0,
            "schedule": {"rate": len(setting)}, "rate": len(setting),
            "count": 2, "plan": PLAN,
        }  # fmt: skip
        rng = np.random.default_rng([seed, *setting.encode()])
        rows = list(self._rows(rng, setting in ERRORS))
        (folder := self.folder / identity(config)).mkdir()
        (folder / TIMELINE).hardlink_to(self._timeline)
        if "discard" in setting or setting in ERRORS:
            columns = {"difficulty": np.repeat([1, 2], 50), "fate": rng.integers(0, 2, 100)}
            save_file(columns, folder / ROLLOUTS)
        save_file(dict(self._errors(rng, setting)), folder / TEST_ERRORS)
        summary = self._summary(rng, setting)
        digests = {path.name: "" for path in folder.iterdir()}
        run = Run(folder.name, config, status, summary, "", folder, digests)
        vars(run).update(metrics=columns_of(rows), _whole={TIMELINE, TEST_ERRORS, ROLLOUTS})
        return run

    def _rows(self, rng: np.random.Generator, other: bool) -> Iterator[MetricRow]:
        """What was logged."""

        def logged(name: str, value: float, fold: int, epoch: float, **more: float) -> MetricRow:
            usual = {"name": name, "value": value, "fold": fold, "time_s": epoch, "epoch": epoch}
            return {**usual, **more}

        for name in FALLING:
            size = (0.01 if other else 1.0) * rng.uniform(0.5, 0.6)
            for epoch in EPOCHS:
                value = 1.0 + size * (0.2 ** (1 + epoch))
                value = -value if name == "held_out_criterion" else value
                yield logged(name, value, 1, epoch, time_s=epoch * rng.uniform(9, 10))
                if name == "dev_frame_error/average":
                    yield logged("dev_frame_error/window", value - 0.01 * epoch, 1, epoch)
        for epoch in EPOCHS:
            yield logged("rate", 0.008 / (1 + 9 * epoch), 1, epoch)
        yield logged("switch", 1.0, 9, 1.5 if other else 0.5, time_s=1.0)
        sent = {"source": 0, "target": 1, "arrived_s": 2.0, "adds": 1}
        yield logged("message", 1.0, 0, 0.0, time_s=1.0, **sent)
        for name in ("criterion", "auxiliary"):
            yield logged(name, -1.0, 0, 0.0)
        apart = np.random.default_rng(rng.bit_generator.seed_seq)
        for name in 2 * SCANNED:
            yield logged(name, apart.uniform(1, 2) * (0.1 if other else 1.0), 0, 0.0)

    def _summary(self, rng: np.random.Generator, setting: str) -> dict[str, Any]:
        size = SIZES.get(setting, 1.0)
        numbers = {name: size * rng.uniform(1, 1.1) for name in SUMMARY}
        numbers["diverged"] = 2.0 * numbers["stable"]
        for end, share in (("low/4", 0.9), ("high/4", 1.1)):
            numbers[end] = share * numbers["seconds/4"]
        numbers["first_loss"] = 3.0 + numbers["loss"] / 2.0
        passes = PASSES - 1 if setting in ERRORS else PASSES
        troubles = {"trouble/nothing kept": 1}
        return {**numbers, **troubles, "passes": passes, "stopped": 1}

    def _errors(self, rng: np.random.Generator, how: str) -> Iterator[tuple[str, np.ndarray]]:
        for test in sorted({name for each in SUBJECTS.values() for name in each.corpus.tests}):
            yield f"{test}/lengths", np.full(UTTERANCES, 9)
            for candidate in ("average", "iterate"):
                for stage in range(PASSES + 1):
                    low, high = ERRORS.get(how, (1, 4))
                    yield f"{test}/{candidate}/{stage}", rng.integers(low, high, UTTERANCES)
            yield f"{test}/window/0", np.full(UTTERANCES, 2)


def decided(claim: Claim) -> Here:
    """What a claim's parts say together, whether or not its design could have told."""
    return all_of(part.here for part in claim.parts if part.here is not None)
