"""`lagbench train`: train the runs of a file, in the order of their simulated cluster."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from harness import argument_types
from harness.base.errors import EXIT_DONE, EXIT_RUN_FAILED, UserError
from harness.base.log import say
from harness.base.settings import check_device, format_count, format_seconds

if TYPE_CHECKING:
    from harness.experiment.experiment import AnyExperiment
    from harness.store import Run


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    argument_types.add_run(parser)
    parser.add_argument(
        "--algorithm", help="replaces the run file's, e.g. async or averaging:10, with its protocol"
    )
    argument_types.add_workers(parser)
    argument_types.add_changes(parser, seeds=1)
    parser.add_argument(
        "--device", type=check_device, default="auto", help="auto (default), cpu or cuda"
    )
    parser.add_argument(
        "--jobs",
        type=argument_types.count,
        default=1,
        help="number of processes, with several runs (1)",
    )
    argument_types.add_carriers(parser)


def run(arguments: argparse.Namespace) -> int:
    """Train to the end, resuming from checkpoints, and print the measurements."""
    if arguments.processes is not None:
        return _run_on_processes(arguments)
    if arguments.paced:
        raise UserError("--paced: for real processes; allowed: with --processes N")
    from harness.experiment.run import Runner, cluster_remarks, idle_lines
    from harness.store import Store
    from harness.store.files import writable_folder

    configs, submit = _configs(arguments), argument_types.submission_of(arguments)
    store = Store(writable_folder(arguments.out, "--out"))
    for line in cluster_remarks(configs.values()):
        say(line)
    with Runner(store, arguments.jobs, submit) as runner:
        runs = runner.run(configs)
    for name, stored in runs.items():
        if len(runs) > 1:
            print(f"{name.partition(', ')[2]}:")
        print(*stored.lines(), sep="\n")
    for name, stored in runs.items():
        if stored.status == "done":
            print(_describe_end(name, configs[name], stored))
    for line in idle_lines(runs.values()):
        say(line)
    lost = {name: stored for name, stored in runs.items() if stored.status != "done"}
    for name, stored in lost.items():
        say(stored.ending(name))
    return EXIT_RUN_FAILED if lost else EXIT_DONE


def _describe_end(name: str, config: AnyExperiment, run: Run) -> str:
    """The answer of a run in a line: its error, passes, simulated time and folder."""
    summary = run.summary
    error = config.show(float(summary[run.deployed(config.judged)]))
    after = [format_count(summary["passes"], "pass")] if "passes" in summary else []
    if "virtual_s" in summary:
        seconds = float(f"{summary['virtual_s']:.3g}")
        after.append(f"{format_seconds(seconds)} of simulated time")
    text = f" after {', '.join(after)}" if after else ""
    return f"{name}: {config.metric} {error}{text}; stored in {run.dir}"


def _run_on_processes(arguments: argparse.Namespace) -> int:
    """Run the file on real processes by `harness.train`, with the options that both have.

    Raises:
        UserError: an option for several runs.
    """
    from harness import train

    names = ("algorithm", "workers", "seeds", "changes", "jobs", "submit")
    if any(getattr(arguments, name) not in (None, (), [], 1) for name in names):
        without = "--algorithm, --workers, --seeds, --set, --jobs, --submit"
        allowed = f"one run of the file as it is, without {without}"
        raise UserError(f"--processes {arguments.processes}: allowed: {allowed}")
    # "auto" is this command's default; real processes have their own.
    device = None if arguments.device == "auto" else arguments.device
    names = ("file", "seed", "out", "paced", "processes")
    options = {name: getattr(arguments, name) for name in names}
    return train.run(argparse.Namespace(**options, device=device, restarts=0))


def _configs(arguments: argparse.Namespace) -> dict[str, AnyExperiment]:
    """Every number of workers with every seed, by name of the run."""
    from dataclasses import replace

    from harness.experiment.run import resolve
    from harness.experiment.run_file import load_run

    path, seed, device = arguments.file, arguments.seed, resolve(arguments.device)
    base = load_run(path, seed=seed, device=device, progress=say, changes=arguments.changes)
    if arguments.algorithm is not None:
        from harness.commands import overrides

        (method,) = overrides.find_methods(arguments, [arguments.algorithm], base)
        base = base.vary(algorithm=method.algorithm, protocol=method.protocol)
    bases = {
        f"{path.stem}, {format_count(count, 'worker')}": base.vary(workers=count)
        for count in arguments.workers
    }
    return {
        f"{name}, seed {seed}": replace(config, seed=seed)
        for name, config in (bases or {path.stem: base}).items()
        for seed in range(base.seed, base.seed + arguments.seeds)
    }
