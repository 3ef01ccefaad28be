"""First import of the fork server (`forks`): binds its end to that of its parent process.

By itself the fork server would notice its parent's end only after its imports, and take a second to
release them. The kernel's signal comes with the end of the *thread* that started the fork server:
the main thread ends with its process; if another thread started it, no signal is set.

SIGTERM gets its default handler, because the parent ends forks with it: a command started with
SIGTERM ignored (``trap '' TERM``) ignores it itself, its forks do not.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from harness.base.forks import set_parent_death_signal


def _is_of_main_thread() -> bool:
    """Whether the parent's main thread started this process; see `proc_tid_children(5)`."""
    parent = os.getppid()
    try:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    except OSError:  # a kernel without it, or the parent has ended
        return False
    return str(os.getpid()) in children.split()


signal.signal(signal.SIGTERM, signal.SIG_DFL)

if _is_of_main_thread():
    set_parent_death_signal()
