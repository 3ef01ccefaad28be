"""The protocol `lagbench simulate` times, with its settings from the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, cast

from harness.base.errors import UserError

if TYPE_CHECKING:
    from harness.base.settings import Spec
    from harness.simulator import Cluster
    from harness.simulator.protocols.contract import TimingProtocol

__all__ = ["MOST_FOLDS", "SETTINGS", "configure", "folds", "protocol"]

MOST_FOLDS = 10_000_000


def numbers(text: str) -> tuple[float, ...]:
    """What an option takes that lists several."""
    return tuple(float(part) for part in text.split(","))


SETTINGS: dict[str, tuple[Callable[[str], object], str]] = {
    "every": (int, "averaging, client_sampling: minibatches between two averages"),
    "sampled": (int, "client_sampling: clients that are drawn for a round"),
    "needed": (int, "client_sampling: contributions of them that make a fold"),
    "deadline_s": (float, "client_sampling: seconds a round lasts at most"),
    "collective": (str, "averaging: the all-reduce, e.g. ring or recursive-doubling"),
    "overlap": (bool, "averaging: workers go on while their parameters are averaged"),
    "buckets": (
        numbers,
        "averaging: buckets in which gradients travel, in bytes, e.g. 1e6,25e6",
    ),
    "push_every": (int, "parameter_server: minibatches in a contribution"),
    "fetch_every": (int, "parameter_server, sequence: minibatches between two fetches"),
    "bound": (int, "parameter_server: contributions a worker may be ahead of the slowest"),
    "queue": (int, "parameter_server: places at the server"),
    "depth": (int, "parameter_server: contributions a worker may have under way"),
    "backups": (int, "backup_workers: contributions of a round that are not waited for"),
    "slots": (int, "sequence: utterances in a minibatch"),
    "frames": (float, "sequence: mean length of an utterance"),
    "frames_cv": (float, "sequence: standard deviation of that over its mean"),
    "kept": (float, "sequence: part of an utterance's frames that is trained on"),
    "decode_cost": (float, "sequence: frames trained on in the time of decoding one"),
    "fetch_s": (float, "sequence: seconds between two fetches of a decoder"),
    "waiting": (int, "sequence: decoded utterances that may wait for a slot"),
    "shards": (int, "parameter_server, sequence: parts of the model with a queue of their own"),
    "shuffled": (bool, "sequence: a minibatch has a frame of each slot's utterance"),
}
"""Every setting of a protocol: its type, and what it means."""


METAVARS: dict[object, str] = {int: "N", float: "X", str: "NAME", numbers: "A,B"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare ``--protocol`` and an option for each setting."""
    parser.add_argument("--protocol", default="parameter_server", help="default: %(default)s")
    parser.add_argument(
        "--epochs", type=int, metavar="N", help="whole epochs of averaging, instead of --folds"
    )
    settings = parser.add_argument_group("settings of a protocol")
    for name, (kind, meaning) in SETTINGS.items():
        option = "--" + name.replace("_", "-")
        if kind is bool:
            settings.add_argument(option, action=argparse.BooleanOptionalAction, help=meaning)
        else:
            settings.add_argument(option, type=kind, metavar=METAVARS[kind], help=meaning)


def protocol(arguments: argparse.Namespace) -> TimingProtocol:
    """The protocol the options describe.

    Raises:
        UserError: there is none of that name, or a setting is not allowed with it.
    """
    from harness.base.settings import build
    from harness.simulator import PROTOCOLS, protocol_named

    kind = cast("type[Spec]", type(protocol_named(arguments.protocol)))
    given = {name: getattr(arguments, name) for name in SETTINGS}
    settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    known = [entry.name for entry in fields(kind)]
    for name in settings:
        if name not in known:
            owners = [owner for owner, it in PROTOCOLS.items() if name in _names(it)]
            raise UserError(
                f"--{name.replace('_', '-')}: not allowed with --protocol {arguments.protocol};"
                f" allowed: with --protocol {' or '.join(owners)}"
            )
    return cast("TimingProtocol", build(kind, settings, f"--protocol {arguments.protocol}"))


def folds(arguments: argparse.Namespace, cluster: Cluster, workers: int) -> int | None:
    """How many folds to simulate: those asked for, or those of so many epochs; None if neither.

    Raises:
        UserError: epochs are asked for where there are none, or a senseless number of them.
    """
    epochs = arguments.epochs
    if epochs is None:
        return cast("int | None", arguments.folds)
    rules = protocol(arguments)
    folds = getattr(rules, "epoch_folds", None)
    each: int = folds(cluster, workers) if folds else 0
    if each == 0:
        raise UserError(
            "--epochs: there are none; allowed: with --protocol averaging and a cluster file"
            " that has parallel.epoch_minibatches"
        )
    if not 1 <= epochs <= MOST_FOLDS // each:
        allowed = f"a whole number from 1 to {MOST_FOLDS // each}"
        raise UserError(f"--epochs: {epochs} is not allowed; allowed: {allowed}")
    return epochs * each


def _names(kind: Any) -> list[str]:
    return [entry.name for entry in fields(kind)]
