"""What the fork server imports first (`forks`): it ends with whoever has started it.

By itself it would notice an end only after its imports, and take a second to forget them. The
kernel tells it of the end of the thread that has started it, which is that of the process where it
is the main one; where it is another, the fork server is left to notice by itself.

Whoever wants its forks ends them with SIGTERM; who has had that ignored (``trap '' TERM``) has it
ignored for the command alone.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from harness.base.forks import set_parent_death_signal


def _is_of_main_thread() -> bool:
    """Whether the main thread of the parent has started this process; `proc_tid_children(5)`."""
    parent = os.getppid()
    try:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    except OSError:  # a kernel without it, or the parent has ended
        return False
    return str(os.getpid()) in children.split()


signal.signal(signal.SIGTERM, signal.SIG_DFL)

if _is_of_main_thread():
    set_parent_death_signal()
