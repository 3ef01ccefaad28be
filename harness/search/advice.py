"""Search for the algorithm and number of workers that reach a target error first.

A candidate is an algorithm, with its interval between rounds, and a number of workers. The search
is successive halving (Jamieson and Talwalkar, 2016) over candidates: short trainings of many, then
longer ones of those that were fastest. Candidates are ranked by simulated seconds, which are exact,
until an error that one worker has after a third of the training's length, so that a candidate may
need three times as many passes as one worker and still be ranked by what it reached. A candidate
that would be slower than the best one so far even if it needed half of the passes that one worker
needs is passed over without training.

All of this is fixed in a `Plan` before the first training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from harness.base.errors import UserError
from harness.base.log import LOG
from harness.base.registry import resolve_algorithm
from harness.base.settings import format_count
from harness.experiment.display import Tally
from harness.experiment.experiment import AnyExperiment
from harness.experiment.methods import Method
from harness.experiment.run import Runner
from harness.judge.comparison import IMPROVEMENT, Impossible, reach
from harness.judge.direction import as_error, final_error
from harness.search.comparison import SEARCHES, Grid, Try, follow, scale_linearly
from harness.search.rates import MOST_TRAININGS, TUNING_SEEDS, search_rate
from harness.search.search import FACTOR, Steps, climb, drive, lowest, translate
from harness.store import Cell, Run

KEPT = 3
"""One in so many candidates is kept after each rung, whose trainings are so many times shorter."""

FINALISTS = 2
"""Least number of candidates that are trained in full."""

ALLOWED_PASSES = 3.0
"""A candidate is ranked by an error that one worker reaches in this many times fewer passes."""

LEAST_PASSES = 0.5
"""Least share of one worker's passes that a candidate is believed to need."""

MOST_RATES = 8
"""Largest number of rates of a candidate in a rung."""

USUAL_RATES, USUAL_SEARCH = 3.5, SEARCHES[1]
"""Trainings that a candidate mostly takes: in a rung, and in a search with both tuning seeds."""


@dataclass(frozen=True)
class Candidate:
    """An algorithm with a number of workers.

    Attributes:
        method: the algorithm and its protocol.
        workers: number of workers.
        step_s: simulated seconds of a minibatch, of all workers together.
    """

    method: Method
    workers: int
    step_s: float

    @property
    def name(self) -> str:
        """Label and number of workers."""
        return f"{self.method.label}, {self.workers} worker{'' if self.workers == 1 else 's'}"


@dataclass(frozen=True)
class Plan:
    """All that a search decides by, fixed before its first training.

    Attributes:
        reference: one worker, which the others are compared with: of an algorithm without an
            interval if there is one, else with the smallest.
        candidates: the others, the fastest simulated one first.
        passes: passes over the data in each rung, the last one in full.
        target: value of the metric to be reached; None for one from the reference.
        seeds: seeds of the trainings that are reported.
        impossible: candidates that cannot be trained, or are beyond the budget.
    """

    reference: Candidate
    candidates: tuple[Candidate, ...]
    passes: tuple[int, ...]
    target: float | None
    seeds: tuple[int, ...]
    impossible: Sequence[Impossible] = ()

    def count_kept(self, rung: int) -> int:
        """Number of candidates that a rung leaves."""
        return max(FINALISTS, math.ceil(len(self.candidates) / KEPT ** (rung + 1)))

    def count_trainings(self, search: int = MOST_TRAININGS, rates: float = MOST_RATES) -> int:
        """The number of trainings: of one worker, in the rungs, in full.

        Args:
            search: number of trainings of a search with both tuning seeds.
            rates: number of rates of a candidate in a rung.
        """
        # Without a target one worker's rate is searched twice: by the end, then by the time.
        searches = 1 if self.target is not None else 2
        trainings, count = search * searches + len(self.seeds), len(self.candidates)
        for rung in range(len(self.passes) - 1):
            trainings += rates * count
            count = min(count, self.count_kept(rung))
        return round(trainings + (search + len(self.seeds)) * count)


def worker_counts(machines: int, asked: Sequence[int] = ()) -> list[int]:
    """Numbers of workers to try: 1, and those asked for or powers of 2 up to the machines.

    Args:
        machines: size of the cluster.
        asked: numbers to try; empty for the usual ones.

    Example:
        >>> worker_counts(12), worker_counts(12, [3])
        ([1, 2, 4, 8, 12], [1, 3])
    """
    usual = sorted({*(2**k for k in range(1, machines.bit_length())), machines})
    return [1, *(count for count in asked or usual if count != 1)]


@dataclass(frozen=True)
class Trial:
    """The last that was tried of a candidate.

    Attributes:
        candidate: the candidate.
        passes: passes of its longest training; 0 if it was not trained.
        rate: its best rate there; NaN if it was not trained.
        seconds: simulated seconds to the error of that rung, extrapolated if it was not reached.
        fate: whether and why it was left, in a few words.
    """

    candidate: Candidate
    passes: int
    rate: float
    seconds: float
    fate: str


@dataclass(frozen=True)
class AdviceOutcome:
    """Result of a search.

    Attributes:
        plan: what was fixed beforehand.
        target: value of the metric to be reached.
        reason: its origin.
        cells: the finished runs of one worker, then of the candidates that were trained in full.
        trials: all candidates, in the order of the plan.
        trainings: number of trainings, those that were in the store included.
        cost: their passes, in trainings of full length.
    """

    plan: Plan
    target: float
    reason: str
    cells: Sequence[Cell]
    trials: Sequence[Trial]
    trainings: int
    cost: float


def seconds_to(run: Run, judged: str, error: float) -> float:
    """Simulated seconds until a run has an error; an optimistic estimate if it ends before.

    A run that ends above the error is taken to go on at its mean pace, though learning slows.

    Args:
        run: a finished run.
        judged: name of the metric, without a candidate's.
        error: the error, of which less is better.

    Returns:
        The seconds; infinite if the run has no error at its end (`final_error`) or learned nothing.
    """
    if math.isinf(final_error(run, judged)):
        return math.inf
    seconds = reach(run, judged, as_error(run, error)).seconds
    if math.isfinite(seconds):
        return seconds
    _, values, times = run.curve(run.deployed(judged))
    errors = as_error(run, 1.0) * values[np.isfinite(values)]
    progress = float((errors[0] - errors.min()) / (errors[0] - error))
    return float(times[-1]) / progress if progress > 0.0 else math.inf


def simulate_step_s(config: AnyExperiment) -> float:
    """Simulated seconds of a minibatch, once the cluster's pipeline is full.

    Args:
        config: configuration of a run.
    """
    folds = 100 if config.rounds else 100 * config.workers
    timeline = config.new_simulation(config.timed).advance(folds=folds)
    begun_s, ended_s = (float(timeline.folds.time_s[at]) for at in (folds // 2 - 1, -1))
    # Equal workers fold at one instant: of such folds all count, or none.
    later = timeline.contributions.fold >= np.searchsorted(timeline.folds.time_s, begun_s, "right")
    return (ended_s - begun_s) / float(timeline.contributions.steps[later].sum())


def make_plan(grid: Grid, target: float | None, trainings: float | None) -> Plan:
    """Simulate all candidates and fix the search.

    Args:
        grid: methods, numbers of workers with 1 among them, reported seeds and the first rate.
        target: value of the metric to be reached; None for one from the reference.
        trainings: about how many of full length the search may cost; None for no limit.

    Raises:
        UserError: there are no candidates.
    """
    candidates: list[Candidate] = []
    full = 1
    for method, workers in grid.pairs:
        config = grid.configure(method, workers, grid.guess, grid.seeds[0])
        candidates.append(Candidate(method, workers, simulate_step_s(config)))
        full = config.passes
    alone = [team for team in candidates if team.workers == 1]
    teams = sorted((team for team in candidates if team.workers > 1), key=lambda team: team.step_s)
    if not (alone and teams):
        lack = "no candidate with 1 worker and one with more that can be trained"
        raise UserError(f"advise: {lack}; allowed: workers above 1")
    rungs = sorted({math.ceil(full / KEPT**k) for k in range(3)})
    most = len(teams)
    if trainings is not None:
        most = _affordable(rungs, len(grid.seeds), trainings)
    head = f"left out for trainings={trainings}"
    beyond = [Impossible(c.method.label, c.workers, "", head) for c in teams[most:]]
    return Plan(
        min(alone, key=lambda team: (_interval(team), team.step_s, team.name)),
        tuple(teams[:most]),
        tuple(rungs),
        target,
        tuple(grid.seeds),
        [*grid.impossible, *beyond],
    )


def _interval(team: Candidate) -> int:
    """Minibatches of a contribution of one worker; 1 for algorithms without an interval."""
    handing = team.method.protocol.handing(1)
    return 1 if handing is None else handing.own or handing.a_fold


def _affordable(rungs: Sequence[int], seeds: int, trainings: float) -> int:
    """Number of candidates, the fastest first, that so many trainings mostly pay for."""
    full = rungs[-1]
    finals = (1 + FINALISTS) * (USUAL_SEARCH + seeds)
    trial = sum(USUAL_RATES * passes / full / KEPT**k for k, passes in enumerate(rungs[:-1]))
    least = math.ceil(finals + FINALISTS * trial)
    if trainings < least:
        few = format_count(FINALISTS, "candidate")
        text = f"trainings: {trainings:g} are too few: one worker and {few}, the fewest, are kept"
        LOG.info(f"{text}, about {least} trainings; fewer passes or seeds make them cheaper")
    return max(FINALISTS, int((trainings - finals) / trial)) if trial else FINALISTS


@dataclass
class AdviceSearch:
    """Runs a plan.

    Args:
        plan: the plan.
        grid: the grid that it was made from.
        runner: executes runs that its store lacks.
    """

    plan: Plan
    grid: Grid
    runner: Runner
    _passes: dict[str, int] = field(default_factory=dict[str, int], init=False)
    _trials: dict[str, Trial] = field(default_factory=dict[str, Trial], init=False)

    def __post_init__(self) -> None:
        most = self.plan.count_trainings()
        self._tally = Tally(most, self.plan.count_trainings(USUAL_SEARCH, USUAL_RATES))

    def run(self) -> AdviceOutcome:
        """Search; a line says beforehand how many trainings there can be."""
        plan, full = self.plan, self.plan.passes[-1]
        candidates = format_count(1 + len(plan.candidates), "candidate")
        LOG.info(
            f"advise: {candidates}, at most {self._tally.most} trainings, mostly about"
            f" {self._tally.usual}; those in the store are not trained again"
        )
        target, reason, alone, tuned = self._train_reference()
        error = as_error(alone.runs[0], target)
        rates = {
            team.name: scale_linearly(alone.rate, team.method.algorithm, 1, team.workers)
            for team in plan.candidates
        }
        teams = list(plan.candidates)
        for rung, passes in enumerate(plan.passes[:-1]):
            level = max(error, _level(tuned, alone.judged, passes / ALLOWED_PASSES))
            teams = self._race(teams, passes, level, tuned, rates)[: plan.count_kept(rung)]
        cells = self._follow(
            {team: self._train(team, full, error, rates[team.name]) for team in teams}
        )
        for team, cell in cells.items():
            mean = float(np.mean([seconds_to(run, cell.judged, error) for run in cell.runs]))
            self._trials[team.name] = Trial(team, full, cell.rate, mean, "trained in full")
        trials = [self._trials[team.name] for team in plan.candidates]
        cost = sum(self._passes.values()) / full
        trained = [alone, *cells.values()]
        return AdviceOutcome(plan, target, reason, trained, trials, len(self._passes), cost)

    def _follow(self, searches: Mapping[Any, Steps[Try, Run, Any]]) -> dict[Any, Any]:
        """Advance searches together and count their trainings."""

        def answer(tries: list[tuple[Any, Try]]) -> list[Run]:
            configs = dict(attempt for _, attempt in tries)
            runs = self.runner.run(configs, tally=self._tally)
            for name, run in runs.items():
                self._passes[run.hash] = configs[name].passes
            return [runs[name] for _, (name, _) in tries]

        return drive(follow({**searches}), answer)

    def _configure(
        self, candidate: Candidate, rate: float, seed: int, passes: int
    ) -> AnyExperiment:
        config = self.grid.configure(candidate.method, candidate.workers, rate, seed)
        return config if config.passes == passes else replace(config, passes=passes)

    def _train_reference(self) -> tuple[float, str, Cell, Run]:
        """One worker: the target with its origin, its cell, and its run with a tuning seed."""
        alone, full, guess = self.plan.reference, self.plan.passes[-1], self.grid.guess
        target, reason = self.plan.target, "given"
        if target is None:
            search = self._follow({alone: self._search_rate(alone, full, None, guess)})[alone]
            guess = search.rate
            run = self._tuning_run(alone, guess, full)
            target = _default_target(run, self._metric_of(alone))
            reason = f"{IMPROVEMENT:.0%} of the improvement of 1 worker"
        start = self._tuning_run(alone, guess, full)
        error = as_error(start, target)
        _refuse_met_target(start, self._metric_of(alone), target)
        cell = self._follow({alone: self._train(alone, full, error, guess)})[alone]
        return target, reason, cell, self._tuning_run(alone, cell.rate, full)

    def _metric_of(self, candidate: Candidate) -> str:
        return self._configure(candidate, self.grid.guess, TUNING_SEEDS[0], 1).judged

    def _tuning_run(self, candidate: Candidate, rate: float, passes: int) -> Run:
        """The run of a candidate with the first tuning seed."""

        def once() -> Steps[Try, Run, Run]:
            (run,) = yield [self._try(candidate, rate, TUNING_SEEDS[0], passes)]
            return run

        return self._follow({candidate: once()})[candidate]

    def _try(self, candidate: Candidate, rate: float, seed: int, passes: int) -> Try:
        name = f"{candidate.name}, {format_count(passes, 'pass')}, rate {rate:.3g}, seed {seed}"
        return name, self._configure(candidate, rate, seed, passes)

    def _search_rate(
        self, candidate: Candidate, passes: int, error: float | None, guess: float
    ) -> Steps[Try, Run, Any]:
        """Search a rate with both tuning seeds, by seconds to an error or by the final error."""
        judged = self._metric_of(candidate)

        def judge(run: Run) -> float:
            return final_error(run, judged) if error is None else seconds_to(run, judged, error)

        def ask(pair: tuple[float, int]) -> Try:
            return self._try(candidate, *pair, passes)

        return translate(search_rate(guess), ask, judge)

    def _train(
        self, candidate: Candidate, passes: int, error: float, guess: float
    ) -> Steps[Try, Run, Cell]:
        """Search a rate by seconds to an error, then train with the reported seeds."""
        search = yield from self._search_rate(candidate, passes, error, guess)
        tries = [self._try(candidate, search.rate, seed, passes) for seed in self.plan.seeds]
        runs = yield tries
        config = tries[0][1]
        return Cell(
            candidate.method.label, candidate.workers, search.rate, tuple(runs), config.judged,
            not search.inside, config.example_weight, config.is_share,
        )  # fmt: skip

    def _race(
        self, teams: Sequence[Candidate], passes: int, level: float, tuned: Run,
        rates: dict[str, float],
    ) -> list[Candidate]:  # fmt: skip
        """Train candidates briefly; those that learned, the fastest first.

        They go in three waves, the fastest simulated ones first, so that the later ones can be
        passed over.
        """
        judged = self._metric_of(self.plan.reference)
        alone_s = seconds_to(tuned, judged, level)
        needed = LEAST_PASSES * alone_s / self.plan.reference.step_s
        seconds: dict[Candidate, float] = {}
        wave = math.ceil(len(teams) / 3)
        for begin in range(0, len(teams), wave):
            best = min([alone_s, *seconds.values()])
            ready: dict[Candidate, Steps[Try, Run, dict[int, Any]]] = {}
            for team in teams[begin : begin + wave]:
                if team.step_s * needed > best:
                    times = f"{team.step_s * needed / best:.1f} times as long"
                    reason = f"passed over: {times} with {LEAST_PASSES:g} of one worker's passes"
                    self._trials.setdefault(team.name, Trial(team, 0, math.nan, math.inf, reason))
                    continue
                ready[team] = self._climb(team, passes, level, rates[team.name], judged)
            for team, errors in self._follow(ready).items():
                rung = lowest(errors)
                rates[team.name] *= FACTOR**rung
                seconds[team] = errors[rung][0]
                state = "slower" if math.isfinite(seconds[team]) else "learned nothing"
                fate = f"{state} in {format_count(passes, 'pass')}"
                self._trials[team.name] = Trial(team, passes, rates[team.name], seconds[team], fate)
        able = [team for team in seconds if math.isfinite(seconds[team])]
        return sorted(able, key=lambda team: seconds[team])

    def _climb(
        self, candidate: Candidate, passes: int, level: float, guess: float, judged: str
    ) -> Steps[Try, Run, dict[int, Any]]:
        """Climb a ladder of rates with one tuning seed, by seconds to a level.

        Of rates with equal seconds, as at one evaluation or if none learns, the least error counts,
        and of equal errors the larger rate: in a short training a small one may change nothing.
        """

        def ask(rung: int) -> Try:
            return self._try(candidate, guess * FACTOR**rung, TUNING_SEEDS[0], passes)

        def judge(run: Run) -> Any:  # compared alone
            error, rate = final_error(run, judged), run.config["schedule"]["rate"]
            return seconds_to(run, judged, level), error, rate if math.isinf(error) else -rate

        return translate(climb(tries=MOST_RATES), ask, judge)


def _refuse_met_target(run: Run, judged: str, target: float) -> None:
    """Reject a target that the untrained model meets: every candidate would reach it at once.

    Raises:
        UserError: it is met before training.
    """
    if run.status != "done":
        return
    before = float(run.curve(run.deployed(judged))[1][0])
    if as_error(run, before) <= as_error(run, target):
        mistake = f"{target:.3g} is met before training, with {before:.3g}"
        better = "above" if as_error(run, 1.0) < 0.0 else "below"
        raise UserError(f"target: {mistake}; allowed: one {better} that")


def _level(run: Run, judged: str, passes: float) -> float:
    """The least error of a run within its first passes, before training left out."""
    epochs, values, _ = run.curve(run.deployed(judged))
    errors = as_error(run, 1.0) * values
    within = (epochs > 0.0) & (epochs <= max(passes, float(epochs[epochs > 0.0].min())))
    return float(errors[within & np.isfinite(errors)].min(initial=math.inf))


def _default_target(run: Run, judged: str) -> float:
    """Most of a run's way from the metric before training to its end."""
    _, values, _ = run.curve(run.deployed(judged))
    initial, ended = float(values[0]), float(run.summary[run.deployed(judged)])
    if not final_error(run, judged) < as_error(run, initial) < math.inf:
        raise UserError("advise: one worker learns nothing; allowed: other rates, more passes")
    return initial + IMPROVEMENT * (ended - initial)


def expand(names: Sequence[Any], intervals: Sequence[int]) -> Iterator[Any]:
    """Algorithms of rounds that have no interval, with each of several.

    Args:
        names: names and algorithms.
        intervals: minibatches of a worker between two rounds.

    Example:
        >>> [*expand(["async", "averaging", "diloco:20"], [4, 16])]
        ['async', 'averaging:4', 'averaging:16', 'diloco:20']
    """
    for name in names:
        if isinstance(name, str) and resolve_algorithm(name) in (
            "averaging",
            "block-momentum",
            "diloco",
        ):
            yield from (f"{name}:{interval}" for interval in intervals)
        else:
            yield name
