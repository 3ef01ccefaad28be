"""From a paper and a subject to a judged report: execute, judge, write, draw."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import reports
from harness.bench.baseline import KEPT, latest
from harness.execution.jobs.display import Display
from harness.execution.jobs.grid import execute
from harness.identity import identity
from harness.judge.results import Claim, Exhibit, Results
from harness.store import Run, Store
from harness.store.atomic import replacing, write_bytes
from reports.bench import NAME
from reproductions.paper import Maker, Paper, Runs, Subject
from reproductions.readings import DidNotEnd, Unreadable

PACKAGES = ("lagbench", "torch", "numpy", "numba", "scipy", "matplotlib", "typst")


@dataclass(frozen=True)
class Request:
    """What the user asked for beyond the subject.

    Args:
        seeds: one run of every setting for each.
        only: exhibits to make; all if empty.
        jobs: processes.
        budget_s: stop starting and checkpoint after so long; None for no limit.
        out: where everything goes.
        submit: the batch system whose jobs the runs are; None for processes here.
    """

    seeds: tuple[int, ...]
    only: tuple[str, ...]
    jobs: int
    budget_s: float | None
    out: Path
    submit: str | None = None


def reproduce(paper: Paper, subject: Subject, request: Request) -> Results:
    """Run what is missing, judge, and make the report.

    Raises:
        UserError: bad input, or an output folder that cannot be written.
        KeyboardInterrupt: stopped by the user or the budget; the same request goes on.
    """
    started, clock = datetime.now(UTC), time.monotonic()
    exhibits, claims = paper.chosen(request.only, subject.scale)
    needed = {setting for maker in (*exhibits, *claims) for setting in maker.needs}
    before = {run.hash for run in Store(request.out / "runs").runs() if run.status == "done"}
    runs = _execute(paper, subject, request, needed)
    results = Results(
        paper.id,
        subject.scale,
        subject.corpus.name,
        request.seeds,
        {
            **_provenance(paper, subject, started, time.monotonic() - clock),
            **_work(runs, before),
            "divergence_asked_of": _asked((*exhibits, *claims), runs),
        },
        tuple(_timeline_kept(_exhibit(maker, subject, runs), request.out) for maker in exhibits),
        tuple(_claim(maker, subject, runs) for maker in claims),
    )
    _bench_page(request.out)
    reports.build(request.out, results)
    return results


def _bench_page(out: Path) -> None:
    """Give the report this machine's figures, if ``lagbench bench`` has measured them."""
    found = latest(KEPT)
    if found is not None:
        write_bytes(out / NAME, found.read_bytes())


def failures(out: Path, results: Results) -> list[str]:
    """One line for each run behind ``results`` that diverged or failed: which, where and why.

    Runs of which nothing is asked but whether they diverge are not among them.
    """
    store, asked = Store(out / "runs"), set(results.provenance.get("divergence_asked_of", ()))
    names: dict[str, str] = {}
    for setting, hashes in results.provenance["settings"].items():
        for hash_ in hashes:
            names.setdefault(hash_, setting)
    behind = [(setting, store.load(hash_)) for hash_, setting in names.items()]
    return [
        f"{results.paper}: {run.ending(_named(setting, run))}"
        for setting, run in behind
        if run.status != "done" and not (run.status == "diverged" and run.hash in asked)
    ]


def _asked(makers: Sequence[Maker[Any]], runs: Runs) -> list[str]:
    """Hashes of the runs that are only used where divergence is the question."""
    needed = {
        asked: {
            run.hash for m in makers if m.divergence == asked for s in m.needs for run in runs[s]
        }
        for asked in (True, False)
    }
    return sorted(needed[True] - needed[False])


def _execute(paper: Paper, subject: Subject, request: Request, needed: set[str]) -> Runs:
    """Finished runs of the needed settings, by setting, in the order of the seeds."""
    configs = {
        (setting, seed): config
        for seed in request.seeds
        for setting, config in paper.experiments(subject, seed).items()
        if setting in needed
    }
    hashes = {key: identity(config.to_dict()) for key, config in configs.items()}
    names: dict[str, list[str]] = {}
    for (setting, seed), name in hashes.items():
        names.setdefault(name, []).append(f"{setting} seed {seed}")
    titles = {name: " = ".join(labels) for name, labels in names.items()}
    with Display(titles) as display:
        runs = execute(
            list(configs.values()), request.out / "runs", request.jobs, display.show,
            budget_s=request.budget_s, submit=request.submit,
        )  # fmt: skip
    order = [name for name in dict.fromkeys(setting for setting, _ in configs) if name in needed]
    return {setting: [runs[hashes[setting, seed]] for seed in request.seeds] for setting in order}


def _exhibit(maker: Maker[Exhibit], subject: Subject, runs: Runs) -> Exhibit:
    """The exhibit, and a word of why if a run it needs did not end."""
    try:
        made = maker.make(subject, _readable(maker, runs))
    except DidNotEnd:
        made = Exhibit(maker.id, "table", maker.id)
    return replace(made, note=_explained(made.note, maker, runs))


def _claim(maker: Maker[Claim], subject: Subject, runs: Runs) -> Claim:
    """The claim; of parts whose runs did not all end, those that can be judged, and why not all."""
    try:
        made = maker.make(subject, _readable(maker, runs))
    except DidNotEnd:
        hashes = tuple(run.hash for setting in maker.needs for run in runs[setting])
        made = Claim(
            maker.id, (maker.make.__doc__ or maker.id).splitlines()[0], "", "", None, None, None,
            "undecided", hashes,
        )  # fmt: skip
    missing = [p.label for p in made.parts if p.measured is None and p.ci95 == (None, None)]
    return replace(made, note=_explained(made.note, maker, runs, missing))


def _sound(maker: Maker[Any], run: Run) -> bool:
    return run.status == "done" or (maker.divergence and run.status == "diverged")


def _readable(maker: Maker[Any], runs: Runs) -> Runs:
    """The runs that a maker needs; those that did not end can be named, and not read."""
    return {
        setting: [run if _sound(maker, run) else Unreadable.of(run) for run in runs[setting]]
        for setting in maker.needs
    }


def _explained(note: str, maker: Maker[Any], runs: Runs, missing: Sequence[str] = ()) -> str:
    """A note, and which runs did not end, so that something is missing."""
    broken = {
        run.ending(_named(setting, run)): None
        for setting in maker.needs
        for run in runs[setting]
        if not _sound(maker, run)
    }
    if not broken:
        return note
    what = f"Not measured: {', '.join(missing)}." if missing else ""
    return " ".join(filter(None, (note, what, f"{'; '.join(broken)}.")))


def _named(setting: str, run: Run) -> str:
    return f"{setting}, seed {run.config['seed']}" if "seed" in run.config else setting


def _timeline_kept(exhibit: Exhibit, out: Path) -> Exhibit:
    """Copy the timeline that an exhibit draws into ``out/timelines``."""
    file, run = exhibit.draw.get("file"), exhibit.draw.get("run")
    if file and run:
        target = out / str(file)
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as temporary:
            shutil.copyfile(out / "runs" / str(run) / "timeline.parquet", temporary)
    return exhibit


def _provenance(paper: Paper, subject: Subject, started: datetime, wall_s: float) -> dict[str, Any]:
    return {
        "reference": dict(paper.reference),
        "differences": paper.differences(subject),
        "git": _commit(),
        "versions": {"python": platform.python_version(), **{p: version(p) for p in PACKAGES}},
        "device": subject.device,
        "wall_s": round(wall_s, 1),
        "started": started.isoformat(timespec="seconds"),
        "command": " ".join(["python -m reproductions", *sys.argv[1:]]),
        "corpus_sha256": subject.corpus.fingerprint,
    }


def _work(runs: Runs, before: set[str]) -> dict[str, Any]:
    """Which runs each setting has, how long they took together, and how many were reused."""
    distinct = {run.hash: run for group in runs.values() for run in group}
    return {
        "settings": {name: [run.hash for run in group] for name, group in runs.items()},
        "runs_s": round(sum(run.provenance.get("wall_s", 0.0) for run in distinct.values()), 1),
        "reused": len(before & distinct.keys()),
    }


def _commit() -> str:
    """The commit of the source tree, or "unknown" where there is none."""
    try:
        git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
