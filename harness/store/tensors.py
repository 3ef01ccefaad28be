"""Arrays by name in one file, as safetensors.

What the machine refuses is an `OSError`, as of any file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file  # pyright: ignore[reportUnknownVariableType]

_NUMBER = re.compile(r"os error (\d+)")


def save_arrays(
    path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None
) -> None:
    """Write them.

    Raises:
        OSError: the machine refuses it; safetensors says so by an error of its own, with the
            number in its words.
    """
    # Not ascontiguousarray: it would turn a scalar into a vector of one.
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    try:
        save_file(contiguous, path, metadata=None if metadata is None else dict(metadata))
    except SafetensorError as error:
        if (refused := _NUMBER.search(str(error))) is None:
            raise
        number = int(refused[1])
        raise OSError(number, os.strerror(number)) from error
