"""Other processors and libraries' code paths, as far as one machine can stand for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from numpy._core._multiarray_umath import __cpu_dispatch__

from tests.portable.flips import ENVIRONMENT as FLIPS

# Of one thread each, as in the tests, but for the setting that says otherwise.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True)
class Setting:
    """One of them.

    Args:
        name: for ``--only`` and the table.
        environment: what it adds to a process's environment.
    """

    name: str
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


def _of(variable: str, *values: str) -> list[Setting]:
    return [Setting(f"{variable}={value}", {variable: value}) for value in values]


DEFAULT = Setting("default")
SETTINGS = (
    DEFAULT,
    *_of("ATEN_CPU_CAPABILITY", "default", "avx2"),
    *_of("MKL_ENABLE_INSTRUCTIONS", "AVX2", "SSE4_2"),
    *_of("MKL_CBWR", "COMPATIBLE", "AVX2"),
    *_of("OPENBLAS_CORETYPE", "Haswell", "Zen", "SkylakeX"),
    *_of("NUMBA_CPU_NAME", "generic"),
    # What numpy chose at its import to compute with, all left out.
    Setting("numpy-baseline", {"NPY_DISABLE_CPU_FEATURES": " ".join(__cpu_dispatch__)}),
    Setting("threads=2", dict.fromkeys(THREADS, "2")),
    *(Setting(f"flips={seed}", {FLIPS: seed}) for seed in ("1", "2", "3")),
)
SET = {*THREADS, *(name for setting in SETTINGS for name in setting.environment)}
"""The variables that any of them sets; a user's own are not inherited."""

TESTS = (
    "tests/data_synth/test_golden_corpora.py",
    "tests/harness/simulator/test_golden_timelines.py",
    "tests/harness/simulator/test_laws.py",
    "tests/harness/algorithms",
    "tests/harness/natural_gradient",
    "tests/theory",
    "tests/equivalence",
    "tests/harness/networks/test_dnn.py",
    "tests/harness/acoustics/test_rbm.py",
    "tests/harness/acoustics/test_forward_backward.py",
    "tests/harness/acoustics/test_batched_mmi.py",
    "tests/harness/acoustics/test_mmi.py",
    "tests/harness/acoustics/test_lattice.py",
    "tests/harness/acoustics/test_decoder.py",
    "tests/harness/speech/test_frame_training.py",
    "tests/harness/training/test_rounds.py",
    "tests/harness/speech/test_sequence_oracle.py",
)
"""The numerics: what rounds, and what must not."""
