"""`lagbench corpus`: make, validate, fetch and import corpora."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from harness.argument_types import whole
from harness.base.errors import UserError

if TYPE_CHECKING:
    from data_synth.corpus import Corpus
    from data_synth.targets import Effort


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the verbs and their options."""
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for name, (describe, act, description) in VERBS.items():
        verb = verbs.add_parser(name, help=description, description=description)
        describe(verb)
        verb.set_defaults(act=act)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb's function."""
    return arguments.act(arguments)


def _configure_make(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("preset", help="name of the corpus, e.g. parametric or mandarin-like")
    verb.add_argument("--out", type=Path, required=True, help="a folder that does not exist yet")
    verb.add_argument("--scale", default="smoke", help="smoke, laptop, overnight, gpu or paper")
    verb.add_argument("--seed", type=int, default=0)
    verb.add_argument("--skip-bad", action="store_true", help="leave out bad recordings, counted")


def _make(arguments: argparse.Namespace) -> int:
    from data_synth import make_corpus

    corpus = make_corpus(
        arguments.preset,
        arguments.out,
        scale=arguments.scale,
        seed=arguments.seed,
        skip=arguments.skip_bad,
        progress=print,
    )
    _describe(arguments.out, corpus)
    return 0


def _describe(folder: Path, corpus: Corpus) -> None:
    splits = {name: corpus.frames_of(name) for name in ("train", "dev", *corpus.tests)}
    hours = ", ".join(f"{k} {v * corpus.frame_shift_s / 3600:.2f} h" for k, v in splits.items())
    print(f"{folder}: {corpus.name}, {len(corpus.utterances)} utterances ({hours}), ", end="")
    print(f"{corpus.dim} features, {corpus.n_targets} targets, {len(corpus.lexicon)} words")
    print(f"fingerprint {corpus.fingerprint}")


def _configure_validate(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("folder", type=Path, help="folder of a corpus that the other verbs made")
    verb.add_argument("--epochs", type=whole(), default=6)
    verb.add_argument("--seed", type=int, default=0)


def _validate(arguments: argparse.Namespace) -> int:
    from data_synth.storage import load
    from data_synth.validate import Effort, validate

    validation = validate(load(arguments.folder), Effort(arguments.epochs), arguments.seed, print)
    print(f"{validation.targets} targets, {validation.frames} training frames")
    rows = {"chance": validation.chance, "linear": validation.linear, "shallow": validation.shallow}
    for name, error in {**rows, "deep": validation.deep}.items():
        print(f"{name:<12}{error:8.2%}")
    for name, error in validation.tests.items():
        print(f"  {name:<10}{error:8.2%}")
    print(f"depth pays  {validation.depth_pays:8.2f}  (linear over deep error)")
    print(f"confusable  {validation.possible:8.2f}  (targets a frame leaves open)")
    return 0


def _configure_fetch(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("name", help="name of the corpus, e.g. fsdd")


def _fetch(arguments: argparse.Namespace) -> int:
    from data_synth import fetch_corpus

    fetch_corpus(arguments.name, progress=print)
    return 0


def _alignment_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--leaves", type=whole(0), default=300, help="number of tied states; 0 keeps monophones"
    )
    verb.add_argument("--rounds", type=whole(), default=10, help="realignments of phones")
    verb.add_argument("--skip-bad", action="store_true", help="leave out bad utterances, counted")


def _effort(arguments: argparse.Namespace) -> Effort:
    from data_synth.targets import Effort

    return Effort(rounds=arguments.rounds, leaves=arguments.leaves)


def _refuse_existing(folder: Path) -> None:
    if folder.exists():
        raise UserError(f"--out {folder}: exists already; a corpus is made in a new folder")


def _configure_import(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("kind", choices=["kaldi"], help="format of the folder")
    verb.add_argument("folder", type=Path, help="Kaldi data directory to train on")
    verb.add_argument("--out", type=Path, required=True, help="a folder that does not exist yet")
    verb.add_argument(
        "--dev",
        type=Path,
        help="directory of development utterances; a tenth of FOLDER's if not given",
    )
    verb.add_argument(
        "--test",
        type=Path,
        action="append",
        default=[],
        help="may be repeated; a tenth of FOLDER's if not given",
    )
    verb.add_argument("--lexicon", type=Path, help="default: FOLDER/lexicon.txt")
    verb.add_argument("--lm", type=Path, help="an ARPA file, kept as OUT/lm.arpa")
    verb.add_argument("--realign", action="store_true", help="ignore times of phones")
    _alignment_options(verb)


def _import(arguments: argparse.Namespace) -> int:
    from data_synth.public.kaldi_dir import Folder, read
    from data_synth.recorded import Recipe
    from data_synth.storage import save

    _refuse_existing(arguments.out)
    folders = [Folder(arguments.folder, "train")]
    folders += [Folder(arguments.dev, "dev")] if arguments.dev else []
    folders += [Folder(path, path.name) for path in arguments.test]
    recipe = Recipe(
        effort=_effort(arguments),
        skip=arguments.skip_bad,
    )
    lexicon = arguments.lexicon or arguments.folder / "lexicon.txt"
    arpa = _read_valid_arpa(arguments.lm)  # a broken file is reported before the import
    corpus = read(folders, lexicon, recipe, print, realign=arguments.realign)
    save(corpus, arguments.out)
    if arpa is not None:
        (arguments.out / "lm.arpa").write_bytes(arpa)
    _describe(arguments.out, corpus)
    return 0


def _read_valid_arpa(path: Path | None) -> bytes | None:
    from harness.acoustics.language_model import read_arpa

    if path is None:
        return None
    read_arpa(path)
    return path.read_bytes()


VERBS = {
    "make": (_configure_make, _make, "make a corpus of a preset, or of fetched recordings"),
    "validate": (_configure_validate, _validate, "linear, shallow and deep frame error"),
    "import": (_configure_import, _import, "a corpus of a Kaldi data directory"),
    "fetch": (_configure_fetch, _fetch, "download the recordings of a public corpus"),
}
