"""``tox -e portable``: the numerics' tests as other processors and libraries' code paths compute.

    python -m tests.portable [SETTING …]

Each setting is what one process adds to its environment; without arguments all are run.
"""

import os
import subprocess
import sys
from pathlib import Path

from numpy._core._multiarray_umath import __cpu_dispatch__

from tests.portable.flips import ENVIRONMENT as FLIPS

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
VALUES = {
    "ATEN_CPU_CAPABILITY": ("default", "avx2"),
    "MKL_ENABLE_INSTRUCTIONS": ("AVX2", "SSE4_2"),
    "MKL_CBWR": ("COMPATIBLE", "AVX2"),
    "OPENBLAS_CORETYPE": ("Haswell", "Zen", "SkylakeX"),
    "NUMBA_CPU_NAME": ("generic",),
    "NPY_DISABLE_CPU_FEATURES": (" ".join(__cpu_dispatch__),),  # numpy's baseline alone
    FLIPS: ("1", "2", "3"),
}
SETTINGS = {
    "default": {},
    "threads=2": dict.fromkeys(THREADS, "2"),
    **{
        f"{name}={value.split()[0]}": {name: value}
        for name, values in VALUES.items()
        for value in values
    },
}
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
    "tests/harness/acoustics/test_mmi.py",
    "tests/harness/acoustics/test_lattice.py",
    "tests/harness/acoustics/test_decoder.py",
    "tests/harness/speech/test_frame_training.py",
    "tests/harness/experiment/test_rounds.py",
    "tests/harness/speech/test_sequence_oracle.py",
)
"""The numerics: what rounds, and what must not."""


def run(setting: str) -> int:
    """Exit code of the numerics' tests under a setting; nothing else that a setting has is set."""
    inherited = {name: value for name, value in os.environ.items() if name not in VALUES}
    environment = inherited | dict.fromkeys(THREADS, "1") | SETTINGS[setting]
    cores = (os.cpu_count() or 1) // int(environment["OMP_NUM_THREADS"])
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(max(1, cores)), *TESTS]
    print(f"== {setting}", flush=True)
    return subprocess.run(command, cwd=Path(__file__).parents[2], env=environment).returncode


def main(names: list[str]) -> int:
    """Exit code 1 if a test fails under any setting, 2 for a setting that does not exist."""
    if unknown := set(names) - set(SETTINGS):
        print(f"no setting {sorted(unknown)}; allowed: {', '.join(SETTINGS)}", file=sys.stderr)
        return 2
    failed = [name for name in names or SETTINGS if run(name)]
    print("failed under:", ", ".join(failed) or "none")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
