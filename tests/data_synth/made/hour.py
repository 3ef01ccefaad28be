"""An hour of speech made twice, in pieces of different sizes: run this file."""

import hashlib
import time

import numpy as np
import torch

from data_synth.continuous import Maker
from data_synth.made.speech import Speech
from data_synth.presets import recipe

HOUR = 360_000
"""Frames."""


def digest(speech: Speech, utterances: int, size: int) -> list[str]:
    """SHA-256 of features and of targets, made so many utterances at a time."""
    sums = hashlib.sha256(), hashlib.sha256()
    for first in range(0, utterances, size):
        made = speech.make(np.arange(first, min(first + size, utterances)))
        for total, part in zip(sums, made, strict=True):
            total.update(part.cpu().numpy().tobytes())
    return [total.hexdigest() for total in sums]


def main() -> None:
    """Print the digests, and frames a second of one thread's processor time."""
    torch.set_num_threads(1)
    speech = Speech(Maker(recipe("mandarin-like", "paper")), "train")
    frames = np.concatenate([found.frames for found in speech.draw_sentences(np.arange(4096))])
    utterances = int(np.searchsorted(np.cumsum(frames), HOUR)) + 1
    there = int(frames[:utterances].sum())
    for size in (500, 61):
        began = time.process_time()
        features, targets = digest(speech, utterances, size)
        took = time.process_time() - began
        print(f"{there} frames in pieces of {size} utterances: features {features[:16]}", end=", ")
        print(f"targets {targets[:16]}, {there / took:,.0f} frames/s")


if __name__ == "__main__":
    main()
