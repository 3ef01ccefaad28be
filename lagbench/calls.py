"""Calls of `import lagbench`; each ends by a result, or by one line that says what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from torch import nn

from harness.base.errors import (
    RAISED,
    ProcessDied,
    UserError,
    describe_failure,
    is_interrupt,
    rename,
)
from harness.base.log import LOG
from harness.base.reads import Reads, describe_idle, watch
from harness.experiment.methods import Asked, method_of, protocol_of, several
from harness.experiment.run import Runner, cluster_remarks, idle_lines
from harness.experiment.task import Task
from harness.judge.comparison import build_table
from harness.modules import trained
from harness.modules.call import Call, Model, cluster_of
from harness.modules.network import AskedLoss
from harness.modules.settings import (
    USUAL,
    check_kind,
    check_number,
    check_whole,
    counts_of,
    pair_of,
    seeds_of,
)
from harness.search.advice import expand, worker_counts
from harness.search.break_search import Search, ToleranceSearch
from harness.search.comparison import Grid, Rates
from harness.search.knobs import knob_of
from harness.simulator.cluster import Cluster, Workload, load_bundled
from harness.simulator.protocols.contract import TimingProtocol
from harness.simulator.simulation import Simulation, describe_doubts
from harness.simulator.timeline import Timeline
from harness.store import DEFAULT_STORE, Run, Store
from harness.store.files import writable_folder
from harness.store.read import is_run
from lagbench.advised import Advice
from lagbench.result import Result, Tolerated

if TYPE_CHECKING:
    from lagbench.rollout_result import RolloutResult

Given = ParamSpec("Given")
Found = TypeVar("Found")


def resumable(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """Decorate a function: an end from outside has a traceback that ends at the user's call.

    The hundred lines inside lagbench are dropped; the user's code can still catch the error.

    Raises:
        UserError: in place of `ProcessDied` and of errors that the user's code raises, with the
            function and its line; or a name that no argument has.
    """
    signed = signature(function)
    if "settings" in signed.parameters:  # which help and completion name one by one
        parts = [part for part in signed.parameters.values() if part.name != "settings"]
        parts += [Parameter(k, Parameter.KEYWORD_ONLY, default=v) for k, v in USUAL.items()]
        signed = signed.replace(parameters=parts)
    is_closed = "further" not in signed.parameters

    @wraps(function)
    def call(*positional: Given.args, **keywords: Given.kwargs) -> Found:
        given: dict[str, Any] = dict(keywords)
        if is_closed and not given.keys() <= signed.parameters.keys():
            given = rename(function.__name__, keywords, signed.parameters)
        if "seed" in keywords.keys() - given.keys():  # that one, where seeds=3 are three
            given["seeds"] = [keywords["seed"]]
        if "algorithms" in keywords.keys() - given.keys() and isinstance(given["algorithm"], list):
            (given["algorithm"],) = given["algorithm"]
        plain: dict[str, Any] = {name: _plain(name, value) for name, value in given.items()}
        settings: dict[str, Any] = {**USUAL, **given}
        where = f"runs are in {str(settings['store'])!r}, the same call resumes"
        hint = f"{where} if the model begins with the same weights (torch.manual_seed)"
        try:
            return function(*positional, **plain)
        except ProcessDied as died:
            raise UserError(f"{died}; {hint}") from None
        except UserError as error:
            raise error.with_traceback(None) from None
        except (KeyboardInterrupt, *RAISED) as error:
            if is_interrupt(error):
                raise KeyboardInterrupt(f"stopped; {hint}") from None
            if (text := describe_failure(error)) is None:
                raise
            raise UserError(text) from error

    vars(call)["__signature__"] = signed
    return call


def _plain(name: str, value: Any) -> Any:
    """A setting with Python's numbers in place of NumPy's, alone or in a list."""
    if name in OBJECTS:
        return value
    if type(value).__module__ == "numpy" and getattr(value, "ndim", 2) < 2:
        return value.tolist()
    if type(value) in (list, tuple):
        return type(value)(_plain("", entry) for entry in value)
    return value


OBJECTS = frozenset(("model", "loss", "data", "dev", "test", "metric"))
"""Arguments that are objects of the user's."""


@resumable
def simulate(
    cluster: Cluster | str | Path,
    workload: Workload | None = None,
    *,
    protocol: TimingProtocol | str = "parameter_server",
    workers: int | None = None,
    folds: int = 1000,
    seed: int = 0,
) -> Timeline:
    """Simulate a cluster's timing without training; returns reads, computations, sends and folds.

    Args:
        cluster: a cluster, its file, or the name of a bundled one.
        workload: operations and bytes of one minibatch; None for the cluster's own.
        protocol: a timing protocol, the name of one or of its class, or an algorithm's (``"ddp"``).
        workers: number of workers; None for all of the cluster.
        folds: number of folds to simulate from the start, when all workers read at once; the
            command ``lagbench simulate`` finds the long run instead, without its start.
        seed: seed of all random durations.

    Raises:
        UserError: a mistake in the cluster, or no workload in it.

    Examples:
        >>> timeline = simulate("k20m-server", workers=4, folds=100)
        >>> len(timeline.folds), float(timeline.staleness()[10:].mean())
        (100, 3.0)
    """
    machine = cluster_of(cluster)
    check_whole("folds", folds)
    check_whole("seed", seed, least=0)
    check_whole("workers", machine.size if workers is None else workers)
    check_kind("workload", workload, (Workload, type(None)), "a lagbench.Workload or None")
    check_kind("protocol", protocol, (TimingProtocol, str), "a protocol or the name of one")
    work = workload or machine.workload
    if work is None:
        mistake = f"none given, and cluster {machine.name!r} has none"
        example = "lagbench.Workload(minibatch_frames=32, flops_per_frame=1e6, parameter_bytes=4e6)"
        raise UserError(f"workload: {mistake}; allowed: one, as {example}")
    rules = protocol_of(protocol) if isinstance(protocol, str) else protocol
    for line in describe_doubts(machine, rules, work, workers or machine.size):
        LOG.info(line)
    reads = Reads(rules), Reads(machine, load_bundled(machine.name))
    with watch(reads[0]), watch(reads[1]):
        timeline = Simulation(machine, rules, work, workers, seed).advance(folds=folds)
    for line in describe_idle([[key for read in reads for key in read.unread()]]):
        LOG.info(line)
    return timeline


@resumable
def train(
    model: Model | Task,
    loss: AskedLoss | None = None,
    data: Any = None,
    *,
    cluster: Cluster | str | Path,
    algorithm: Asked = "async",
    workers: int = 1,
    rate: Rates = None,
    **settings: Any,
) -> Result:
    """Train a module on a simulated cluster, once for each seed.

    Args:
        model: a module, from whose parameters every run starts; a function that makes one for
            each seed; or a `Task`, without loss and data.
        loss: function of outputs and targets, one number a minibatch; learning rates multiply its
            gradient. ``"model"`` is the ``loss`` of the model's outputs.
        data: a pair of arrays, a map-style dataset of pairs, a `DataLoader` of one, or a function
            that returns one of them, with the seed as its argument or without arguments. Several
            inputs come as a tuple, ``model(*x)``, or as a dict, ``model(**x)``.
        cluster: a cluster, its file, or the name of a bundled one.
        algorithm: a name, an `Algorithm`, or a pair (algorithm, protocol), see `compare`.
        workers: number of workers.
        rate: learning rate; several to choose among on development data; None to search it there.
        settings: see `Settings`.

    Raises:
        UserError: a mistake, in one line that says what is allowed.
    """
    check_whole("workers", workers)
    with Call(model, loss, data, cluster, settings) as call:
        grid = call.prepare(call.grid([algorithm], [workers], call.rate_or_own(rate)))
        cells = grid.run(call.runner)
        call.say_idle(cells)
    return Result(build_table(cells, call.settings.target), call.module, call.describe)


@resumable
def compare(
    model: Model | Task,
    loss: AskedLoss | None = None,
    data: Any = None,
    *,
    cluster: Cluster | str | Path,
    algorithms: Sequence[Asked] | Asked = ("async", "sync"),
    workers: Sequence[int] | int = (1, 4, 16),
    rates: Rates = None,
    **settings: Any,
) -> Result:
    """Compare algorithms with several numbers of workers, each at its own learning rate.

    Args:
        model: see `train`.
        loss: see `train`.
        data: see `train`.
        cluster: see `train`.
        algorithms: names: ``"async"``, ``"ddp"`` (or ``"sync"``), ``"backup:1"`` (sync that drops
            the slowest), ``"localsgd:N"`` (or ``"averaging:N"``, ``"fedavg:N"``) with N steps
            between two rounds, ``"diloco:N"``, ``"block-momentum:N"``,
            ``"averaged"``, ``"fedbuff"``, ``"easgd"``, ``"dcasgd"``; or `Algorithm` objects; or
            pairs (algorithm, protocol), as ``("async", lagbench.ParameterServer(bound=4))``.
        workers: numbers of workers, or one.
        rates: None (or ``"sweep"``) searches a learning rate for each algorithm and number of
            workers on development data, with two seeds that are not reported, starting at the guess
            of the linear scaling rule; a list is what it chooses among; a number is used for all;
            a mapping has a number or a list for each algorithm.
        settings: see `Settings`.

    Raises:
        UserError: a mistake, in one line that says what is allowed.
    """
    with Call(model, loss, data, cluster, settings) as call:
        cells = call.prepare(call.grid(algorithms, workers, rates)).run(call.runner)
        call.say_idle(cells)
    table = build_table(cells, call.settings.target, call.impossible)
    return Result(table, call.module, call.describe)


@resumable
def tolerate(
    model: Model | Task,
    loss: AskedLoss | None = None,
    data: Any = None,
    *,
    cluster: Cluster | str | Path,
    algorithm: Asked = "async",
    what: str = "workers",
    between: tuple[float, float] | None = None,
    workers: int = 4,
    margin: float = 0.01,
    halvings: int = 6,
    rate: Rates = None,
    **settings: Any,
) -> Tolerated:
    """Find the number of workers, staleness, delay or message loss at which training breaks.

    Args:
        model: see `train`.
        loss: see `train`.
        data: see `train`.
        cluster: see `train`.
        algorithm: see `train`.
        what: ``"workers"``, ``"staleness"`` (exactly this number of folds, with equal workers),
            ``"delay"`` (seconds added to every message) or ``"loss"`` (the share of messages that
            are lost).
        between: reference value, and the largest value that is tried; None for (1, 64) workers,
            (0, 64) folds, (0, 1) seconds or a loss of (0, 0.5).
        workers: number of workers, unless ``what`` sets it.
        margin: relative increase of the error over the reference's that counts as broken.
        halvings: halvings of the distance between the logarithms, at most.
        rate: learning rate for all values; several, or None, to search one for each.
        settings: see `Settings`.

    Raises:
        UserError: a mistake, in one line that says what is allowed; or training diverged at the
            reference value.
    """
    check_kind("what", what, str, "'workers', 'staleness', 'delay' or 'loss'")
    check_whole("workers", workers)
    check_whole("halvings", halvings, least=0)
    check_number("margin", margin)
    knob, method = knob_of(what), method_of(algorithm)
    ends = pair_of("between", between or knob.usual)
    search = Search(knob.name, knob.axis, knob.whole, ends, margin, halvings)
    knob.check(method.algorithm)
    with Call(model, loss, data, cluster, settings) as call:

        def turn(value: float) -> tuple[Call, int]:
            machine, count = knob.apply(call.machine, workers, value)
            return call.with_cluster(machine), count

        # Both ends are configured before any run, so that a mistake is reported before training.
        least, most = (end.first(method, count) for end, count in map(turn, search.between))
        knob.check_reach(least, most)
        for line in cluster_remarks([least, most]):
            call.say(line)

        fixed = call.rate_or_own(rate)

        def grid_at(value: float) -> Grid:
            turned, count = turn(value)
            return turned.prepare(turned.grid([method], [count], fixed))

        result = Tolerated(ToleranceSearch(search, grid_at, call.runner).find())
        for line in [f"no effect: {knob.idle}"] if knob.idle else idle_lines(result.runs):
            call.say(line)
        return result


@resumable
def rollouts(
    policy: Any,
    problems: Any = "addition",
    reward: Callable[[list[int], list[int]], float] | None = None,
    *,
    cluster: Cluster | str | Path,
    protocol: TimingProtocol | None = None,
    sampler: Callable[..., Any] | None = None,
    test: Any = None,
    context: int | None = None,
    seeds: int | Sequence[int] = 3,
    store: str | Path = DEFAULT_STORE,
    **further: Any,
) -> RolloutResult:
    """Train a policy by rollouts on a simulated cluster of generators and a trainer.

    Every token is sampled with exactly the version of the weights that its generator has at that
    simulated instant.

    Args:
        policy: a causal `torch.nn.Module` from tokens ``[B, T]`` to logits ``[B, T, V]``; a
            function that makes one; or a `harness.rollouts.sources.SmallTransformer`.
        problems: prompts, each a list of tokens; or ``"addition"``, ``"reaching"``, ``"sorting"``.
        reward: function ``reward(prompt, answer)`` of lists of tokens, one finite number.
        cluster: a cluster, its file, or the name of a bundled one; its workers are generators.
        protocol: a `harness.rollouts.protocol.Rollouts`; None for its defaults.
        sampler: function ``sampler(policy, prefixes, draws)`` that answers prompts, see
            `harness.rollouts.sampling.Sampler`; None for ours. Token 0 ends an answer.
        test: prompts of the evaluation; None for a fifth of ``problems``, drawn at random.
        context: largest number of tokens of prompt and answer, for prompts of your own; None for
            64.
        seeds: number of seeds, or a list of them.
        store: folder of the store.
        further: ``rate``, ``optimizer``, ``workers``, ``evaluations``, and further fields of
            `harness.rollouts.task.Policy`, such as ``loss`` and ``updates``.

    Raises:
        UserError: a mistake, in one line that says what is allowed.
    """
    # when needed: a program that trains no policy does without a dozen modules
    from harness.rollouts.task import configure
    from lagbench.rollout_result import RolloutResult

    choices = policy, sampler, problems, reward, test, context
    config = configure(*choices, cluster_of(cluster), protocol, further)
    configs = {seed: replace(config, seed=seed) for seed in seeds_of(seeds)}
    folder = writable_folder(Path(store), "store")
    with Runner(Store(folder), 1, keeps_faults=False) as runner:
        runs = runner.run(configs, lambda seed: f"rollouts, seed {seed}")
    return RolloutResult(list(runs.values()), config)


def load_into(module: nn.Module, run: Run | str | Path, worker: int = 0) -> nn.Module:
    """Copy the trained parameters and buffers of a stored run into a module of the same kind.

    Args:
        module: a module as it was trained: the same parameters require a gradient.
        run: the run, or see `load`.
        worker: whose buffers, if each worker has its own (``buffers="local"``).

    Returns:
        The module.

    Raises:
        UserError: there is no such run, or it is of another module.
    """
    return trained.load_into(module, run if isinstance(run, Run) else load(run), worker)


@resumable
def advise(
    model: Model | Task,
    loss: AskedLoss | None = None,
    data: Any = None,
    *,
    cluster: Cluster | str | Path,
    algorithms: Sequence[Asked] | Asked = ("async", "sync", "averaging"),
    workers: Sequence[int] | int | None = None,
    intervals: Sequence[int] = (4, 16, 64),
    trainings: float | None = None,
    **settings: Any,
) -> Advice:
    """Advise on the algorithm and number of workers that reach a target error first.

    A search by successive halving, fixed beforehand: all candidates are simulated, many are trained
    briefly, few in full.

    Args:
        model: see `train`.
        loss: see `train`.
        data: see `train`.
        cluster: see `train`.
        algorithms: names or `Algorithm` objects; ``"averaging"``, ``"block-momentum"`` and
            ``"diloco"`` are tried with all ``intervals``.
        workers: numbers of workers to try beside 1; None for powers of 2 up to the cluster's size.
        intervals: minibatches of a worker between two rounds.
        trainings: about how many trainings of full length (all ``passes``) the search may cost; of
            few it leaves out the candidates with the slowest simulated minibatches.
        settings: see `Settings`; without ``target`` it is 95% of the improvement of one worker.

    Raises:
        UserError: a mistake, in one line that says what is allowed.
    """
    if trainings is not None:
        check_number("trainings", trainings)
    with Call(model, loss, data, cluster, settings) as call:
        counts = worker_counts(call.machine.size, counts_of(workers or ()))
        grid = call.grid([*expand(several(algorithms), intervals)], counts, None)
        return Advice(call.advise(grid, trainings))


def load(run: str | Path, store: str | Path = USUAL["store"]) -> Run:
    """Load a stored run: ``status``, ``summary``, ``curve(metric)``, ``timeline``, ``path(file)``.

    Args:
        run: the run's folder in a store; or its hash, or the beginning of it.
        store: the store of a hash; that of calls without a ``store``, if not given.

    Raises:
        UserError: there is no such run.
    """
    allowed = "the folder of a run in a store, or its hash"
    check_kind("run", run, (str, Path), allowed)
    folder = Path(run)
    if folder.name == str(run) and not folder.exists():
        return Store(store).load(folder.name)
    if folder.exists() and not is_run(folder):
        raise UserError(f"run: {str(run)!r} is no run; allowed: {allowed}")
    return Store(folder.resolve().parent).load(folder.resolve().name)
