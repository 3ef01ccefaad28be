import ast
import subprocess
import sys

from tests.architecture.test_size import PRODUCT, files


def loaded_after(statement: str) -> set[str]:
    """Top-level packages loaded in a fresh interpreter after one statement."""
    code = f"{statement}\nimport sys; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_simulator_leaves_torch_unloaded():
    loaded = loaded_after("import harness.simulator.simulation")
    assert "numba" in loaded
    assert "torch" not in loaded


def test_judge_store_and_reports_leave_torch_unloaded():
    for package in ("harness.judge", "harness.store", "reports.assemble"):
        assert "torch" not in loaded_after(f"import {package}")


def test_asking_a_command_for_help_loads_nothing_heavy():
    for main in ("reproductions.command", "harness.cli"):
        ask = f"import contextlib, {main} as m\n"
        ask += "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(None): "
        loaded = loaded_after(ask + "m.main(['--help'])")
        assert not loaded & {"torch", "numba", "matplotlib", "rich"}


def test_a_program_ends_its_file():
    """A definition below the line that runs a module as a program would come too late for it."""
    for path in (path for package in PRODUCT for path in files(package, ".py")):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        programs = [
            node
            for node in body
            if isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
        ]
        assert programs in ([], body[-1:]), path
