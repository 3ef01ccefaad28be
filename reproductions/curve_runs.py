"""Runs of a curve over scale: found in a store, executed where they are missing, and reported.

Each seed has a corpus of its own at every size, which is made only if one of its runs is missing;
finished runs are found without it. `publish` puts a report, or a curve as far as it is run, in the
place of the published one, with its runs::

    python -m reproductions paper1 --scale overnight --only scaling --budget 60 --out OUT
    python -m reproductions.curve_runs OUT
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, cast

import reports
from data_synth import load_corpus
from harness.base.errors import EXIT_DONE
from harness.cli import Parser, exit_code
from harness.experiment.pools import Submission
from harness.experiment.run import Runner
from harness.judge import comparison
from harness.judge.results import Exhibit, Results, read_results, write_results
from harness.store import Run, Store
from harness.store.archive import ARCHIVE, read_archive, write_archive
from harness.store.files import write_bytes
from reports import PUBLISHED, provenance
from reproductions.paper import (
    DEVELOPMENT,
    Arms,
    Finished,
    Paper,
    Scaling,
    SizePlan,
    Subject,
    corpus_without_speech,
)
from reproductions.registered import REGISTRATION, Registration
from reproductions.scale_curves import build_exhibits, estimate_core_hours, exhibit_ids


@dataclass(frozen=True)
class Request:
    """Options of a reproduction beyond the subject.

    Args:
        seeds: one run of every setting for each.
        only: exhibits to make; all if empty.
        jobs: number of processes.
        budget_s: seconds after which runs checkpoint and no run starts; None for no limit.
        out: folder of the report and its runs.
        submit: batch system for the runs; None for processes on this machine.
        everything: whether exhibits on request are made too; else the published ones are shown.
    """

    seeds: tuple[int, ...]
    only: tuple[str, ...]
    jobs: int
    budget_s: float | None
    out: Path
    submit: Submission | None = None
    everything: bool = False

    @property
    def store(self) -> Store:
        """Store of the runs."""
        return Store(self.out / "runs")


def reproduce_curve(paper: Paper, scaling: Scaling, request: Request, device: str) -> Results:
    """Run what a curve lacks, in rounds, and report it as far as it is finished.

    Raises:
        UserError: a corpus that cannot be made, or an output folder that cannot be written.
        KeyboardInterrupt: stopped by the user or the budget; what is finished is reported.
    """
    started = datetime.now(UTC)
    store = request.store.under(describe_moment(scaling.registration))
    read_published(PUBLISHED / paper.id / scaling.scale, store)
    try:
        execute_missing(scaling, store, request, device)
    finally:
        finished = find_finished(scaling, store.runs(), device)
        hours = estimate_core_hours(scaling, finished)
        remaining = f"about {hours:.1f} core-hours are left" if hours else "all sizes are run"
        print(f"{scaling.id}: {remaining}", file=sys.stderr, flush=True)
        runs = {
            f"{arm} at {at:g}": [arms[arm] for (size, _), arms in finished.items() if size == at]
            for at, seed in finished
            for arm in finished[at, seed]
        }
        program = comparison.describe_program("python -m reproductions")
        facts = describe_facts(paper, device, program, started, runs, set())
        seeds = tuple(sorted({seed for size in scaling.sizes for seed in size.seeds}))
        results = Results(
            paper.id, scaling.scale, paper.corpus, seeds, facts,
            tuple(build_exhibits(scaling, finished)), (),
        )  # fmt: skip
        reports.build(request.out, results)
    return results


def describe_moment(registration: Registration | None) -> dict[str, Any]:
    """Facts that runs begun now keep: the commit of the code, and the registration's digest."""
    digest = {} if registration is None else {REGISTRATION: registration.digest}
    return {"commit": comparison.describe_program("")["git"], **digest}


def describe_facts(
    paper: Paper,
    device: str,
    program: Mapping[str, Any],
    started: datetime,
    runs: Mapping[str, Sequence[Run]],
    before: set[str],
) -> dict[str, Any]:
    """Facts of a report: its reference, the program, and its runs, of which some were there."""
    registration = paper.registration
    # Development runs chose the settings, and no verdict rests on them.
    judged = [
        run for group in runs.values() for run in group if run.config.get("seed") != DEVELOPMENT
    ]
    return {
        "reference": {**paper.reference, "held_against": paper.held_against},
        **program,
        "device": device,
        "wall_s": round((datetime.now(UTC) - started).total_seconds(), 1),
        "started": started.isoformat(timespec="seconds"),
        **comparison.describe_runs(runs, before),
    } | ({REGISTRATION: registration.compare(judged)} if registration else {})


def publish(out: Path, there: Path) -> int:
    """Put a report in the place of a published one, with the light runs that it cites.

    A report of a curve alone takes the place of its exhibits in the published one. Words,
    ``summary.toml`` and ``reasons.toml``, are written by hand.

    Args:
        out: folder of the report and its runs.
        there: the published report's folder; its figures and tables are made anew.

    Returns:
        The number of archived runs.

    Raises:
        UserError: a report that cannot be read, or words that do not fit its verdicts.
    """
    results = read_results(out / "results.json")
    lines = provenance.runs_from_csv(out / provenance.RUNS_CSV)
    if is_curve := not results.claims:
        published, name = read_results(there / "results.json"), results.exhibits[0].id
        ours = {exhibit.id for exhibit in results.exhibits}
        others = [exhibit for exhibit in published.exhibits if exhibit.id not in ours]
        listed = [e for e in provenance.lines(published, there) if not e.kind.startswith(name)]
        lines = [*listed, *(replace(line, kind=f"{name} {line.kind}") for line in lines)]
        # The curve comes first: it is what the claim says of the paper's own size.
        results = replace(published, exhibits=(*results.exhibits, *others))
    cited = provenance.cited_runs(results)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder)
        read_published(there, store)
        trained = [run for run in Store(out / "runs").runs() if run.hash in cited]
        # A curve takes nothing away: runs that no exhibit cites stay, such as those of searches.
        archived = [run for run in store.runs() if is_curve or run.hash in cited]
        runs = {run.hash: run for run in (*archived, *trained)}
        write_archive(there / ARCHIVE, runs.values())
    for exhibit in results.exhibits:
        drawn = str(exhibit.draw.get("file", ""))
        if drawn and (out / drawn).is_file():
            write_bytes(there / drawn, (out / drawn).read_bytes())
    write_results(there / "results.json", results)
    write_bytes(there / provenance.RUNS_CSV, provenance.runs_to_csv(lines).encode())
    reports.build(there)
    return len(runs)


def find_curves(paper: Paper, scale: str, store: Store, folder: Path = PUBLISHED) -> list[Exhibit]:
    """The curves of a paper as far as they are run: from the store, else as published.

    Args:
        paper: the paper.
        scale: of a report.
        store: its runs.
        folder: published results, ``PAPER/SCALE/results.json``.
    """
    path, exhibits = folder / paper.id / scale / "results.json", list[Exhibit]()
    for scaling in paper.curves:
        if scaling.scale != scale:
            continue
        if finished := find_finished(scaling, store.runs()):
            exhibits += build_exhibits(scaling, finished)
        elif path.exists():
            ours = exhibit_ids(scaling)
            exhibits += [exhibit for exhibit in read_results(path).exhibits if exhibit.id in ours]
    return exhibits


def read_published(folder: Path, store: Store) -> None:
    """Copy the runs beside a published report, if there are any, into a store that lacks them."""
    if (folder / ARCHIVE).exists():
        read_archive(folder / ARCHIVE, store)


def find_finished(scaling: Scaling, runs: Sequence[Run], device: str = "cpu") -> Finished:
    """The finished runs of a curve among those of a store, without making a corpus.

    A run is found as the one that the published report names, since a changed plan has fresh
    seeds; else by its whole configuration but the corpus's fingerprint, which all arms of a seed
    share.
    """
    ended = [(run, _describe(run.config)) for run in runs if run.status in ("done", "diverged")]
    names = _read_names(scaling)
    finished: dict[tuple[float, int], Arms] = {}
    for size in scaling.sizes:
        for seed in size.seeds:
            subject = Subject(scaling.scale, corpus_without_speech(size.corpus), seed, device)
            configs = scaling.configs(subject, seed, size)
            groups = dict[str, list[Run]]()
            for arm, config in configs.items():
                name = names.get((f"{arm} at {size.at:g}", str(seed)))
                text = _describe(config.to_dict())
                groups[arm] = [run for run, own in ended if run.hash == name or own == text]
            if (arms := _select_one_corpus(groups)) is not None:
                finished[size.at, seed] = arms
    return finished


def _read_names(scaling: Scaling) -> dict[tuple[str, str], str]:
    """Hashes of a curve's published runs, by setting and seed."""
    tables = PUBLISHED.glob(f"*/{scaling.scale}/{provenance.RUNS_CSV}")
    lines = chain.from_iterable(map(provenance.runs_from_csv, tables))
    ours = (line for line in lines if line.kind.startswith(f"{scaling.id} "))
    return {(line.setting, line.seed): line.hash for line in ours}


def _select_one_corpus(groups: Mapping[str, Sequence[Run]]) -> Arms | None:
    """A run of each arm, all on one corpus; None if there are none."""
    candidates, *_ = groups.values()
    for run in candidates:
        fingerprint = run.config["fingerprint"]
        arms = {
            arm: next((r for r in group if r.config["fingerprint"] == fingerprint), None)
            for arm, group in groups.items()
        }
        if all(arms.values()):
            return cast(Arms, arms)
    return None


def _describe(config: Mapping[str, Any]) -> str:
    """A configuration without its corpus's fingerprint, wherever that stands."""
    return json.dumps(config, sort_keys=True).replace(f'"{config.get("fingerprint")}"', "")


def execute_missing(scaling: Scaling, store: Store, request: Request, device: str) -> Finished:
    """Execute the missing runs of a curve; returns all finished ones.

    The first seed of every size comes first, then the second: a budget that ends early leaves a
    curve over all sizes, with wider intervals.

    Raises:
        UserError: a corpus cannot be made.
        KeyboardInterrupt: stopped by the user or the budget; the same call resumes.
    """
    end_s = math.inf if request.budget_s is None else time.monotonic() + request.budget_s
    finished = dict(find_finished(scaling, store.runs(), device))
    rounds = zip_longest(*([(size, seed) for seed in size.seeds] for size in scaling.sizes))
    every = [pair for a_round in rounds for pair in a_round if pair]
    with Runner(store, request.jobs) as runner:
        for size, seed in every:
            if (size.at, seed) not in finished:
                if time.monotonic() >= end_s:
                    raise KeyboardInterrupt
                finished[size.at, seed] = _execute_seed(scaling, size, seed, runner, end_s, device)
    return finished


def _execute_seed(
    scaling: Scaling, size: SizePlan, seed: int, runner: Runner, end_s: float, device: str
) -> Arms:
    """The runs of one seed at one size, on a corpus that is made first."""

    def say(line: str) -> None:
        print(f"seed {seed}: {line}", file=sys.stderr, flush=True)

    def run_name(arm: str) -> str:
        return f"{scaling.id} at {size.at:g}, {arm}, seed {seed}"

    corpus = load_corpus(size.corpus, scale=scaling.scale, seed=seed, progress=say)
    configs = scaling.configs(Subject(scaling.scale, corpus, seed, device), seed, size)
    left_s = None if math.isinf(end_s) else max(end_s - time.monotonic(), 1.0)
    return runner.run(configs, run_name, left_s)


def main() -> int:
    """Publish a report, whole or of a curve; returns the exit code."""
    p = Parser(prog="reproductions.curve_runs", description="Publish a report, whole or a curve's.")
    p.add_argument("out", type=Path, help="folder of the report: whole, or of --only scaling")
    out = p.parse_args().out
    results = read_results(out / "results.json")
    folder = PUBLISHED / results.paper / results.scale
    print(f"{folder}: {publish(out, folder)} runs")
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(exit_code(main))
