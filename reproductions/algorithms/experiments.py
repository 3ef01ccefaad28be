"""The compared runs: every algorithm on two clusters, at a learning rate of its own.

All make the same three passes over the data. Algorithms with local steps make 10.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from data_synth.corpus import Corpus
from harness.algorithms.async_sgd import AsyncDescent, AsyncSgd, ClippedSgd
from harness.algorithms.averaging import (
    BlockMomentum,
    Easgd,
    GradientAveraging,
    ModelAveraging,
    OuterNesterov,
)
from harness.algorithms.contract import Algorithm
from harness.algorithms.descent import AdamW
from harness.algorithms.diloco import EagerDiLoCo, ElasticDiLoCo, StreamingDiLoCo
from harness.algorithms.schedules import Constant
from harness.algorithms.stale import (
    DelayCompensated,
    DelayedNesterov,
    FedBuff,
    PartialFolds,
    Ringmaster,
    StalenessAware,
)
from harness.runs.config import Stage
from harness.simulator import Averaging, ParameterServer, load_cluster
from harness.simulator.protocols.backup_workers import BackupWorkers
from harness.simulator.protocols.contract import TimingProtocol
from harness.speech.frames import RunConfig
from reproductions.paper import DEVELOPMENT

CORPUS, SCALE = "parametric", "smoke"
HIDDEN, MINIBATCH, PASSES = (64,), 32, 3
TIMED_LAYERS = (429, *(2048,) * 7, 10217)
"""Layers of paper 1's network; simulated times are those of this network."""
TIMED_MINIBATCHES = {"k20m-server": 1024, "wide-area-10": 16384}
"""Frames of a minibatch for simulated times, by cluster."""
CLUSTERS = {
    name: load_cluster(Path(__file__).parents[1] / "clusters" / f"{name}.toml")
    for name in TIMED_MINIBATCHES
}
TARGET = 0.46
"""Frame error on development speech that a run is timed to; set before any seed of `SEEDS` ran."""
WIDER = 0.55
"""A second target, set after the runs: corpora differ by more than the algorithms do, so that most
algorithms reach `TARGET` on some corpora only."""
BASELINE = "asynchronous SGD"
"""Reference of the errors, paired by seed: all algorithms share a seed's corpus."""
SEEDS = (5001, 5002, 5003)
"""Seeds of runs and corpora. Learning rates are found on the development seed's corpus."""
STEPS = 10
SUMMED, MEAN, ADAPTIVE = 0.01, 0.32, 0.004
"""First rates of the search: for summed gradients, for their mean, for AdamW's directions."""


@dataclass(frozen=True)
class Method:
    """One row of the table, as functions of the number of workers.

    Attributes:
        algorithm: its configuration.
        protocol: timing protocol; None for the plain server.
        guess: first learning rate of the search.
    """

    algorithm: Callable[[int], Algorithm]
    protocol: Callable[[int], TimingProtocol | None]
    guess: Callable[[int], float]


def _plain(workers: int) -> None:
    del workers


def _pushes(workers: int) -> TimingProtocol:
    del workers
    return ParameterServer(push_every=STEPS)


def _rounds(every: int = STEPS, overlap: bool = False) -> Callable[[int], TimingProtocol]:
    return lambda workers: Averaging(every=every, overlap=overlap)


def _constant_rate(rate: float) -> Callable[[int], float]:
    return lambda workers: rate


def _rate_times_workers(rate: float) -> Callable[[int], float]:
    return lambda workers: rate * workers


def _stepwise(algorithm: Callable[[int], Algorithm], rate: float = SUMMED) -> Method:
    return Method(algorithm, _plain, _constant_rate(rate))


METHODS: Mapping[str, Method] = {
    "asynchronous SGD": _stepwise(lambda n: AsyncSgd()),
    "asynchronous AdamW": _stepwise(lambda n: AsyncDescent(AdamW()), ADAPTIVE),
    "stale synchronous parallel": Method(
        lambda n: AsyncSgd(), lambda n: ParameterServer(bound=3), _constant_rate(SUMMED)
    ),
    "staleness-aware rates": _stepwise(lambda n: StalenessAware(), 4 * SUMMED),
    "delay compensation": _stepwise(lambda n: DelayCompensated(1 / MINIBATCH, 256)),
    "Ringmaster": _stepwise(lambda n: Ringmaster(n)),
    "clipped asynchronous SGD": _stepwise(lambda n: ClippedSgd(0.3)),
    "partial folds (Hogwild)": _stepwise(lambda n: PartialFolds(0.5)),
    "FedBuff": Method(lambda n: FedBuff(buffer=n // 2), _pushes, _constant_rate(MEAN)),
    "delayed Nesterov, AdamW": Method(
        lambda n: DelayedNesterov(AdamW(), every=n), _pushes, _constant_rate(ADAPTIVE)
    ),
    "elastic DiLoCo, AdamW": Method(
        lambda n: ElasticDiLoCo(AdamW(), quorum=n // 2), _pushes, _constant_rate(ADAPTIVE)
    ),
    "EASGD": Method(lambda n: Easgd(alpha=0.9 / n), _pushes, _constant_rate(MEAN)),
    "synchronous SGD": Method(lambda n: GradientAveraging(), _rounds(1), _rate_times_workers(MEAN)),
    "backup workers": Method(
        lambda n: GradientAveraging(),
        lambda n: BackupWorkers(backups=n // 4),
        _rate_times_workers(MEAN),
    ),
    "model averaging": Method(lambda n: ModelAveraging(), _rounds(), _rate_times_workers(MEAN)),
    "BMUF": Method(
        lambda n: ModelAveraging(outer=BlockMomentum(1 - 1 / n)), _rounds(), _constant_rate(MEAN)
    ),
    "DiLoCo, AdamW": Method(
        lambda n: ModelAveraging(AdamW(), outer=OuterNesterov()),
        _rounds(),
        _constant_rate(ADAPTIVE),
    ),
    "streaming DiLoCo, AdamW": Method(
        lambda n: StreamingDiLoCo(AdamW(), fragments=2, mixing=0.5),
        _rounds(STEPS // 2, overlap=True),
        _constant_rate(ADAPTIVE),
    ),
    "eager DiLoCo, AdamW": Method(
        lambda n: EagerDiLoCo(n, AdamW()), _rounds(overlap=True), _constant_rate(ADAPTIVE)
    ),
}
"""Methods by their name in the table."""


def workers_of(cluster: str) -> int:
    """Number of workers of a cluster."""
    return sum(group.count for group in CLUSTERS[cluster].workers)


def build_config(
    method: str, cluster: str, rate: float, corpus: Corpus, seed: int = DEVELOPMENT
) -> RunConfig:
    """One run.

    Args:
        method: a name of `METHODS`.
        cluster: a name of `CLUSTERS`.
        rate: constant.
        corpus: made with the seed.
        seed: of the run and of its corpus.
    """
    workers = workers_of(cluster)
    return RunConfig(
        corpus=CORPUS,
        scale=SCALE,
        corpus_seed=seed,
        fingerprint=corpus.fingerprint,
        hidden=HIDDEN,
        activation="sigmoid",
        initial=None,
        algorithm=METHODS[method].algorithm(workers),
        schedule=Constant(rate),
        stages=(Stage(MINIBATCH, TIMED_MINIBATCHES[cluster]),),
        passes=PASSES,
        chunk=1.0,
        evaluations=10,
        cluster=CLUSTERS[cluster],
        workers=workers,
        timed_layers=TIMED_LAYERS,
        seed=seed,
        device="cpu",
        protocol=METHODS[method].protocol(workers),
        tested="never",
    )
