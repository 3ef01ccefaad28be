"""`lagbench train`: train the runs of a file, in the order of their simulated cluster."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import argument_types
from harness.base.errors import EXIT_DONE, EXIT_RUN_FAILED, UserError
from harness.base.files import DEFAULT_STORE, describe_choices, run_file
from harness.base.log import say
from harness.commands import overrides

if TYPE_CHECKING:
    from harness.experiment.contract import TaskConfig
    from harness.store import Run

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("file", type=run_file, help=f"the run: {describe_choices('run')}")
    parser.add_argument("--seed", type=argument_types.seed, help="replaces the run file's seed")
    parser.add_argument(
        "--algorithm", help="replaces the run file's, e.g. async or averaging:10, with its protocol"
    )
    overrides.add_workers(parser)
    overrides.add_changes(parser, seeds=1)
    parser.add_argument(
        "--device", type=argument_types.device, default="auto", help="auto (default), cpu or cuda"
    )
    parser.add_argument(
        "--jobs",
        type=argument_types.count,
        default=1,
        help="number of processes, with several runs (1)",
    )
    parser.add_argument(
        "--processes",
        type=argument_types.whole(2, 1000),
        help="train with N real processes including the server,"
        " as python -m harness.train --processes",
    )
    parser.add_argument(
        "--paced",
        action="store_true",
        help="with --processes: delay each step to the time that the cluster file gives",
    )
    parser.add_argument("--out", type=Path, default=Path(DEFAULT_STORE), help="store for the run")
    argument_types.add_carriers(parser)


def run(arguments: argparse.Namespace) -> int:
    """Train to the end, resuming from checkpoints, and print the measurements."""
    if arguments.processes is not None:
        return _run_on_processes(arguments)
    if arguments.paced:
        raise UserError("--paced: for real processes; allowed: with --processes N")
    from harness.experiment.grid import Runner, idle_lines, repeat_lines
    from harness.store import Store
    from harness.store.files import writable_folder

    configs, submit = _configs(arguments), argument_types.submission_of(arguments)
    store = Store(writable_folder(arguments.out, "--out"))
    for line in repeat_lines(configs.values()):
        say(line)
    with Runner(store, arguments.jobs, submit) as runner:
        found = runner.run(configs)
    for name, each in found.items():
        if len(found) > 1:
            print(f"{name.partition(', ')[2]}:")
        print(*each.lines(), sep="\n")
    for name, each in found.items():
        if each.status == "done":
            print(_describe_end(name, configs[name], each))
    for line in idle_lines(found.values()):
        say(line)
    lost = {name: each for name, each in found.items() if each.status != "done"}
    for name, each in lost.items():
        say(each.ending(name))
    return EXIT_RUN_FAILED if lost else EXIT_DONE


def _describe_end(name: str, config: TaskConfig, run: Run) -> str:
    """The answer of a run in a line: its error, passes, simulated time and folder."""
    from harness.base.settings import format_count, format_seconds

    summary = run.summary
    error = config.show(float(summary[run.deployed(config.judged)]))
    after = [format_count(summary["passes"], "pass")] if "passes" in summary else []
    if "virtual_s" in summary:
        seconds = float(f"{summary['virtual_s']:.3g}")
        after.append(f"{format_seconds(seconds)} of simulated time")
    told = f" after {', '.join(after)}" if after else ""
    return f"{name}: {config.metric} {error}{told}; stored in {run.dir}"


def _run_on_processes(arguments: argparse.Namespace) -> int:
    """Run the file on real processes by `harness.train`, with the options that both have.

    Raises:
        UserError: an option for several runs.
    """
    from harness import train

    several = (
        arguments.workers
        or arguments.changes
        or arguments.algorithm
        or (arguments.seeds, arguments.jobs) != (1, 1)
    )
    if several or arguments.submit:
        told = (
            "one run of the file as it is, without --algorithm, --workers, --seeds, --set, --jobs,"
            " --submit"
        )
        raise UserError(f"--processes {arguments.processes}: allowed: {told}")
    words = [str(arguments.file), "--processes", str(arguments.processes)]
    words += ["--out", str(arguments.out)]
    words += [] if arguments.seed is None else ["--seed", str(arguments.seed)]
    # "auto" is this command's default; harness.train has its own, by the backend.
    words += [] if arguments.device == "auto" else ["--device", arguments.device]
    words += ["--paced"] if arguments.paced else []
    return train.main(words)


def _configs(arguments: argparse.Namespace) -> dict[str, TaskConfig]:
    """Every number of workers with every seed, by name of the run."""
    from dataclasses import replace

    from harness.experiment.device import resolve
    from harness.experiment.run_file import load_run

    path, seed = arguments.file, arguments.seed
    device, changes = resolve(arguments.device), overrides.changes(arguments.changes)
    base: Any = load_run(path, seed=seed, device=device, progress=say, changes=changes)
    if arguments.algorithm is not None:
        if not hasattr(base, "with_algorithm"):
            raise UserError(f"--algorithm: not for {path}; allowed: without it")
        (method,) = overrides.named_methods([arguments.algorithm], base)
        base = base.with_algorithm(method.algorithm, method.protocol)
    seeds = range(base.seed, base.seed + arguments.seeds)
    if not (counts := arguments.workers):
        return {f"{path.stem}, seed {seed}": replace(base, seed=seed) for seed in seeds}
    return {
        f"{path.stem}, {count} worker{'' if count == 1 else 's'}, seed {seed}": replace(
            base.with_cluster(count=count), seed=seed
        )
        for count in counts
        for seed in seeds
    }
