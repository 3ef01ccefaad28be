"""`python -m harness` is the `lagbench` command."""

from __future__ import annotations

import sys

from lagbench_start import begin

if __name__ == "__main__":
    sys.exit(begin("harness.cli"))
