"""Execution of configurations: a finished run, from the store or made now.

What every configuration answers: its finished run, from the store or made now. Runs that only
time: a cluster and a workload, no training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial, singledispatch
from typing import Any, Protocol

from harness.simulator import (
    Cluster,
    ParameterServer,
    Simulation,
    Timeline,
    Workload,
    bare_throughput_per_s,
)
from harness.simulator.protocols.contract import TimingProtocol
from harness.simulator.timeline import Lag, inner_lag, outer_lag, pass_lag, push_lag
from harness.speech.frames import RunConfig
from harness.speech.sequence import SequenceConfig
from harness.store import Run, RunWriter, Store


@dataclass(frozen=True)
class Progress:
    """Where a run is: its name, passes done of at most ``passes``, and the last frame error."""

    run: str
    done: float
    passes: float
    frame_error: float


Watch = Callable[[Progress], None]


class Configuration(Protocol):
    """Whatever a grid can execute: it says what it computes, and `executed` knows how."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: what the run's identity hashes."""
        ...


@singledispatch
def executed(config: Configuration, store: Store, watch: Watch) -> Run:
    """The finished run of a configuration: the stored one, or made now, or gone on with.

    The module that knows how to execute a kind registers it (``@executed.register``).

    Args:
        config: what to run.
        store: where it is kept.
        watch: told of progress.

    Raises:
        UserError: the run met bad input.
        TypeError: nobody has registered this kind.
    """
    raise TypeError(f"{type(config).__name__}: nobody knows how to execute it")


FORMAT = 1
"""Grows when the same configuration would no longer give the same figures."""


@dataclass(frozen=True)
class TimingConfig:
    """One simulation without training.

    Args:
        cluster, workers: what is simulated.
        layers: sizes of the network the cluster is charged for.
        minibatch: frames a minibatch.
        folds: how many folds to simulate.
        seed: of jitter.
        protocol: who waits for whom.
    """

    cluster: Cluster
    workers: int
    layers: tuple[int, ...]
    minibatch: int
    folds: int
    seed: int
    protocol: TimingProtocol = field(default=ParameterServer())
    format: int = FORMAT

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: what the run's identity hashes."""
        protocol = {"name": self.protocol.name, **self.protocol.to_dict()}
        plain = {"cluster": self.cluster.to_dict(), "protocol": protocol}
        return {"is": "TimingConfig", **vars(self), **plain}


@executed.register
def timed(config: TimingConfig, store: Store, watch: Watch) -> Run:
    """The finished run of a configuration: throughput, staleness, the bare device's throughput."""
    del watch  # it takes seconds
    return store.obtain(config.to_dict(), partial(_simulate, config))


def _simulate(config: TimingConfig, writer: RunWriter) -> None:
    workload = Workload.of_network(config.layers, config.minibatch)
    simulation = Simulation(
        config.cluster, config.protocol, workload, workers=config.workers, seed=config.seed
    )
    timeline = simulation.advance(folds=config.folds)
    writer.finish(
        "done",
        {
            "virtual_s": simulation.now_s,
            "folds": config.folds,
            "throughput_per_s": int(timeline.folded().steps.sum()) / simulation.now_s,
            "bare_throughput_per_s": bare_throughput_per_s(config.cluster, workload),
            "mean_staleness": float(timeline.staleness().mean()),
            "mean_lag_s": float(timeline.lag_s().mean()),
            **_outer(timeline),
            "timeline_sha256": timeline.sha256(),
        },
    )


def _outer(timeline: Timeline) -> dict[str, float]:
    """Of sequence training: age of the outer gradients when they are folded, and step times."""
    if not len(timeline.decodes):
        return {}
    staleness, lag_s = outer_lag(timeline)
    return {
        "outer_staleness_mean": float(staleness.mean()),
        "outer_lag_s_mean": float(lag_s.mean()),
    }


Reads = Mapping[str, Callable[[Timeline], Lag]]
"""The reads of a run by name, each as a function that takes its lags from a timeline."""


@singledispatch
def reads(config: RunConfig | SequenceConfig) -> Reads:
    """The reads of a run.

    ``inner`` is the trainer's read. In sequence training ``push`` is the end of computing, and
    ``outer`` the decoder's read, frame by frame (minibatch by minibatch where everything is
    decoded as a pass begins).

    Args:
        config: whose.

    Raises:
        TypeError: of this kind no reads are known.
    """
    raise TypeError(f"{type(config).__name__}: no reads are known of this kind")


@reads.register
def _of_frames(config: RunConfig) -> Reads:
    del config
    return {"inner": inner_lag}


@reads.register
def _of_sequences(config: SequenceConfig) -> Reads:
    outer: Reads = {}
    if config.shuffling != "full":
        slots = None if config.shuffling == "on the fly" else config.slots
        outer = {"outer": partial(outer_lag, slots=slots)}
    elif config.decode_cost or config.passes == 1:  # else nothing says where a pass begins
        outer = {"outer": pass_lag}
    return {"inner": inner_lag, **outer, "push": push_lag}
