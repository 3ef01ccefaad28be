"""A command under turned bases: ``LAGBENCH_FLIP_BASES=1 python -m tests.portable.flipped MODULE``.

Processes that it spawns import this module first, as multiprocessing does with a main module.
"""

from __future__ import annotations

import runpy
import sys

from tests.portable.flips import flip_bases_of_environment

flip_bases_of_environment()

if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__")
