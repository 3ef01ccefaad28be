"""`lagbench recognise`: train on a corpus, and recognise its test sets, with intervals."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import argument_types
from harness.base.errors import EXIT_DONE, EXIT_RUN_FAILED, UserError, name_error

if TYPE_CHECKING:
    from data_synth.corpus import Corpus
    from harness.speech.recognise import RecognitionConfig

__all__ = ["System", "config_of", "configure", "run"]

FIRST_SEED, CORPUS_SEED = 11, 11
"""First default seeds; seeds 0 to 10 and corpora of seed 0 were used in development."""
INITIALS = ("rbm", "random")
FREE: dict[str, object] = {
    "name": "one machine, not timed",
    "devices": {"any": {}},
    "workers": [{"count": 1, "device": "any"}],
}


@dataclass(frozen=True)
class System:
    """A recogniser: corpus, acoustic model, training and language model.

    Attributes:
        corpus: name of a corpus, or its folder.
        initial: initial parameters, ``"rbm"`` or ``"random"``.
        hidden: units of the hidden layers; empty for a linear model.
        rate: initial learning rate, of gradients summed over a minibatch.
        minibatch: frames in a minibatch.
        passes: largest number of passes over the training set.
        order: order of the n-gram language model.
        closed: whether the language model has all words of the lexicon.
        lm: an ARPA file in place of the n-gram model; None for none.
    """

    corpus: str
    initial: str = "rbm"
    hidden: tuple[int, ...] = (128, 128, 128)
    rate: float = 0.008
    minibatch: int = 32
    passes: int = 20
    order: int = 2
    closed: bool = False
    lm: Path | None = None


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("corpus", help="a corpus by name, or a folder made by `lagbench corpus`")
    parser.add_argument(
        "--scale", default="laptop", help="smoke, laptop (default), overnight, gpu or paper"
    )
    parser.add_argument("--corpus-seed", type=int, default=CORPUS_SEED, help="of a made corpus")
    parser.add_argument("--skip-bad", action="store_true", help="leave out bad recordings")
    parser.add_argument(
        "--seeds", default="3", help="number of seeds, counted from 11; or a list: 0,1"
    )
    parser.add_argument("--initial", default="rbm", help="rbm (pretraining) or random")
    parser.add_argument(
        "--hidden",
        default="128,128,128",
        help="units of the hidden layers, or none for a linear model",
    )
    parser.add_argument("--rate", default="0.008", help="first learning rate; gradients are summed")
    parser.add_argument("--minibatch", default="32", help="frames")
    parser.add_argument(
        "--passes", default="20", help="largest number of passes over the training set"
    )
    parser.add_argument("--order", default="2", help="order of the language model")
    parser.add_argument(
        "--closed", default="no", help="yes: the vocabulary has all words of the lexicon"
    )
    parser.add_argument(
        "--lm", default="", help="an ARPA file (default: FOLDER/lm.arpa if it exists)"
    )
    parser.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=f"a second system that differs in one setting: {', '.join(READERS)}; may be repeated",
    )
    parser.add_argument(
        "--device", type=argument_types.device, default="auto", help="auto (default), cpu or cuda"
    )
    argument_types.add_gather(parser)
    parser.add_argument(
        "--jobs",
        type=argument_types.count,
        default=os.cpu_count() or 1,
        help="number of runs trained at once",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("reports/out/recognise"), help="keeps the runs"
    )
    parser.add_argument("--json", type=Path, help="also write the results to this file as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Train the runs that the store lacks, and print the table."""
    asked = {key: getattr(arguments, key) for key in READERS}
    systems = [_system(asked)]
    if arguments.against:
        systems.append(_system({**asked, **_differences(arguments.against)}))
    seeds = _seeds(arguments.seeds)

    from data_synth import check_known

    for system in systems:
        check_known(system.corpus, arguments.scale)

    from harness.commands.recognition import compute_figures, text
    from harness.grid.display import execute_named
    from harness.speech.recognise import Place
    from harness.store.files import writable_folder, write_json

    writable_folder(arguments.out, "--out")
    corpora: list[Corpus] = []
    configs: dict[tuple[int, int], RecognitionConfig] = {}
    for number, system in enumerate(systems):
        place = Place(system.corpus, arguments.scale, arguments.corpus_seed, arguments.skip_bad)
        corpora.append(place.load())
        for seed in seeds:
            config = config_of(system, place, corpora[-1], seed, arguments.device)
            configs[number, seed] = config
    names = {key: f"{labels(systems)[key[0]]} seed {key[1]}" for key in configs}
    store = argument_types.open_store(arguments.out, arguments.gather)
    done = execute_named(configs, names.__getitem__, store, arguments.jobs)
    broken = {names[key]: run for key, run in done.items() if run.status != "done"}
    for name, run in broken.items():
        print(run.ending(name), file=sys.stderr)
    if broken:
        return EXIT_RUN_FAILED
    runs = [[done[number, seed] for seed in seeds] for number in range(len(systems))]
    found = compute_figures(labels(systems), corpora, runs, seeds)
    print(text(found))
    if arguments.json:
        write_json(arguments.json, found)
    return EXIT_DONE


def config_of(
    system: System, place: Any, corpus: Corpus, seed: int, device: str
) -> RecognitionConfig:
    """The configuration of one seed: plain SGD on one worker, halved as newbob does.

    Args:
        system: the recogniser.
        place: origin of the corpus, a `harness.speech.recognise.Place`.
        corpus: the loaded corpus.
        seed: seed of initialisation and data order.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
    """
    from harness.acoustics.rbm import Recipe
    from harness.algorithms.async_sgd import AsyncSgd
    from harness.algorithms.schedules import Halving
    from harness.base.settings import build
    from harness.runs.config import Stage
    from harness.runs.device import resolve
    from harness.simulator import Cluster
    from harness.speech.evaluation import Decoding
    from harness.speech.frames import RunConfig, shuffling_of
    from harness.speech.recognise import RecognitionConfig, arpa_sha256

    arpa = system.lm
    if arpa is None and place.folder and (place.folder / "lm.arpa").exists():
        arpa = place.folder / "lm.arpa"
    training = RunConfig(
        corpus=corpus.name,
        scale="folder" if place.folder else place.scale,
        corpus_seed=place.seed,
        fingerprint=corpus.fingerprint,
        hidden=system.hidden,
        activation="sigmoid",
        initial=Recipe() if system.initial == "rbm" and system.hidden else None,
        algorithm=AsyncSgd(),
        schedule=Halving(system.rate),
        stages=(Stage(system.minibatch, system.minibatch),),
        passes=system.passes,
        chunk=1.0,
        evaluations=4,
        cluster=build(Cluster, FREE, "recognise"),
        workers=1,
        timed_layers=corpus.layers(system.hidden),
        seed=seed,
        device=resolve(device),
        tested="never",
        shuffling=shuffling_of(corpus),
    )
    decoding = Decoding(system.order, system.closed, arpa_sha256(arpa) if arpa else "")
    return RecognitionConfig(training, decoding, place, arpa)


def labels(systems: list[System]) -> list[str]:
    """Names of the systems: initial parameters and layers, and settings in which two differ."""
    layers = ["-".join(map(str, s.hidden)) or "linear" for s in systems]
    names = [f"{s.initial} {n}" if s.hidden else n for s, n in zip(systems, layers, strict=True)]
    if len(systems) == 2:
        first, second = systems
        for key in ("corpus", "rate", "minibatch", "passes", "order", "closed", "lm"):
            values = getattr(first, key), getattr(second, key)
            if values[0] != values[1]:
                names = [f"{n}, {key} {v}" for n, v in zip(names, values, strict=True)]
    return names


def _system(given: Mapping[str, str]) -> System:
    return System(**{key: READERS[key](given[key], key) for key in READERS})


def _differences(pairs: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"--against {pair!r}: KEY=VALUE is allowed, e.g. initial=random")
        if key not in READERS:
            raise name_error("--against: key", key, READERS)
        found[key] = value
    return found


def _seeds(text: str) -> tuple[int, ...]:
    """Parse a number of seeds, which start at `FIRST_SEED`, or a list of seeds."""
    # A comma makes a list, also of one seed: ``11,``.
    if "," in text:
        return tuple(_whole(0)(part, "seeds") for part in text.split(",") if part)
    return tuple(range(FIRST_SEED, FIRST_SEED + _whole(1)(text, "seeds")))


def _whole(least: int) -> Callable[[str, str], int]:
    def read(text: str, key: str) -> int:
        if not text.strip().isdecimal() or int(text) < least:
            raise UserError(f"--{key} {text!r}: a whole number from {least} on is allowed")
        return int(text)

    return read


def _positive(text: str, key: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UserError(f"--{key} {text!r}: a positive number is allowed")
    return value


def _layers(text: str, key: str) -> tuple[int, ...]:
    return () if text == "none" else tuple(_whole(1)(part, key) for part in text.split(","))


def _initial(text: str, key: str) -> str:
    if text not in INITIALS:
        raise name_error(f"--{key}", text, INITIALS)
    return text


def _yes(text: str, key: str) -> bool:
    if text not in ("yes", "no"):
        raise name_error(f"--{key}", text, ("yes", "no"))
    return text == "yes"


def _file(text: str, key: str) -> Path | None:
    if text and not Path(text).is_file():
        raise UserError(f"--{key} {text}: no such file; an ARPA file is allowed")
    return Path(text) if text else None


READERS: dict[str, Callable[[str, str], Any]] = {
    "corpus": lambda text, _: text,
    "initial": _initial,
    "hidden": _layers,
    "rate": _positive,
    "minibatch": _whole(1),
    "passes": _whole(1),
    "order": _whole(1),
    "closed": _yes,
    "lm": _file,
}
"""Parser of each option that belongs to a system, from its text and name."""
