"""What commands share that run a file in several ways: its methods, its grid, and the answer."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from harness import argument_types
from harness.base.errors import EXIT_DONE
from harness.base.log import say

if TYPE_CHECKING:
    from harness.experiment.experiment import AnyExperiment
    from harness.experiment.methods import Method
    from harness.experiment.run import Runner
    from harness.search.comparison import Grid
    from harness.store import Run
    from reports.answers import Answer


def open_runner(arguments: argparse.Namespace, configs: Iterable[AnyExperiment]) -> Runner:
    """What executes runs and keeps them in the folder of the outputs.

    Args:
        arguments: options of `argument_types.add_execution`.
        configs: configurations at which some of the runs are known beforehand.

    Raises:
        UserError: the folder cannot be written, or an unknown job backend.
    """
    from harness.experiment.run import Runner, cluster_remarks
    from harness.store import Store
    from harness.store.files import writable_folder

    store = Store(writable_folder(arguments.out, "--out") / "runs")
    submission = argument_types.submission_of(arguments)
    for line in cluster_remarks(configs):
        say(line)
    return Runner(store, arguments.jobs, submission)


def finish(
    arguments: argparse.Namespace, answer: Answer, runs: Iterable[Run], idle: str = ""
) -> int:
    """Write and print an answer, and tell which settings of its runs had no effect.

    Args:
        arguments: options of `argument_types.add_execution`.
        answer: what the command has found.
        runs: all runs that it is found from.
        idle: a setting without effect; empty for those that no run has read.
    """
    from harness.experiment.run import idle_lines

    for line in [f"no effect: {idle}"] if idle else idle_lines(runs):
        say(line)
    answer.write(arguments.out)
    print(answer, arguments.out / "index.html", sep="\n")
    return EXIT_DONE


def base_of(arguments: argparse.Namespace) -> tuple[AnyExperiment, Method]:
    """The run file's configuration with changes, and its algorithm with its protocol.

    Raises:
        UserError: a mistake in the file or an option.
    """
    from harness.experiment.methods import Method
    from harness.experiment.run_file import load_folds

    base: AnyExperiment = load_folds(arguments.file, changes=arguments.changes)
    return base, Method(type(base.algorithm).__name__, base.algorithm, base.timed)


def find_methods(
    arguments: argparse.Namespace, words: Sequence[str], base: AnyExperiment
) -> list[Method]:
    """Methods by name, with the file's protocol if it hands out data in the same way as theirs.

    Other methods keep their own protocol; a line on stderr names them, if the file has a protocol
    beside its algorithm's, and not a default one.

    Args:
        arguments: options, with ``file`` and ``changes``.
        words: the names.
        base: configuration of the run file.

    Raises:
        UserError: an unknown name.
    """
    from dataclasses import replace

    from harness.experiment.experiment import usual_protocol
    from harness.experiment.methods import Method, method_of
    from harness.experiment.run_file import has_table
    from harness.simulator.protocols.averaging import Averaging
    from harness.simulator.protocols.contract import TimingProtocol
    from harness.simulator.protocols.parameter_server import ParameterServer

    def way(protocol: TimingProtocol) -> object:
        handing = protocol.handing(base.workers)
        return handing and handing._replace(under_way=0)  # when they are folded, not what they are

    file = base.protocol if has_table(arguments.file, "protocol", arguments.changes) else None
    is_usual = file in (None, ParameterServer(), Averaging())
    methods = [method_of(word, needs_steps=is_usual) for word in words]
    if file is None or is_usual:
        return methods
    labels = [method.label for method in methods if way(method.protocol) != way(file)]
    if labels:
        on = "" if len(labels) == len(methods) else f" on {', '.join(labels)}"
        say(f"no effect{on}: protocol (data are handed out in another way)")
    usual, chosen = usual_protocol(base.algorithm), list[Method]()
    for method in methods:
        protocol, implied = method.protocol if method.label in labels else file, None
        if isinstance(usual, Averaging):
            implied = usual.collective  # which the file has for its own algorithm's coder
        if isinstance(protocol, Averaging) and protocol.collective == implied:
            protocol = replace(protocol, collective=cast(Any, method.protocol).collective)
        chosen.append(replace(method, protocol=protocol))
    return chosen


def grid_of(
    arguments: argparse.Namespace,
    base: AnyExperiment,
    methods: Sequence[Method],
    workers: Sequence[int] = (),
) -> Grid:
    """The grid of methods and numbers of workers, with a run file's other settings.

    Args:
        arguments: options, with ``seeds`` and ``rates``.
        base: configuration of the run file.
        methods: methods that replace its algorithm and protocol.
        workers: numbers of workers; empty for the file's.
    """
    from dataclasses import replace

    from harness.search.comparison import Grid

    def build_config(method: Method, workers: int, rate: float, seed: int) -> AnyExperiment:
        trained = base.vary(algorithm=method.algorithm, protocol=method.protocol)
        return replace(trained.with_rate(rate), workers=workers, seed=seed)

    seeds = range(base.seed, base.seed + arguments.seeds)
    rates = base.schedule.rate if arguments.rates == "file" else arguments.rates
    return Grid(build_config, methods, workers or [base.workers], seeds, base.schedule.rate, rates)
