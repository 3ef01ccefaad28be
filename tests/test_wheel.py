"""What a built wheel installs runs."""

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[1]


def test_the_installed_command_says_its_version(tmp_path):
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    command = [sys.executable, "-P", "-m", "lagbench", "--version"]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(tmp_path)}, cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("lagbench 0.")
