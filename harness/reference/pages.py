"""Which page has which part from the code, between markers or as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from harness.reference.commands import commands
from harness.reference.keys import device_table, markdown, run_file_keys
from harness.reference.results_schema import results_schema
from harness.simulator.cluster import Cluster, catalogue

__all__ = ["PAGES", "cluster_page", "render_page"]


def replace_parts(page: str, parts: Mapping[str, str]) -> str:
    """A page with each named part between its own markers."""
    for name, content in parts.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        head, _, rest = page.partition(begin)
        _, _, tail = rest.partition(end)
        page = f"{head}{begin}\n{content}\n{end}{tail}"
    return page


def cluster_page(page: str) -> str:
    """``docs/clusters.md`` as it should be."""
    return replace_parts(page, {"keys": markdown(Cluster), "devices": device_table(catalogue())})


def command_page(page: str) -> str:
    """``docs/cli.md`` as it should be."""
    return replace_parts(page, {"commands": commands()})


def run_file_page(page: str) -> str:
    """``docs/run-files.md`` as it should be."""
    return replace_parts(page, {"keys": run_file_keys()})


PAGES: dict[str, Callable[[str], str]] = {
    "docs/clusters.md": cluster_page,
    "docs/run-files.md": run_file_page,
    "docs/cli.md": command_page,
    "docs/results.schema.json": lambda page: results_schema(),
}
"""What makes each page from itself."""


def render_page(name: str, page: str) -> str:
    """A page with what comes from the code renewed.

    Args:
        name: of a page of `PAGES`.
        page: its present text.
    """
    return PAGES[name](page)
