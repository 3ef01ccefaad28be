"""``python -m tests.reproductions.quick`` is ``python -m reproductions`` with less to train.

Paper 1 at smoke scale has a narrow network and minibatches of many frames, which is not what is
registered, and its runs write a checkpoint at every boundary. The fork server imports this module,
so it holds in all processes.
"""

import math
import sys
from dataclasses import replace

from harness.base import forks
from harness.experiment import loop
from reproductions import paper1_async_asgd
from reproductions.command import main
from reproductions.paper1_async_asgd.experiments import PRESETS

loop.CHECKPOINT_EVERY_S, loop.CHECKPOINT_SHARE = 0.0, math.inf
PRESETS["smoke"] = replace(PRESETS["smoke"], hidden=(16,), folds=500, baseline_passes=4)
paper1_async_asgd.PAPER = replace(paper1_async_asgd.PAPER, folder=None)

if __name__ == "__main__":
    forks.context("tests.reproductions.quick")
    sys.exit(main())
