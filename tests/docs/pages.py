"""The blocks of a page, and how they are run: what a comment before a block says is done with it.

    <!-- run -->            a block of sh or of python, run in this process; sh are `lagbench`
                            commands, `python FILE`, and `pip install FOLDER` of a small package
    <!-- not run: why -->   one that is not
    <!-- file: NAME -->     one that is a file of the reader's folder
    <!-- output -->         what the block before printed, to the letter
    <!-- figures -->        the same where figures are of training: only lines and words are equal

A page is run from top to bottom in one folder, its python in one namespace.

    python -m tests.docs.pages docs/tutorial.md

runs a page and writes what it printed into it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.base import registry
from harness.base.errors import EXIT_DONE
from harness.cli import main as lagbench

ROOT = Path(__file__).parents[2]
LINKED = ("docs", "reproductions")
"""What a reader has in a folder who has cloned the project, and commands name."""
BLOCK = re.compile(
    r"(?:^<!-- (?P<told>[a-z ]+)(?:: (?P<rest>[^>]*?))? -->\n)?"
    r"^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """One block of code.

    Attributes:
        told: what the comment before it says is to be done with it; empty without one.
        rest: what follows its colon.
        language: of the block.
        text: its lines.
        span: where ``text`` stands in the page.
    """

    told: str
    rest: str
    language: str
    text: str
    span: tuple[int, int]


def blocks(page: str) -> list[Block]:
    """Every block of a page, from top to bottom."""
    return [
        Block(*(m["told"] or "", m["rest"] or "", m["language"], m["text"]), m.span("text"))
        for m in BLOCK.finditer(page)
    ]


def printed(page: str) -> Iterator[tuple[Block, str]]:
    """Run a page in the working folder; every block of output with what was printed for it."""
    names: dict[str, Any] = {"__name__": "page"}
    for name in LINKED:
        Path(name).symlink_to(ROOT / name)
    out = ""
    for block in blocks(page):
        if block.told == "file":
            Path(block.rest).write_text(block.text, encoding="utf-8")
        elif block.told == "run":
            out = _run(block, names)
        elif block.told in ("output", "figures"):
            yield block, out


def words(text: str) -> list[list[str]]:
    """What of a table of figures is the same on every machine: its lines without their numbers."""
    return [re.findall(r"[a-z_:]{3,}", line) for line in text.splitlines()]


def _run(block: Block, names: dict[str, Any]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()) as told:
        if block.language == "python":
            exec(compile(block.text, "page", "exec"), names)
        else:
            for line in block.text.replace("\\\n", " ").splitlines():
                _run_command(line, told)
    return out.getvalue()


def _run_command(line: str, told: io.StringIO) -> None:
    match shlex.split(line, comments=True) or ["lagbench", "--help"]:
        case "lagbench", *arguments:
            assert lagbench(arguments) == EXIT_DONE, f"{line}: {told.getvalue()}"
        case "python", script:
            with _find_modules_in(Path(script).parent):
                runpy.run_path(script, run_name="__main__")
        case "pip", "install", folder:
            install(Path(folder), Path.cwd())
        case _:
            raise AssertionError(f"{line}: no command that is run")


@contextlib.contextmanager
def _find_modules_in(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def install(package: Path, into: Path) -> None:
    """Put a package of single modules into a folder of ``sys.path``, as pip does.

    Args:
        package: the folder of its ``pyproject.toml``.
        into: the folder.
    """
    declared = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))
    project = declared["project"]
    for module in declared["tool"]["setuptools"]["py-modules"]:
        shutil.copy(package / f"{module}.py", into)
    info = into / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir()
    told = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(told, encoding="utf-8")
    points = "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in named.items())
        for group, named in project["entry-points"].items()
    )
    (info / "entry_points.txt").write_text(points, encoding="utf-8")
    registry.forget()


def renewed(page: str) -> str:
    """A page with what its blocks print today; to be called in an empty folder."""
    for block, out in reversed(list(printed(page))):
        begin, end = block.span
        page = page[:begin] + out.rstrip() + "\n" + page[end:]
    return page


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = ROOT / name
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            sys.path.insert(0, folder)
            registry.forget()
            path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
