"""What a fresh interpreter loads: `import lagbench` needs a third of the house, and no speech."""

from __future__ import annotations

import subprocess
import sys

PACKAGES = ("lagbench", "harness", "data_synth", "reports", "reproductions")
SPEECH = ("harness.speech", "harness.acoustics", "data_synth")
MOST = 130


def loaded(code: str) -> set[str]:
    """Our own modules that a fresh interpreter has after some code."""
    told = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    return {name for name in done.stdout.split() if name.partition(".")[0] in PACKAGES}


def speech_of(modules: set[str]) -> list[str]:
    return sorted(each for each in modules if f"{each}.".startswith(tuple(f"{p}." for p in SPEECH)))


def test_importing_lagbench_loads_no_speech_and_few_modules() -> None:
    modules = loaded("import lagbench")
    assert speech_of(modules) == []
    assert len(modules) <= MOST
    assert "harness.modules.task" in modules


def test_speech_that_is_loaded_is_seen() -> None:
    assert "data_synth.corpus" in speech_of(loaded("import data_synth.corpus"))


def test_training_a_module_from_a_program_loads_no_speech() -> None:
    assert speech_of(loaded(TRAINING)) == []


TRAINING = """
import tempfile, torch, lagbench
x = torch.randn(64, 4)
with tempfile.TemporaryDirectory() as store:
    lagbench.train(
        torch.nn.Linear(4, 2), torch.nn.functional.cross_entropy, (x, (x[:, 0] > 0).long()),
        cluster="k20m-server", rate=0.1, passes=1, seeds=1, step_seconds=0.1, store=store,
    )
"""
