"""Every run of paper 3 by its name: of verdicts, of tuning and of the law; and timings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from harness.algorithms.stale import DelayCompensated, StalenessAware
from harness.runs.executed import Configuration, TimingConfig
from harness.search.search import LargestRateConfig
from harness.simulator import Link, load_cluster
from harness.speech.frames import ForcedAlignment
from harness.speech.protocol import Sequence
from harness.speech.sequence import SequenceConfig
from reproductions.paper import Subject
from reproductions.paper3_async_mmi.line_scan import LineConfig
from reproductions.paper3_async_mmi.presets import (
    ASKED,
    CELLS,
    CLUSTER,
    DECODE_COST,
    KAPPA,
    RIVALS,
    STRENGTHENED,
    STRENGTHENED_BY,
    TRIED,
    VERSIONS,
    Cell,
)
from reproductions.paper3_async_mmi.trainings import (
    LAYERS,
    PAPER,
    REPLICAS,
    UNLIKE,
    fetches,
    large,
    largest,
    measured,
    once,
    sequence,
    shuffled,
    variants,
)

TIMED_STEPS = 400
"""Minibatches of each replica where only time is simulated."""


def lines(subject: Subject, seed: int) -> dict[str, LineConfig]:
    """Where auxiliary function and criterion touch; and both along the whole way."""
    training = sequence(subject, seed, 1)
    return {"tangent": LineConfig(training, points=()), "line": LineConfig(training)}


def tuning(subject: Subject) -> dict[str, Configuration]:
    """One pass (of cross-entropy, all) at each rate that was tried, on development data."""
    known = subject.development
    seed = known.corpus_seed
    configs = {
        **{name: sequence(known, seed, n) for n, name in REPLICAS.items()},
        "last": variants(known, seed)["last"],
        "large": large(known, seed)["large"],
    }
    found: dict[str, Configuration] = {}
    for i, factor in enumerate(TRIED):
        for name, config in configs.items():
            found[rate_name(name, i)] = replace(once(config), rate=factor * config.rate)
        for order in ("full", *UNLIKE):
            found[rate_name(order, i)] = shuffled(known, seed, order, factor)
    return found


def rate_name(setting: str, tried: int) -> str:
    """The tuning run of a setting at the rate of this number, counted from 0."""
    return f"{setting}, rate {tried}"


def cells(subject: Subject) -> dict[str, LargestRateConfig]:
    """The search for the largest stable rate of every cell of the law, on development data."""
    known = subject.development
    return {cell.name: largest(_in_cell(known, cell), known) for cell in CELLS}


def rivals(subject: Subject) -> dict[str, LargestRateConfig]:
    """The same of algorithms for stale gradients; before, how strong to compensate."""
    known = subject.development
    asked = [(n, STRENGTHENED, DelayCompensated(k, VERSIONS)) for k, n in STRENGTHENED_BY.items()]
    asked += [(cell.rival(n), cell, rival) for cell in ASKED for n, rival in RIVALS.items()]
    found: dict[str, LargestRateConfig] = {}
    for setting, cell, algorithm in asked:
        sought = largest(replace(_in_cell(known, cell), algorithm=algorithm), known)
        if isinstance(algorithm, StalenessAware):
            sought = _divided(sought, cell.replicas - 1)
        found[setting] = sought
    return found


def _divided(sought: LargestRateConfig, by: int) -> LargestRateConfig:
    """The search where rates are divided by the staleness.

    They are larger, at most by as much as others make updates, and by how much less is not known:
    at the end of a pass gradients are fresh. So the ends are further apart, with one more halving.
    """
    lowest, highest = (round(times * by * sought.lowest, 7) for times in (1 / 16, 16))
    return replace(sought, lowest=lowest, highest=highest, halvings=sought.halvings + 1)


def _in_cell(known: Subject, cell: Cell) -> SequenceConfig:
    base = sequence(known, known.corpus_seed, 10)
    return replace(
        base,
        replicas=cell.replicas,
        slots=max(1, round(cell.slots * base.slots)),
        criterion=replace(base.criterion, cancel_below=cell.cancel_below),
    )


def timings(seed: int) -> dict[str, TimingConfig]:
    """The paper's own sizes on its cluster, timed without training; and steps without network."""
    cluster = load_cluster(CLUSTER)
    rate = cluster.host.memory_bytes_per_s
    alone = replace(cluster, link=Link(bandwidth_bytes_per_s=rate, sharing="none"))
    mmi = Sequence(slots=PAPER["minibatch"], kept=PAPER["kept"], decode_cost=DECODE_COST)
    timed = partial(TimingConfig, layers=LAYERS, seed=seed)
    few = partial(timed, protocol=mmi, minibatch=PAPER["minibatch"])
    many = partial(timed, minibatch=PAPER["minibatch_ce"])
    found = {f"timing {n}": few(cluster, n, folds=TIMED_STEPS * n) for n in REPLICAS}
    for name, machine in (("", cluster), (" alone", alone)):
        found[f"step mmi{name}"] = few(machine, 1, folds=TIMED_STEPS)
        found[f"step ce{name}"] = many(machine, 1, folds=TIMED_STEPS)
    return found


def experiments(subject: Subject, seed: int) -> Mapping[str, Configuration]:
    """Every run of one seed, by the name the exhibits use.

    The large task comes first: it takes longest, and its start is trained beside the others'.
    """
    ten = sequence(subject, seed, 10)
    return {
        **large(subject, seed),
        "ce": measured(ten),
        "realignment": ForcedAlignment(ten.start, KAPPA),
        **{name: sequence(subject, seed, n) for n, name in REPLICAS.items()},
        **variants(subject, seed),
        **fetches(subject, seed),
        **{f"largest {n}": largest(sequence(subject, seed, n), subject) for n in (1, 50)},
        **lines(subject, seed),
        **timings(seed),
        **tuning(subject),
        **cells(subject),
        **rivals(subject),
    }
