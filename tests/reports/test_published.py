"""Files that rebuild the published reports are included, and the reports match them."""

import json
import subprocess
from pathlib import Path

import pytest

from harness.judge.results import read_results
from harness.store import Store, schema, verify_run
from harness.store.archive import ARCHIVE, read_archive
from reports import provenance, written
from reports.provenance import cited_runs, source_digests

PUBLISHED = Path("reports/published")
FOLDERS = sorted(path.parent for path in PUBLISHED.glob("*/*/results.json"))
each_published = pytest.mark.parametrize(
    "folder", FOLDERS, ids=lambda folder: "-".join(folder.parts[-2:])
)


def git(*arguments):
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def history():
    """Whether a commit is in this project's history; skips where nobody can know."""
    try:
        shallow = git("rev-parse", "--is-shallow-repository").stdout.strip()
    except OSError:
        pytest.skip("git is not installed")
    if shallow != "false":
        pytest.skip("a shallow clone lacks history" if shallow else "not a clone: no history")
    return lambda commit: git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0


@each_published
def test_the_commit_that_made_published_results_is_in_the_history(folder, history):
    results = json.loads((folder / "results.json").read_text())
    assert history(results["provenance"]["git"]), "made from changed files, or by a lost commit"


@pytest.mark.sampled(3)
@each_published
def test_a_published_pdf_is_made_from_the_files_beside_it(folder):
    """After a change: ``lagbench report FOLDER``."""
    pdf = (folder / "report.pdf").read_bytes()
    for name, digest in source_digests(folder):
        assert f"{name} sha256:{digest}".encode() in pdf, name


def test_a_commit_that_was_never_made_is_not_in_the_history(history):
    assert not history("0" * 40)
    assert not history("0123abc-dirty")
    assert history("HEAD")


@pytest.mark.sampled(4)
@each_published
def test_runs_reasons_and_timelines_are_published_with_the_results(folder):
    results = read_results(folder / "results.json")
    found = {line.hash for line in provenance.runs_from_csv(folder / provenance.RUNS_CSV)}
    assert cited_runs(results) <= found
    to_explain = {claim.id for claim in results.claims if written.needs_reason(claim)}
    assert written.read_reasons(folder, results).keys() >= to_explain
    for exhibit in results.exhibits:
        assert "file" not in exhibit.draw or (folder / exhibit.draw["file"]).is_file()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("archive", sorted(PUBLISHED.glob(f"*/*/{ARCHIVE}")), ids=str)
def test_archived_runs_are_light_and_whole_and_name_no_machine(archive, tmp_path):
    store = Store(tmp_path)
    read_archive(archive, store)
    runs = store.runs()
    results = read_results(archive.with_name("results.json"))
    assert cited_runs(results) <= {run.hash for run in runs}
    for run in runs:
        assert verify_run(run).status in ("done", "diverged")
        assert not schema.LARGE & {path.name for path in run.dir.iterdir()}
        names = (schema.CONFIG, schema.PROVENANCE, schema.RUN)
        told = b"".join((run.dir / name).read_bytes() for name in names)
        assert not [word for word in (b"/home/", b"/tmp/", b"/root/", b"/work/") if word in told]


def test_archives_are_small():
    assert sum(path.stat().st_size for path in PUBLISHED.glob(f"*/*/{ARCHIVE}")) < 6e6
