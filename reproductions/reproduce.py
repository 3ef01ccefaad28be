"""A paper reproduced: its runs executed, its exhibits and claims made of them, its report built."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import reports
from harness.experiment.contract import Configuration
from harness.experiment.run import Runner
from harness.judge import comparison
from harness.judge.builders import ASKED, Maker, Runs, build_claim, build_exhibit, divergence_hashes
from harness.judge.parts import LOOKS, correct_verdicts
from harness.judge.results import Exhibit, Results, read_results
from harness.store import Run, Store
from harness.store.schema import TIMELINE
from reports import PUBLISHED, provenance
from reproductions.curve_runs import Request, describe_facts, describe_moment, find_curves
from reproductions.paper import NO_CORPUS, Paper, Subject

TAKEN = "From the published report: its runs were not made again, which --all does."
"""Begins the note of an exhibit that a report takes from the published one."""


def reproduce(paper: Paper, subject: Subject, request: Request) -> Results:
    """Run the missing runs, judge the claims, and build the report.

    Raises:
        UserError: bad input, or an output folder that cannot be written.
        KeyboardInterrupt: stopped by the user or the budget; the same request resumes.
    """
    started = datetime.now(UTC)
    exhibits, claims = paper.select_makers(request.only, subject.scale, request.everything)
    makers = (*exhibits, *claims)
    store = request.store
    before = {run.hash for run in store.runs() if store.has(run.hash)}
    runs = _execute_runs(paper, subject, request, makers)
    looks = paper.looks.get(subject.scale, 1)
    left_out = () if request.only else [each for each in paper.exhibits if each not in exhibits]
    published = find_published(paper, subject, left_out)
    is_whole = subject.corpus.name == paper.corpus and not request.only
    curves = find_curves(paper, subject.scale, store) if is_whole else ()
    program = comparison.describe_program(_program())
    facts = describe_facts(paper, subject.device, program, started, runs, before) | {
        "differences": [
            {"what": thing, "paper": printed, "here": ours}
            for thing, printed, ours in paper.differences(subject)
        ],
        **({LOOKS: looks} if looks > 1 else {}),
        provenance.PLANNED: paper.seeds[subject.scale],
        "corpora": _fingerprints(subject, request.seeds),
        ASKED: divergence_hashes(makers, runs),
    }
    judged = paper.conditions.ask([build_claim(maker, subject, runs) for maker in claims])
    if paper.registration:
        judged = paper.registration.arrange(judged, [maker.id for maker in paper.claims])
    results = Results(
        paper.id, subject.scale, subject.corpus.name, request.seeds, facts,
        (*curves, *(build_exhibit(maker, subject, runs) for maker in exhibits), *published),
        correct_verdicts(judged, looks),
    )  # fmt: skip
    reports.build(request.out, results)
    return results


def find_published(
    paper: Paper, subject: Subject, makers: Sequence[Maker[Subject, Exhibit]]
) -> tuple[Exhibit, ...]:
    """The published exhibits of makers at the scale and on the kind of corpus.

    Args:
        paper: the paper.
        subject: the scale and the corpus.
        makers: those that are not made; one that waits for no request at this scale has no
            published exhibit to show.
    """
    path = PUBLISHED / paper.id / subject.scale / "results.json"
    if not path.exists() or (results := read_results(path)).corpus != subject.corpus.name:
        return ()
    requested = {maker.id for maker in makers if subject.scale in maker.on_request}
    # The published report may have the line from the one before it.
    return tuple(
        replace(exhibit, note=f"{TAKEN} {exhibit.note.removeprefix(TAKEN).strip()}".rstrip())
        for exhibit in results.exhibits
        if exhibit.id in requested
    )


def _execute_runs(
    paper: Paper, subject: Subject, request: Request, makers: Sequence[Maker[Subject, Any]]
) -> Runs:
    """Finished runs of the settings that are needed, by setting, in the order of the seeds."""
    needed = {setting for maker in makers for setting in maker.needs}
    configs = {
        (setting, seed): config
        for seed in request.seeds
        for setting, config in paper.experiments(subject.replicate(seed), seed).items()
        if setting in needed
    }

    def run_name(key: tuple[str, int]) -> str:
        setting, seed = key
        return f"{setting} seed {configs[key].to_dict().get('seed', seed)}"  # development's own

    def execute_configs(
        configs: Mapping[tuple[str, int], Configuration], store: Store
    ) -> dict[tuple[str, int], Run]:
        left_s = None if end_s is None else end_s - time.monotonic()
        with Runner(store, request.jobs, request.submit) as runner:
            return runner.run(configs, run_name, left_s)

    end_s = None if request.budget_s is None else time.monotonic() + request.budget_s
    store = request.store.under(describe_moment(paper.registration))
    runs = execute_configs(configs, store)
    pictured = {
        (setting, seed)
        for maker in makers
        for setting in maker.needs
        for place, seed in enumerate(request.seeds)
        if place < maker.timelines
    }
    light = {k: configs[k] for k, run in runs.items() if k in pictured and run.without([TIMELINE])}
    if light:
        runs |= execute_configs(light, store.needing(TIMELINE))
    return {
        setting: [runs[setting, seed] for seed in request.seeds]
        for setting in dict.fromkeys(setting for setting, _ in configs)
    }


def _fingerprints(subject: Subject, seeds: Sequence[int]) -> dict[str, str]:
    """SHA-256 of each seed's corpus; of the one they share, if it was recorded."""
    if subject.corpus.name == NO_CORPUS:
        return {}
    if subject.made is None:
        return {"recorded": subject.corpus.fingerprint}
    return {str(seed): subject.replicate(seed).corpus.fingerprint for seed in seeds}


def _program() -> str:
    """Name of the running program; `lagbench reproduce` has its own name among its arguments."""
    return "lagbench" if sys.argv[1:2] == ["reproduce"] else "python -m reproductions"
