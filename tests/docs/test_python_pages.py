"""The pages that the site makes from docstrings: what stands on them, and that it says enough."""

import ast
import inspect
import re
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

import lagbench
from harness.base import settings
from harness.simulator import cluster

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs/python").glob("*.md")), ROOT / "docs/run-files.md"]
SHOWN = [
    name
    for page in PAGES
    for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
]


def named(path):
    """What a line of a page names."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def test_every_name_of_the_package_is_on_one_page_once():
    ours = Counter(name.removeprefix("lagbench.") for name in SHOWN if name.startswith("lagbench."))
    assert ours == dict.fromkeys(lagbench.__all__, 1)


@pytest.mark.parametrize("path", SHOWN)
def test_every_line_names_something_with_words_of_its_own(path):
    found = named(path)
    if inspect.isclass(found) or inspect.isfunction(found):
        assert inspect.getdoc(found)


@pytest.mark.parametrize("path", [path for path in SHOWN if inspect.isfunction(named(path))])
def test_a_function_says_something_of_each_argument(path):
    told = inspect.getdoc(named(path)) or ""
    arguments = told.partition("\nArgs:\n")[2]
    for name in inspect.signature(inspect.unwrap(named(path))).parameters:
        assert re.search(rf"^    {name}: \S", arguments, re.MULTILINE), name


def test_a_docstring_on_a_page_has_its_examples_where_the_page_looks_for_them():
    """Under ``Example:`` mkdocstrings sees a remark, and its code as a quotation."""
    for path in SHOWN:
        found = named(path)
        members = vars(found).values() if inspect.isclass(found) else ()
        for each in (found, *members):
            assert "\nExample:\n" not in inspect.cleandoc(getattr(each, "__doc__", None) or "")


def test_the_pages_know_the_defaults_of_what_makes_settings():
    source = ast.parse((ROOT / "docs/settings_shown.py").read_text(encoding="utf-8"))
    (makers,) = (
        ast.literal_eval(node.value)
        for node in source.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "MAKERS"
    )
    signatures = {
        name: inspect.signature(made)
        for name, made in vars(settings).items()
        if inspect.isfunction(made) and made.__module__ == settings.__name__
    }
    for name, signature in signatures.items():
        if next(iter(signature.parameters)) != "default":
            continue
        default = signature.parameters["default"].default
        required = default is not None and not isinstance(default, int | float)
        assert makers.pop(name) == (None if required else repr(default))
    assert makers.pop("_interval") == repr(cluster._interval().default)
    assert makers == {}
