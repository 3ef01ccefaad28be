"""Search for the fetch intervals to sweep, on the development seed, before any verdict.

    python -m reproductions.paper3_async_mmi.intervals [--scale overnight] [--jobs N]

Every sweep is run at every utterance and at the intervals `TRIED`, once, at the rate of the
sweeps. T* is fitted as for the verdicts, and its multiples `AROUND`, to two digits, are the values
for ``Preset.fetch`` (README). It also prints the share of the outer gradients on silence, which
one of the sweeps does not update. The runs are in the store of that scale's report.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from data_synth.corpus import frame_edges
from harness.grid.display import execute_named
from harness.speech.sequence import SequenceConfig, Setup
from harness.speech.task import load_corpus_with_targets, train_or_load_start
from harness.store import Run, Store
from harness.store.schema import MODEL
from harness.tasks.contract import Progress
from reproductions.paper import DEVELOPMENT, Subject
from reproductions.paper3_async_mmi.experiments import PRESETS, SMALL, SWEEPS, fetch_base, fetch_s
from reproductions.paper3_async_mmi.quantities import (
    Sweep,
    gain_or_zero,
    log_tolerances,
    shape_told,
)
from reproductions.trial_options import parse_options

TRIED = (0.0075, 0.015, 0.03, 0.06, 0.12, 0.24, 0.48)
"""Intervals in passes; longer than half a pass leaves hardly a fetch in a run of one pass."""
UTTERANCES = 400
"""Approximate number of utterances for the share of outer gradients on silence."""
AROUND = (0.3, 0.6, 1.0, 1.6, 3.2)
"""Multiples of T* that are swept: near it, where T* is decided, and far enough for other seeds."""

Asked = tuple[str, float]
"""Sweep, interval in passes; 0 fetches at every utterance."""


def configurations(subject: Subject) -> dict[Asked, SequenceConfig]:
    """Every run to make."""
    found: dict[Asked, SequenceConfig] = {}
    for sweep in SWEEPS:
        base = fetch_base(subject, DEVELOPMENT, sweep)
        found[sweep, 0.0] = base
        for passes in TRIED:
            found[sweep, passes] = replace(base, fetch_s=fetch_s(subject, passes))
    return found


def gains(runs: Mapping[Asked, Run]) -> dict[str, Sweep]:
    """The gains of every sweep, of one seed."""
    every = (0.0, *TRIED)
    return {
        sweep: Sweep(np.array(every), np.array([[gain_or_zero(runs[sweep, t]) for t in every]]))
        for sweep in SWEEPS
    }


def intervals_around(star: float) -> tuple[float, ...]:
    """The intervals to sweep, to two digits.

    Example:
        >>> intervals_around(0.0412)
        (0.012, 0.025, 0.041, 0.066, 0.13)
    """
    return tuple(float(f"{times * star:.2g}") for times in AROUND)


def describe_sweep(sweep: Sweep, star: float) -> str:
    """Sentence on the outcome of a sweep and the intervals that follow from it."""
    always, *others = map(float, sweep.gains[0])
    if not always > 0.0:
        return "no gain that is known, even if decoders fetch at every utterance: a lower rate"
    left = ", ".join(f"{t:g}: {g / always:.0%}" for t, g in zip(TRIED, others, strict=True))
    told = f"gain {always:.3g} nats a frame, left of it by interval {left}"
    if not TRIED[0] <= star <= TRIED[-1]:
        return f"{told}; no T* among them: those that are there stay"
    return f"{told}; T* {star:.3g} passes, so {intervals_around(star)}"


def main() -> int:
    """Run the command; returns its exit code."""
    tried = parse_options("intervals", "Find which intervals to sweep.", "paper3", SMALL, PRESETS)
    runs = execute_named(configurations(tried.subject), run_name, tried.store, tried.jobs)
    sweeps, now = gains(runs), PRESETS[tried.subject.scale].fetch
    stars = 2.0 ** log_tolerances(list(sweeps.values()))
    for (name, sweep), star in zip(sweeps.items(), stars, strict=True):
        print(f"{SWEEPS[name]}: {describe_sweep(sweep, float(star))}; Preset.fetch: {now[name]}")
    print(f"power of the loss: {shape_told(list(sweeps.values()))}")
    frames, share = silence_shares(tried.subject, Store(tried.store))
    print(f"silence: {frames:.0%} of the frames, {share:.1%} of the outer gradients at the start")
    return 0


def silence_shares(subject: Subject, store: Store) -> tuple[float, float]:
    """Silence's share of the training frames, and of Σ|o| where MMI starts.

    Of some hundreds of training utterances, evenly chosen.
    """
    config = fetch_base(subject, DEVELOPMENT, "all")
    corpus = load_corpus_with_targets(config.start, store, ignore_progress)
    start = train_or_load_start(config.start, corpus, store.needing(MODEL), ignore_progress)
    setup = Setup.from_config(config, corpus, start)
    # Silence may pass through a target several times; each target counts once.
    silence = list(dict.fromkeys(corpus.silence))
    weight = np.zeros(corpus.n_targets)
    for utterance in range(0, len(setup.train), max(1, len(setup.train) // UTTERANCES)):
        (decoded,) = setup.decoder.decode([start], [utterance])
        weight += decoded.outer.abs().sum(dim=0).double().cpu().numpy()
    row, _, _ = frame_edges(setup.train)
    frames = np.isin(corpus.targets[row], silence).mean()
    return float(frames), float(weight[silence].sum() / weight.sum())


def ignore_progress(progress: Progress) -> None:
    """Progress of the start, which is in the store or takes seconds."""


def run_name(each: Asked) -> str:
    """Name of a run."""
    sweep, passes = each
    return f"{SWEEPS[sweep]}, fetched every {passes:g} passes" if passes else f"{SWEEPS[sweep]}, 0"


if __name__ == "__main__":
    sys.exit(main())
