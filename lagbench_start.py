"""Where every command begins: are the packages that it is made of ours?

Other distributions have packages of the same names, and a file ``reports.py`` in the folder where
somebody works would be taken for one of them. The name of this module is ours alone, and it needs
nothing but the standard library, so it can say so in one line.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

__all__ = ["PACKAGES", "begin", "main", "shadow"]

PACKAGES = ("lagbench", "harness", "reproductions", "data_synth", "reports")
ROOT = Path(__file__).resolve().parent
EXIT_BAD_INPUT, EXIT_INTERRUPTED = 2, 130


def main() -> int:
    """The `lagbench` command; returns its exit code."""
    return begin("harness.cli")


def begin(module: str) -> int:
    """Run the ``main`` of a module of ours, if what it will import is ours.

    Args:
        module: its full name.

    Returns:
        The exit code; 2 after one line on stderr where something shadows a package, 130 after one
        where a user does not wait for what is imported.
    """
    _leave_working_folder()
    for name in PACKAGES:
        told = shadow(name)
        if told is not None:
            print(f"error: {told}", file=sys.stderr)
            return EXIT_BAD_INPUT
    return _run(module)


def _run(module: str) -> int:
    from harness.base import forks

    forks.listen()
    try:
        return int(import_module(module).main())
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    finally:
        forks.ignore()


def _leave_working_folder() -> None:
    """What ``python -P`` does: nothing is imported from where a user works, nor by children.

    A checkout that is not installed is found there and nowhere else; then it stays.
    """
    if sys.flags.safe_path or not sys.path:
        return
    if any(Path(place).resolve() == ROOT for place in sys.path[1:] if place):
        del sys.path[0]
        os.environ["PYTHONSAFEPATH"] = "1"


def shadow(name: str) -> str | None:
    """What would be imported in place of a package of ours; None if it is ours.

    Args:
        name: of the package.
    """
    own = ROOT / name / "__init__.py"
    spec = find_spec(name)
    found = None if spec is None else spec.origin
    if found is None:
        return f"{name}: {own} is missing; needed: lagbench installed again"
    if Path(found).resolve() != own:
        return f"{name}: {found} shadows lagbench's own; allowed: rename, move or uninstall it"
    if _digest(own) != _recorded().get(f"{name}/__init__.py", _digest(own)):
        again = "uninstall that, and install lagbench again"
        return f"{name}: another distribution has written over {own}; allowed: {again}"
    return None


def _recorded() -> dict[str, str]:
    """Digests of the files of a wheel as it was installed; of a checkout none."""
    for record in ROOT.glob("lagbench-*.dist-info/RECORD"):
        with record.open(encoding="utf-8", newline="") as file:
            return {path: digest for path, digest, _ in csv.reader(file)}
    return {}


def _digest(path: Path) -> str:
    """As wheels have it."""
    found = hashlib.sha256(path.read_bytes()).digest()
    return f"sha256={base64.urlsafe_b64encode(found).rstrip(b'=').decode()}"
