"""``python -m reproductions paper1 …``: what ``tox -e reproduce-paper1`` runs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness import argument_types
from harness.base.errors import EXIT_DONE, EXIT_RUN_FAILED, UserError, name_error
from harness.base.registry import entries
from harness.base.settings import check_device
from harness.cli import Parser, exit_code
from harness.kernels import notice
from reports import SCALES

if TYPE_CHECKING:
    from data_synth.corpus import Corpus
    from harness.judge.results import Results
    from reproductions.curve_runs import Request
    from reproductions.paper import Paper
PAPERS = {
    name: entry.value.partition(":")[0] for name, entry in entries("papers").items() if entry.ours
}
"""The module that declares each paper of ours as its ``PAPER``."""


GOES_ON = "interrupted; the same command resumes from the last checkpoint"


def parser() -> Parser:
    """The command line."""
    p = Parser(prog="reproductions", description="Reproduce a paper, exhibit by exhibit.")
    configure(p)
    return p


def configure(p: argparse.ArgumentParser) -> None:
    """Declare the options, of this program and of `lagbench reproduce`."""
    p.add_argument("paper", help=f"one of: {', '.join(entries('papers'))}")
    p.add_argument(
        "--scale", help="smoke, laptop (default without CUDA), overnight, gpu (with it) or paper"
    )
    p.add_argument(
        "--corpus",
        help="corpus, e.g. parametric or fsdd; see lagbench corpus --help"
        " (default: the paper's own kind)",
    )
    p.add_argument(
        "--seeds", type=argument_types.count, help="number of seeds (default: the scale's)"
    )
    p.add_argument(
        "--device", type=check_device, default="auto", help="auto (default), cpu or cuda"
    )
    p.add_argument(
        "--only", default="", help="exhibits to reproduce, e.g. table2,fig3 (default: all)"
    )
    p.add_argument(
        "--all",
        action="store_true",
        dest="everything",
        help="make also the exhibits whose own runs decide no claim, such as searches for settings"
        " (default: the published ones)",
    )
    p.add_argument(
        "--jobs",
        type=argument_types.count,
        help="number of runs trained at once (default: the number of cores)",
    )
    argument_types.add_carriers(p)
    p.add_argument(
        "--budget", type=_minutes, help="stop after this many minutes; the same command resumes"
    )
    p.add_argument("--out", type=_folder, help="default: reports/out/PAPER/SCALE")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    if arguments is None:
        notice.announce()
    return exit_code(lambda: run(parser().parse_args(arguments)), GOES_ON)


def run(options: argparse.Namespace) -> int:
    """Reproduce what was asked for; returns the exit code.

    Raises:
        UserError: an unknown paper, scale, exhibit, corpus or device, a registration that is
            incomplete, or a folder that cannot be.
        ProcessDied, KeyboardInterrupt: killed or stopped; the same command resumes.
    """
    if options.paper not in entries("papers"):
        raise name_error("paper", options.paper, entries("papers"))
    if options.scale not in (None, *SCALES):
        raise name_error("--scale", options.scale, SCALES)
    # Imported late: a misspelt option is reported without waiting for torch.
    from data_synth import check_known, is_synthetic

    if options.corpus is not None:
        check_known(options.corpus, options.scale or "smoke")
    from harness.experiment.run import resolve
    from harness.store.files import writable_folder
    from reproductions.paper import NO_CORPUS, Subject, corpus_without_speech
    from reproductions.reproduce import reproduce

    paper: Paper = entries("papers")[options.paper].load()
    if options.corpus is not None and paper.corpus == NO_CORPUS:
        raise UserError(f"--corpus: {options.corpus!r} is not allowed; {paper.id} needs no corpus")
    device = resolve(options.device)
    scale = options.scale or ("gpu" if device == "cuda" else "laptop")
    request = _request(options, paper, scale, device)
    curve = paper.curve(request.only)
    if curve is not None:
        _ = curve.entries  # refused before a folder is made
    writable_folder(request.out, "--out")
    if curve is not None:
        from reproductions.curve_runs import reproduce_curve

        return _print_results(reproduce_curve(paper, curve, request, device), request.out)
    name, seed = options.corpus or paper.corpus, request.seeds[0]
    if paper.corpus == NO_CORPUS:
        subject = Subject(scale, corpus_without_speech(NO_CORPUS), seed, device)
    else:
        corpus_of = partial(_corpus, name, scale, request.out)
        subject = Subject(
            scale, corpus_of(seed), seed, device, corpus_of if is_synthetic(name) else None
        )
    return _print_results(reproduce(paper, subject, request), request.out)


def _request(options: argparse.Namespace, paper: Paper, scale: str, device: str) -> Request:
    """The request in the command line's options.

    Raises:
        UserError: an unknown scale, exhibit or batch system.
    """
    from reproductions.curve_runs import Request

    if scale not in paper.seeds:
        raise name_error("--scale", scale, paper.seeds)
    submit = argument_types.submission_of(options)
    only = tuple(name for name in options.only.split(",") if name)
    curve = paper.curve(only)
    if curve is None or curve.scale != scale:
        paper.select_makers(only, scale)
    return Request(
        seeds=paper.seeds_of(scale, options.seeds),
        only=only,
        jobs=options.jobs or (1 if device == "cuda" else os.cpu_count() or 1),
        budget_s=None if options.budget is None else 60.0 * options.budget,
        out=options.out or Path("reports/out") / options.paper / scale,
        submit=submit,
        everything=options.everything,
    )


def _corpus(name: str, scale: str, out: Path, seed: int) -> Corpus:
    """The corpus; if it cannot be loaded, an output folder made for it is removed again.

    Raises:
        UserError: there is no such corpus, or it cannot be made.
    """
    from data_synth import CAN_SKIP, is_synthetic, load_corpus

    of_seed = f"seed {seed}: " if is_synthetic(name) else ""

    def say(line: str) -> None:
        _say(of_seed + line)

    try:
        return load_corpus(name, scale=scale, seed=seed, skip=name in CAN_SKIP, progress=say)
    except UserError:
        with suppress(OSError):  # not empty: it was there before
            out.rmdir()
        raise


def _print_results(results: Results, out: Path) -> int:
    """Print the verdicts and what failed; returns the exit code."""
    from harness.judge.builders import name_run
    from harness.store import Store
    from reports.provenance import find_failures, settings_of
    from reproductions.reproduce import TAKEN

    if results.scale == "smoke":
        print("smoke scale: all works, nothing is judged; the report has the published verdicts")
    for claim in results.claims:
        print(f"{claim.verdict:>12}  {claim.id}")
    if count := sum(exhibit.note.startswith(TAKEN) for exhibit in results.exhibits):
        exhibits = "1 exhibit" if count == 1 else f"{count} exhibits"
        print(f"{exhibits} from the published report; --all makes them again")
    print(f"report: {out / 'report.pdf'}")
    names = settings_of(results.provenance["settings"])
    failed = find_failures(results.provenance, Store(out / "runs").runs())
    for run in failed:
        name = name_run(names.get(run.hash, "run"), run)
        _say(f"{results.paper}: {run.ending(name)}")
    return EXIT_RUN_FAILED if failed else EXIT_DONE


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _folder(text: str) -> Path:
    if not text.strip():
        raise argparse.ArgumentTypeError("'' is not allowed; allowed: the name of a folder")
    return Path(text)


def _minutes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value <= 1e6:
        reason = "is not allowed; allowed: a positive number of minutes"
        raise argparse.ArgumentTypeError(f"{text!r} {reason}")
    return value
