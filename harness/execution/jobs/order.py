"""In which order the runs of a grid begin: the longest first, so that none is left for the end."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TypeVar

from harness.execution.runs.executed import Configuration

Each = TypeVar("Each", bound=Configuration)


def longest_first(configs: Mapping[str, Each]) -> dict[str, Each]:
    """Configurations by name, those with most to do first; equals stay in their order."""
    names = sorted(configs, key=lambda name: effort(configs[name]), reverse=True)
    return {name: configs[name] for name in names}


def effort(config: Configuration) -> float:
    """How much a run has to do, beside other runs of its grid: passes times weights.

    A sequence run has the network of the training that it starts from. What a configuration does
    not say counts as one, so timing, which takes seconds, comes last.
    """
    sized = getattr(config, "start", config)
    hidden = getattr(sized, "hidden", None) or (1,)
    weights = sum(above * below for above, below in pairwise((hidden[0], *hidden)))
    return float(getattr(config, "passes", 0) * weights)
