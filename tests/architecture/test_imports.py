from __future__ import annotations

import subprocess
import sys


def loaded_after(statement: str) -> set[str]:
    """Top-level packages loaded in a fresh interpreter after one statement."""
    code = f"{statement}\nimport sys; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_simulator_leaves_torch_unloaded():
    loaded = loaded_after("import harness.simulator")
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
