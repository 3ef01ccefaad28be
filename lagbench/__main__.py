"""``python -m lagbench``: the command ``lagbench``."""

from __future__ import annotations

import sys

from harness import cli

__all__ = ["main"]


def main() -> int:
    """Run the command of this process; returns its exit code."""
    return cli.run_process(cli.main)


if __name__ == "__main__":
    sys.exit(main())
