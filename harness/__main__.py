"""`python -m harness` is the `lagbench` command."""

from __future__ import annotations

import sys

from harness import cli

if __name__ == "__main__":
    sys.exit(cli.run_process(cli.main))
