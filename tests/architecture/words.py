"""Measure the names and prose of Python packages: participles, "who", comments, repeated names.

    python -m tests.architecture.words              # the project's packages below this folder
    python -m tests.architecture.words PATH ...     # other packages, such as site-packages/optax
    python -m tests.architecture.words --list       # with every hit: file, line, name or sentence
    python -m tests.architecture.words --json       # the figures alone

Standard library only. Tests, vendored code and generated files are left out.

What counts:

- **participle**: a function or method whose first word is a past participle (`executed`,
  `told_of`, `weighted_mean`). Dunders, properties, overloads and setters are not counted at all.
  Words that are also a base form (`read`, `set`, `put`, `run`, `split`) or usually a noun or an
  adjective of the field (`bound`, `ground`, `speed`, `left_context`) are not participles.
  *bare* is the participle alone, *linked* the participle with a preposition or an adverb
  (`left_to`, `read_by`), *before a noun* the rest (`weighted_mean`), which is often good English.
- **preposition**: a function whose name begins with a preposition or an adverb (`of_runs`, `at`,
  `in_blocks`, `by_fold`). The idioms `to_x`, `from_x`, `as_x` and `with_x`, and handlers of events,
  `on_x`, are not counted.
- **who**: a docstring, or a comment, with who, whose, whoever, nobody and their like. *people* are
  those without the ones whose only hit is "whose", which English also says of things.
- **clause**: a docstring that begins with what, who, whose, which, how, when, where: a clause in
  the place of a noun. One that begins with "Whether" is not counted: predicates say it rightly.
- **comment**: a line with a comment that is no directive and no licence header, among lines of code
  (neither blank, nor of a docstring, nor a comment alone).
- **docstring**: the string of a module, class or function, and one below an assignment.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PACKAGES = ("harness", "lagbench", "reproductions", "data_synth", "reports")
LEFT_OUT = {"tests", "test", "testing", "vendor", "__pycache__", "published", "out", "examples"}

LISTS = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
WORDS = {name: set(words.split()) for name, words in LISTS.items()}
NOT_PARTICIPLES = WORDS["not_participles"]
IRREGULAR = WORDS["irregular"]
PREFIXES = ("un", "re", "pre", "over", "under", "fore", "mis", "out", "with", "inter")
LEFT_IS_A_SIDE = WORDS["left_is_a_side"]
LINKS = WORDS["links"]
PREPOSITIONS = WORDS["prepositions"]
WHO = re.compile(
    r"\b(who|whose|whom|whoever|whomever|nobody|somebody|anybody|everybody|no one|someone|anyone|"
    r"everyone)\b",
    re.IGNORECASE,
)
CLAUSE = re.compile(r"^(what|who|whose|whom|whoever|whatever|how|when|where|which|why)\b", re.I)
DIRECTIVE = re.compile(
    r"#\s*(noqa|type:|pyright:|pylint:|mypy:|ruff:|pragma|fmt:|isort:|flake8|!|-\*-|nosec|%%|"
    r"pytype:|codespell|cspell|coding[:=]|numpydoc)",
    re.IGNORECASE,
)
LICENCE = re.compile(r"copyright|licen[cs]e|all rights reserved|spdx", re.IGNORECASE)


@dataclass(frozen=True)
class Hit:
    """One place that a figure counts."""

    kind: str
    path: str
    line: int
    text: str


@dataclass
class Figures:
    """What is measured of one package, or of several together."""

    modules: int = 0
    lines: int = 0
    code_lines: int = 0
    comment_lines: int = 0
    functions: int = 0
    bare: int = 0
    linked: int = 0
    before_noun: int = 0
    prepositions: int = 0
    classes: int = 0
    participle_classes: int = 0
    lone_comment_lines: int = 0
    docstrings: int = 0
    who_docstrings: int = 0
    people_docstrings: int = 0
    who_comments: int = 0
    clause_docstrings: int = 0
    first_sentences: int = 0
    first_sentence_words: int = 0
    long_modules: int = 0
    silent_modules: int = 0
    first_words: Counter[str] = field(default_factory=Counter)
    names: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    hits: list[Hit] = field(default_factory=list)

    @property
    def participles(self) -> int:
        """Functions that begin with a participle."""
        return self.bare + self.linked + self.before_noun

    def repeated(self) -> dict[str, list[str]]:
        """Base names of files that occur more than once, with their folders."""
        return {name: found for name, found in sorted(self.places.items()) if len(found) > 1}

    def rows(self) -> dict[str, float]:
        """The figures by their titles."""
        return {
            "modules": self.modules,
            "lines": self.lines,
            "functions and methods": self.functions,
            "participle first, %": share(self.participles, self.functions),
            "  bare (told), %": share(self.bare, self.functions),
            "  linked (left_to), %": share(self.linked, self.functions),
            "  before a noun (weighted_mean), %": share(self.before_noun, self.functions),
            "preposition first (of_runs, at), %": share(self.prepositions, self.functions),
            "classes": self.classes,
            "  participle first, %": share(self.participle_classes, self.classes),
            "docstrings": self.docstrings,
            "docstrings with who, whose, nobody": self.who_docstrings,
            "  per hundred docstrings": share(self.who_docstrings, self.docstrings),
            "  without those with 'whose' alone": self.people_docstrings,
            "comments with who, whose, nobody": self.who_comments,
            "docstrings that begin with what, who, how, %": share(
                self.clause_docstrings, self.docstrings
            ),
            "words in the first sentence, mean": ratio(
                self.first_sentence_words, self.first_sentences
            ),
            "comment lines per 100 lines of code": share(self.comment_lines, self.code_lines),
            "comment lines per 100 lines": share(self.comment_lines, self.lines),
            "  those of comment alone": share(self.lone_comment_lines, self.lines),
            "modules over 60 lines": self.long_modules,
            "  without a comment": self.silent_modules,
            "  without a comment, %": share(self.silent_modules, self.long_modules),
            "file names that occur more than once": len(self.repeated()),
        }


def share(part: int, whole: int) -> float:
    """``part`` of ``whole`` in per cent."""
    return round(100 * part / whole, 1) if whole else 0.0


def ratio(part: int, whole: int) -> float:
    """``part`` by ``whole``, with one decimal."""
    return round(part / whole, 1) if whole else 0.0


def is_participle(word: str, following: str = "") -> bool:
    """Whether a word is a past participle and nothing else, as far as a list can tell."""
    if word == "left" and following in LEFT_IS_A_SIDE:
        return False
    if word in NOT_PARTICIPLES:
        return False
    if word in IRREGULAR:
        return True
    for prefix in PREFIXES:
        if word.startswith(prefix) and word[len(prefix) :] in IRREGULAR:
            return True
    return len(word) > 3 and word.endswith("ed") and not word.endswith("eed")


def participle_kind(name: str) -> str | None:
    """`bare`, `linked` or `before_noun` if a function's name begins with a participle."""
    words = [word for word in name.lower().strip("_").split("_") if word]
    if not words or not is_participle(words[0], words[1] if len(words) > 1 else ""):
        return None
    if len(words) == 1:
        return "bare"
    if words[:2] == ["held", "out"]:  # held-out data: the field's term
        return "before_noun"
    return "linked" if words[1] in LINKS else "before_noun"


def has_preposition_first(name: str) -> bool:
    """Whether a name begins with a preposition, idioms of Python and handlers of events apart."""
    first, *rest = name.lower().strip("_").split("_")
    return first in PREPOSITIONS and not (first == "on" and rest)


def class_words(name: str) -> list[str]:
    """`HeldOut` as `held`, `out`."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)]


def decorators(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """The last words of a function's decorators: `property` of `@functools.cached_property`."""
    found: set[str] = set()
    for item in node.decorator_list:
        target = item.func if isinstance(item, ast.Call) else item
        if isinstance(target, ast.Attribute):
            found.add(target.attr)
        elif isinstance(target, ast.Name):
            found.add(target.id)
    return found


def functions_of(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions and methods whose name is free: no dunders, properties, setters, overloads."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.name.startswith("__") and node.name.endswith("__"):
            continue
        marks = decorators(node)
        if any("property" in mark for mark in marks) or marks & {"setter", "deleter", "overload"}:
            continue
        yield node


def docstrings_of(tree: ast.AST) -> Iterator[tuple[ast.Constant, str]]:
    """Strings that stand as a statement: of modules, classes and functions, and below values."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for item in body:
            if (
                isinstance(item, ast.Expr)
                and isinstance(item.value, ast.Constant)
                and isinstance(item.value.value, str)
            ):
                yield item.value, item.value.value


def first_sentence(text: str) -> str:
    """Up to the first full stop, colon of a block or empty line."""
    paragraph = re.split(r"\n\s*\n", text.strip(), maxsplit=1)[0]
    flat = re.sub(r"\s+", " ", paragraph)
    return re.split(r"(?<=[.!?])\s+(?=[A-Z`\"'(\[])", flat, maxsplit=1)[0]


def comments_of(source: str) -> list[tuple[int, str]]:
    """Comments by line, without directives and without the licence that a file begins with."""
    found: list[tuple[int, str]] = []
    header: list[tuple[int, str]] = []
    begun = False
    quiet = {tokenize.NL, tokenize.NEWLINE, tokenize.ENCODING, tokenize.INDENT, tokenize.DEDENT}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if not DIRECTIVE.match(token.string):
                (found if begun else header).append((token.start[0], token.string))
        elif token.type not in quiet:
            begun = True
    if not LICENCE.search(" ".join(text for _, text in header)):
        found = header + found
    return [item for item in found if len(item[1].strip("#-= ")) > 1]


def code_lines_of(source: str, tree: ast.AST) -> int:
    """Lines with a token of code: no blank ones, comments or docstrings."""
    of_docstrings: set[int] = set()
    for node, _ in docstrings_of(tree):
        of_docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    quiet = {tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT}
    quiet |= {tokenize.ENCODING, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in quiet:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - of_docstrings)


def is_counted(path: Path, root: Path) -> bool:
    """Whether a file is of the product: no test, no vendored or generated code."""
    if set(path.relative_to(root).parts[:-1]) & LEFT_OUT:
        return False
    name = path.stem
    return not (name.startswith("test_") or name.endswith("_test") or name == "conftest")


def measure(path: Path, shown: str, figures: Figures) -> None:
    """Add one file to ``figures``."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    lines = len(source.splitlines())
    comments = comments_of(source)
    figures.modules += 1
    figures.lines += lines
    figures.code_lines += code_lines_of(source, tree)
    figures.comment_lines += len({line for line, _ in comments})
    text = source.splitlines()
    figures.lone_comment_lines += sum(text[at - 1].lstrip()[:1] == "#" for at, _ in comments)
    if lines > 60:
        figures.long_modules += 1
        if not comments:
            figures.silent_modules += 1
            figures.hits.append(Hit("silent module", shown, lines, f"{lines} lines"))
    if path.stem not in {"__init__", "__main__"}:
        figures.places[path.name].append(str(Path(shown).parent))
    for node in functions_of(tree):
        figures.functions += 1
        kind = participle_kind(node.name)
        if kind:
            setattr(figures, kind, getattr(figures, kind) + 1)
            figures.first_words[node.name.strip("_").split("_")[0]] += 1
            figures.names[node.name] += 1
            figures.hits.append(Hit(f"participle {kind}", shown, node.lineno, node.name))
        if has_preposition_first(node.name):
            figures.prepositions += 1
            figures.hits.append(Hit("preposition", shown, node.lineno, node.name))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            figures.classes += 1
            first, *rest = class_words(node.name) or [""]
            if is_participle(first, rest[0] if rest else ""):
                figures.participle_classes += 1
                figures.hits.append(Hit("participle class", shown, node.lineno, node.name))
    for node, text in docstrings_of(tree):
        figures.docstrings += 1
        sentence = first_sentence(text)
        figures.first_sentences += 1
        figures.first_sentence_words += len(sentence.split())
        if CLAUSE.match(sentence):
            figures.clause_docstrings += 1
            figures.hits.append(Hit("clause", shown, node.lineno, sentence))
        words = {word.lower() for word in WHO.findall(text)}
        if words:
            figures.who_docstrings += 1
            figures.people_docstrings += words != {"whose"}
            figures.hits.append(Hit("who", shown, node.lineno, re.sub(r"\s+", " ", text.strip())))
    for line, text in comments:
        if WHO.search(text):
            figures.who_comments += 1
            figures.hits.append(Hit("who in a comment", shown, line, text))


def measured(roots: list[Path]) -> dict[str, Figures]:
    """Figures of each package, and of all together under `all`."""
    found = {"all": Figures()}
    for root in roots:
        figures = found.setdefault(root.name, Figures())
        for path in sorted(root.rglob("*.py")):
            if is_counted(path, root):
                shown = str(Path(root.name) / path.relative_to(root))
                for target in (found["all"], figures):
                    measure(path, shown, target)
    if len(found) == 2:
        del found["all"]
    return found


def print_table(found: dict[str, Figures]) -> None:
    """One column a package, one line a figure."""
    titles = list(next(iter(found.values())).rows())
    width = max(len(title) for title in titles)
    columns = {name: max(len(name), 8) for name in found}
    print(" " * width, *(f"{name:>{wide}}" for name, wide in columns.items()))
    rows = {name: figures.rows() for name, figures in found.items()}
    for title in titles:
        cells = (f"{rows[name][title]:>{wide}g}" for name, wide in columns.items())
        print(f"{title:<{width}}", *cells)


def print_top(figures: Figures, count: int) -> None:
    """The participles that begin most names, and the names that occur most."""
    print(f"\nparticiples by how many names they begin (first {count}):")
    print("  " + ", ".join(f"{word} {n}" for word, n in figures.first_words.most_common(count)))
    print(f"\nnames by how many functions have them (first {count}):")
    print("  " + ", ".join(f"{name} {n}" for name, n in figures.names.most_common(count)))
    print("\nfile names that occur more than once:")
    for name, folders in figures.repeated().items():
        print(f"  {name} {len(folders)}: {', '.join(folders)}")


def main() -> int:
    """Print the figures; with `--list` what they count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, help="packages; default: the project's")
    parser.add_argument("--list", action="store_true", help="every hit")
    parser.add_argument("--top", type=int, default=0, help="the N commonest participles and names")
    parser.add_argument("--json", action="store_true", help="figures alone, as JSON")
    arguments = parser.parse_args()
    roots = arguments.paths or [Path(name) for name in PACKAGES if Path(name).is_dir()]
    if not roots:
        print("no packages here: run it from the project's root, or name folders", file=sys.stderr)
        return 2
    found = measured(roots)
    if arguments.json:
        print(json.dumps({name: figures.rows() for name, figures in found.items()}, indent=1))
        return 0
    print_table(found)
    whole = found.get("all") or next(iter(found.values()))
    if arguments.top or arguments.list:
        print_top(whole, arguments.top or 100)
    if arguments.list:
        for hit in sorted(whole.hits, key=lambda hit: (hit.kind, hit.path, hit.line)):
            print(f"{hit.kind:<24} {hit.path}:{hit.line}: {hit.text[:200]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
