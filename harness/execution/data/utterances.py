"""Which utterances: those of each replica and in what order, and an even choice of some."""

from __future__ import annotations

import numpy as np

from data_synth.corpus import Utterances
from harness.base.seeds import stream


def parts(seed: int, utterances: int, replicas: int) -> list[np.ndarray]:
    """The training utterances dealt out to replicas, as evenly as they go.

    Paper 3, section 3: "We partition the training data into a number of subsets and run
    training with a replica of the model for each of these subsets."
    """
    drawn = stream(seed, "sequence parts").permutation(utterances)
    return [drawn[replica::replicas] for replica in range(replicas)]


def orders(seed: int, utterances: int, replicas: int, passes: int) -> np.ndarray:
    """Utterances in each replica's own order: its part again and again, shuffled every time.

    Returns:
        int64 [replicas, most of any replica], -1 after a replica's last utterance.
    """
    rows = [
        [stream(seed, "sequence order", k, replica).permutation(part) for k in range(passes)]
        for replica, part in enumerate(parts(seed, utterances, replicas))
    ]
    found = np.full((replicas, max(sum(map(len, row)) for row in rows)), -1, np.int64)
    for replica, row in enumerate(rows):
        joined = np.concatenate(row)
        found[replica, : len(joined)] = joined
    return found


def evenly(part: Utterances, at_most: int) -> Utterances:
    """About ``at_most`` utterances, which lie evenly: neighbours are often of one speaker."""
    chosen = np.linspace(0, len(part) - 1, min(at_most, len(part)))
    return part.take(chosen.round().astype(np.int64))
