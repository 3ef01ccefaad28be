"""With nothing installed but what is usual on a machine lent for its GPU."""

from __future__ import annotations

import subprocess
import sys

from tests.harness.bench.lent import command, environment, packed

EVERYTHING = """
import importlib, pkgutil, sys
from importlib.util import find_spec
hidden = [name for name in ("typst", "kaldiio", "soundfile", "simpy") if find_spec(name)]
assert not hidden, hidden
for root in ("harness", "data_synth", "reproductions", "reports", "lagbench"):
    for found in pkgutil.walk_packages(importlib.import_module(root).__path__, root + "."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
from harness.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""All of it is imported, and a command carried out: in one process, which begins slowly enough."""


def test_all_of_it_can_be_imported_and_a_command_with_little_time_leaves_a_whole_archive(tmp_path):
    words = command(tmp_path, "--minutes", "0.002", "--preset", "paper1/smoke:fig1")
    program = [sys.executable, "-c", EVERYTHING, *words[words.index("device") :]]
    done = subprocess.run(program, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = packed(tmp_path)
    assert found["failed"] == {}
    assert "ceilings" in found["parts"]
    assert "paper1-smoke-fig1" in found["unfinished"]
    assert "archive: " in done.stdout


def test_a_checkout_that_is_not_installed_has_commands():
    program = [sys.executable, "-m", "harness", "--version"]
    done = subprocess.run(program, env=environment(), capture_output=True, text=True, check=False)
    assert done.stdout.startswith("lagbench not installed (torch "), done.stderr
    facts = "from harness.judge import comparison as provenance; provenance.describe_program('x')"
    subprocess.run([sys.executable, "-c", facts], env=environment(), check=True)
