"""What a fresh interpreter loads: `import lagbench` needs a third of the house, and no speech."""

import subprocess
import sys
from functools import cache

PACKAGES = ("lagbench", "harness", "data_synth", "reports", "reproductions")
SPEECH = ("harness.speech", "harness.acoustics", "data_synth")
MOST = 135


HEAVY = ("matplotlib", "numba", "pyarrow", "rich", "scipy")
"""Libraries that take a tenth of a second or more to import."""


@cache
def loaded(code: str) -> set[str]:
    """Modules that a fresh interpreter has after some code."""
    told = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def own(modules: set[str]) -> set[str]:
    return {name for name in modules if name.partition(".")[0] in PACKAGES}


def speech_of(modules: set[str]) -> list[str]:
    return sorted(each for each in modules if f"{each}.".startswith(tuple(f"{p}." for p in SPEECH)))


def test_importing_lagbench_loads_no_speech_and_few_modules() -> None:
    modules = own(loaded("import lagbench; lagbench.train"))
    assert speech_of(modules) == []
    assert len(modules) <= MOST
    assert "harness.modules.task" in modules


def test_importing_lagbench_loads_nothing_heavy() -> None:
    modules = loaded("import lagbench; lagbench.__doc__")
    assert own(modules) == {"lagbench"}
    assert modules.isdisjoint({*HEAVY, "torch"})


def test_judge_store_and_reports_load_no_torch() -> None:
    modules = loaded("import harness.judge, harness.store, reports.assemble, reports.verdicts")
    assert modules.isdisjoint({"torch", "matplotlib.pyplot"})


def test_the_optimizer_loads_tensors_alone() -> None:
    modules = own(loaded("import harness.natural_gradient"))
    rooms = {name.split(".")[1] for name in modules if "." in name}
    assert rooms.isdisjoint({"simulator", "acoustics", "experiment", "store", "judge"})


def test_asking_a_command_for_help_loads_nothing_heavy() -> None:
    for command in ("reproductions.command", "harness.cli"):
        help_of = f"import contextlib, {command} as command\n"
        help_of += "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(None): "
        modules = loaded(f"{help_of}command.main(['--help'])")
        assert modules.isdisjoint({"torch", "numba", "matplotlib", "rich"})


def test_naming_a_function_loads_nothing_that_only_writing_and_drawing_need() -> None:
    modules = loaded("import lagbench; lagbench.train")
    scipy = ("scipy.special", "scipy.stats")
    unneeded = {"matplotlib", "pyarrow", "rich", "torch._dynamo", "sympy", *scipy}
    assert modules.isdisjoint(unneeded)
    assert "numba" in modules


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
