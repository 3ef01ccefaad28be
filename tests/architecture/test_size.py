"""The house only shrinks: lines of code, of tests and words of documents have bounds.

A line of code is neither blank, nor in a docstring, nor only a comment. Lower a bound when a change
has made room; what a change adds must give something back.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("harness", "lagbench", "reproductions", "data_synth", "reports")
MOST_LINES_OF_PRODUCT = 38_613
MOST_LINES_OF_TESTS = 35_450
MOST_WORDS_OF_DOCUMENTS = 45_680


def count_lines(source: str) -> int:
    """Number of lines of code of a module."""
    prose: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                prose.update(range(node.lineno, node.end_lineno + 1))
    return sum(
        bool(line.strip()) and not line.lstrip().startswith("#") and number not in prose
        for number, line in enumerate(source.splitlines(), 1)
    )


def files(folder: str, suffix: str) -> Iterator[Path]:
    """Files of a folder, without hidden folders and what runs have left there."""
    for path in (ROOT / folder).rglob(f"*{suffix}"):
        parts = path.relative_to(ROOT).parts
        if not any(part.startswith(".") or part in ("site", "out", "build") for part in parts):
            yield path


def lines_of(*folders: str) -> int:
    return sum(
        count_lines(path.read_text(encoding="utf-8"))
        for folder in folders
        for path in files(folder, ".py")
    )


def test_the_product_does_not_grow():
    assert lines_of(*PRODUCT) <= MOST_LINES_OF_PRODUCT


def test_the_tests_do_not_grow():
    assert lines_of("tests") <= MOST_LINES_OF_TESTS


def test_the_documents_do_not_grow():
    pages = [
        *ROOT.glob("*.md"),
        *(p for f in ("docs", *PRODUCT, ".github") for p in files(f, ".md")),
    ]
    words = sum(len(re.findall(r"\S+", page.read_text(encoding="utf-8"))) for page in pages)
    assert words <= MOST_WORDS_OF_DOCUMENTS


def test_a_line_of_code_is_no_docstring_and_no_comment():
    source = '"""A docstring."""\n\nx = 1  # why\n# a comment\ny = """two\nlines"""\n'
    assert count_lines(source) == 3
