"""What tests of the machinery share: a disk that nobody waits for.

No machine loses power while they run, and a sync takes 10 ms. What a loss of power leaves is tested
by what was recorded (`store/crashes.py`); benchmarks have a real disk.
"""

from __future__ import annotations

import os

os.fsync = lambda fd: None
