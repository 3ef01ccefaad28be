"""What each knob of a continuous preset does to a frame's recognisability, measured.

One knob at a time is turned down and up from the preset's smoke recipe, and the three
models of ``validate`` judge what comes out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from data_synth import presets
from data_synth.continuous import Condition, Maker, Recipe, chunks
from data_synth.storage import load, write_chunks
from data_synth.validate import Effort, Validation, validate

# What is turned, and to what: nearly off, and about double.
TURNS: Mapping[str, tuple[Any, Any]] = {
    "variant_spread": (0.5, 2.5),
    "pull": (0.2, 1.4),
    "closeness": (0.15, 0.6),
    "wobble": (0.1, 0.8),
    "mean_state_frames": (1.7, 5.0),
    "speaker_spread": (0.0, 0.4),
    "channel_spread": (0.0, 1.5),
    "snr_db": ((30.0, 40.0), (0.0, 5.0)),
}


def judged(recipe: Recipe, effort: Effort) -> Validation:
    """Makes a recipe's corpus in a temporary folder, and validates it."""
    recipe = replace(recipe, lm_sentences=0, conditions=(Condition("test", 1),))
    with tempfile.TemporaryDirectory() as place:
        maker = Maker(recipe)
        write_chunks(Path(place), maker.card(), chunks(maker))
        return validate(load(Path(place)), effort, progress=lambda line: None)


def table(
    name: str, effort: Effort, show: Callable[[str], None], turns: Mapping[str, Any] = TURNS
) -> None:
    """Shows a Markdown table, row by row as it is measured.

    Args:
        name: of a preset.
        effort: how hard the models try.
        show: called with each line.
        turns: knob -> values to try.
    """
    show("| knob | value | targets | linear | deep | linear / deep | targets left open |")
    show("|---|---|---|---|---|---|---|")
    for knob, value, recipe in _turned(presets.recipe(name, "smoke"), turns):
        v = judged(recipe, effort)
        errors = f"{v.linear:.1%} | {v.deep:.1%} | {v.depth_pays:.2f} | {v.possible:.1f}"
        show(f"| {knob} | {value} | {v.targets} | {errors} |")


def _turned(base: Recipe, turns: Mapping[str, Any]) -> Iterator[tuple[str, str, Recipe]]:
    yield "the preset", "", base
    for knob, values in turns.items():
        for value in values:
            said = f"{_plain(value)} (was {_plain(getattr(base, knob))})"
            yield f"`{knob}`", said, replace(base, **{knob: value})


def _plain(value: object) -> str:
    if isinstance(value, tuple):
        return " to ".join(map(str, cast(tuple[object, ...], value)))
    return str(value)
