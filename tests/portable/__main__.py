"""``tox -e portable``: the numerics' tests under every setting, and what each setting changes."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

from tests.portable.settings import DEFAULT, SET, SETTINGS, TESTS, THREADS, Setting

ROOT = Path(__file__).parents[2]
TRAINS = {
    "paper1": {"training"},
    "paper2": {"training", "natural gradient"},
    "paper3": {"training", "sequence"},
}
"""The probes of what a paper trains with."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 if anything failed under any setting, 2 for a setting that does not exist."""
    p = argparse.ArgumentParser(prog="tox -e portable --", description=__doc__)
    p.add_argument("--only", action="append", metavar="SETTING", help="this one (repeatable)")
    p.add_argument("--smoke", choices=TRAINS, help="reproduce a paper at smoke scale instead")
    p.add_argument("--list", action="store_true", help="print the settings")
    p.add_argument("tests", nargs="*", help="other tests than the numerics'")
    options = p.parse_args(arguments)
    names = [setting.name for setting in SETTINGS]
    if unknown := set(options.only or ()) - set(names):
        p.error(f"--only: no setting {sorted(unknown)}; allowed: {', '.join(names)}")
    if options.list:
        print("\n".join(names))
        return 0
    chosen = [s for s in SETTINGS if not options.only or s.name in options.only]
    rows = _smokes(options.smoke, chosen) if options.smoke else _tests(options.tests, chosen)
    return int(any(list(rows)))  # a list: all of them, whatever failed


def _tests(tests: Sequence[str], settings: Sequence[Setting]) -> Iterator[bool]:
    """Print a row for each setting, and give whether a test failed."""
    usual = _probed(DEFAULT)
    _row("setting", "passed", "failed", "skipped", "seconds", "last bits that differ")
    for setting in settings:
        changed, began = _changed(setting, usual), time.monotonic()
        passed, failed, skipped = _pytest(setting, tests or TESTS)
        seconds = f"{time.monotonic() - began:.0f}"
        _row(setting.name, passed, failed, skipped, seconds, ", ".join(changed) or "none")
        yield failed > 0


def _smokes(paper: str, settings: Sequence[Setting]) -> Iterator[bool]:
    """Reproduce a paper under every setting that changes training, and under the default."""
    usual = _probed(DEFAULT)
    _row("setting", "exit", "", "", "seconds", f"{paper} at smoke scale")
    for setting in settings:
        if setting is not DEFAULT and TRAINS[paper].isdisjoint(_changed(setting, usual)):
            _row(setting.name, "-", "", "", "", "training's bytes are the default's")
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as out:
            command = ["reproductions", paper, "--scale", "smoke", "--out", out]
            done = _python(setting, ["tests.portable.flipped", *command])
        seconds = f"{time.monotonic() - began:.0f}"
        _row(setting.name, done.returncode, "", "", seconds, _last_line(done))
        yield done.returncode != 0


def _probed(setting: Setting) -> dict[str, str]:
    """The hash of every probe under a setting."""
    done = _python(setting, ["tests.portable.probes"])
    if done.returncode:
        raise SystemExit(f"{setting.name}: the probes end with\n{done.stderr}")
    return json.loads(done.stdout)


def _changed(setting: Setting, usual: dict[str, str]) -> list[str]:
    return [name for name, found in _probed(setting).items() if found != usual[name]]


def _pytest(setting: Setting, tests: Sequence[str]) -> tuple[int, int, int]:
    """Passed, failed and skipped; what failed is printed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        # Threads that wait for a core that others hold take ten times as long.
        processes = (os.cpu_count() or 1) // int(setting.environment.get("OMP_NUM_THREADS", 1))
        spread = ["-p", "no:cacheprovider", "-n", str(max(1, processes)), f"--junitxml={report}"]
        done = _python(setting, ["pytest", "-q", *spread, *tests])
        if done.returncode not in (0, 1):
            raise SystemExit(f"{setting.name}: pytest ends with {done.returncode}\n{done.stdout}")
        if done.returncode:
            print(done.stdout, file=sys.stderr)
        (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
    count = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    failed = count["failures"] + count["errors"]
    return count["tests"] - failed - count["skipped"], failed, count["skipped"]


def _python(setting: Setting, module: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *module],
        cwd=ROOT,
        env=_environment(setting),
        capture_output=True,
        text=True,
        check=False,
    )


def _environment(setting: Setting) -> dict[str, str]:
    """A process's: nothing that any setting sets but what this one does."""
    own = {name: value for name, value in os.environ.items() if name not in SET}
    return own | dict.fromkeys(THREADS, "1") | dict(setting.environment)


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr if done.returncode else done.stdout).strip().splitlines()
    return lines[-1] if lines else ""


def _row(name: str, *cells: object) -> None:
    *numbers, said = cells
    print(f"{name:34}", *(f"{cell!s:>8}" for cell in numbers), f" {said}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
