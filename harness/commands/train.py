"""`lagbench train`: one run from a file, executed in the order its cluster would have."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("file", type=Path, help="the run, as a TOML file")
    parser.add_argument("--seed", type=int, help="in place of the file's")
    parser.add_argument("--device", default="auto", help="auto (default), cpu or cuda")
    parser.add_argument(
        "--out", type=Path, default=Path("reports/out/runs"), help="the store it goes to"
    )


def run(arguments: argparse.Namespace) -> int:
    """Train to the end, or go on where it stopped, and print what was measured."""
    from harness.errors import EXIT_DONE, EXIT_RUN_FAILED, UserError
    from harness.execution.jobs.named import execute_named
    from harness.execution.runs.device import resolve
    from harness.execution.runs.file import kind_of, load_run
    from harness.store.atomic import writable_folder

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if arguments.seed is not None and arguments.seed < 0:
        raise UserError(f"--seed {arguments.seed}: allowed: a whole number from 0")
    device = resolve(arguments.device)
    kind = kind_of(arguments.file)
    asked = load_run(arguments.file, kind, seed=arguments.seed, device=device, progress=say)
    writable_folder(arguments.out, "--out")
    name = arguments.file.stem
    found = execute_named({name: asked.config}, str, arguments.out, jobs=1)[name]
    for key, value in sorted(found.summary.items()):
        print(f"{key:32} {value:.6g}" if isinstance(value, float) else f"{key:32} {value}")
    print(f"{'status':32} {found.status}")
    print(f"{'run':32} {found.dir}")
    if found.status == "done":
        return EXIT_DONE
    say(found.ending(f"{name}, seed {asked.config.seed}"))
    return EXIT_RUN_FAILED
