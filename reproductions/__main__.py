"""``python -m reproductions paper1 …`` is ``lagbench reproduce paper1 …``."""

from __future__ import annotations

import sys

from lagbench_start import begin

if __name__ == "__main__":
    sys.exit(begin("reproductions.command"))
