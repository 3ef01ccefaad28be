"""First import of the fork server (`forks.context`): it ends with the process that started it.

By itself it would notice that only after its imports, and take a second to release them. The signal
comes with the end of the *thread* that started the server, so it is set for a main thread alone.

If its imports fail, as for want of memory, it says so in a line.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from harness.base.errors import describe_raised, fails_import, lacks_memory
from harness.base.forks import set_parent_death_signal

with suppress(OSError):  # a kernel without the file, or the parent has ended
    _PARENT = os.getppid()
    _CHILDREN = Path(f"/proc/{_PARENT}/task/{_PARENT}/children").read_text()  # of its main thread
    if str(os.getpid()) in _CHILDREN.split():
        set_parent_death_signal()

sys.excepthook = lambda kind, error, trace: print(
    lacks_memory(error) or fails_import(error) or describe_raised(error), file=sys.stderr
)
