"""``python -m harness.reference docs/cli.md``: regenerate a page; without one, all pages."""

from __future__ import annotations

import sys
from pathlib import Path

from harness.base.errors import EXIT_DONE, name_error
from harness.cli import exit_code
from harness.reference.pages import PAGES, render_page


def main(pages: list[str]) -> int:
    """Regenerate each page in place."""
    for page in pages or list(PAGES):
        if page not in PAGES:
            raise name_error("page", page, PAGES)
        path = Path(page)
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        path.write_text(render_page(page, old), encoding="utf-8")
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(exit_code(lambda: main(sys.argv[1:])))
