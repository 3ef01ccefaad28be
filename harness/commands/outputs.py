"""Output files of a command, checked beforehand."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from harness.base.errors import UserError
from harness.simulator.timeline_file import STANDARD, refuse_to_replace


def check_outputs(outputs: Mapping[str, Path | None], inputs: Iterable[Path]) -> None:
    """Reject invalid output files before anything is simulated.

    Args:
        outputs: path by option; None if not requested.
        inputs: input files, which must not be overwritten.

    Raises:
        UserError: an output cannot be written, or is an input.
    """
    for option, path in outputs.items():
        if path is None:
            continue
        _check_place(option, path)
        for source in inputs:
            if path.exists() and source.exists() and path.samefile(source):
                raise UserError(f"{option}: {str(path)!r} is read; allowed: another file")


def _check_place(option: str, path: Path) -> None:
    if path == STANDARD:
        return
    try:
        is_possible = path.parent.is_dir() and os.access(path.parent, os.W_OK) and not path.is_dir()
    except (OSError, ValueError):  # a name too long, or with a null byte
        is_possible = False
    if not is_possible:
        name = str(path) if len(str(path)) <= 200 else f"{str(path)[:197]}..."
        allowed = "a file in a folder that exists and can be written, or - for standard output"
        raise UserError(f"{option}: {name!r} is not allowed; allowed: {allowed}")
    refuse_to_replace(path, option)
