"""Generated parts of the reference pages, between markers or as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from harness.reference.commands import commands
from harness.reference.keys import device_table, markdown, run_file_keys
from harness.reference.results_schema import results_schema
from harness.simulator.cluster import Cluster, catalogue

__all__ = ["PAGES", "cluster_page", "render_page"]


def replace_parts(page: str, parts: Mapping[str, str]) -> str:
    """Replace each named part of a page between its own markers."""
    for name, content in parts.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        head, _, rest = page.partition(begin)
        _, _, tail = rest.partition(end)
        page = f"{head}{begin}\n{content}\n{end}{tail}"
    return page


def cluster_page(page: str) -> str:
    """``docs/clusters.md`` with its generated parts."""
    return replace_parts(page, {"keys": markdown(Cluster), "devices": device_table(catalogue())})


def command_page(page: str) -> str:
    """``docs/cli.md`` with its generated part."""
    return replace_parts(page, {"commands": commands()})


def run_file_page(page: str) -> str:
    """``docs/run-files.md`` with its generated part."""
    return replace_parts(page, {"keys": run_file_keys()})


PAGES: dict[str, Callable[[str], str]] = {
    "docs/clusters.md": cluster_page,
    "docs/run-files.md": run_file_page,
    "docs/cli.md": command_page,
    "docs/results.schema.json": lambda page: results_schema(),
}
"""Functions from the present text of each page to the regenerated one."""


def render_page(name: str, page: str) -> str:
    """Regenerate a page.

    Args:
        name: a key of `PAGES`.
        page: the page's present text.
    """
    return PAGES[name](page)
