"""`lagbench replay`: execute a recorded run again, on one device, in its recorded order."""

from __future__ import annotations

import argparse

from harness import argument_types
from harness.base.errors import EXIT_DONE, EXIT_RUN_FAILED
from harness.base.log import say


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    argument_types.add_stored_run(parser)


def run(arguments: argparse.Namespace) -> int:
    """Replay, and compare the parameters with the recorded ones."""
    from harness.fidelity.replay import replay_run

    result = replay_run(arguments.folder, say, arguments.file)
    print(f"{'folds':32} {result.folds}")
    print(f"{'parameters':32} {result.parameters}")
    print(f"{'recorded sha256':32} {result.recorded_sha256}")
    print(f"{'replayed sha256':32} {result.replayed_sha256}")
    print(f"{'largest difference':32} {result.largest_difference:.3g}")
    same = result.recorded_sha256 == result.replayed_sha256
    print("identical, bit for bit" if same else "not identical")
    return EXIT_DONE if same else EXIT_RUN_FAILED
