"""A disk that loses what was not synced: what may be left of a folder when the power goes.

A recording notes, at every sync and change of a name, what the disk has for certain and what is
only in memory. A crash leaves of each name the old or the new one, and of each file's content what
was synced, or nothing, a half or all of what was written since.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from harness.store.store import CLAIM

Entry = tuple[int, bytes | None]
"""What a name stands for: an inode, and its content; None for a folder."""


@dataclass
class Moment:
    """What a crash could find: names and contents in memory, and those on the disk."""

    live: dict[Path, Entry]
    names: dict[Path, Entry]
    contents: dict[int, bytes]


@dataclass
class Recording:
    """Everything that happens to names below ``root`` while it is in force."""

    root: Path
    moments: list[Moment] = field(default_factory=list)
    names: dict[Path, Entry] = field(default_factory=dict)
    contents: dict[int, bytes] = field(default_factory=dict)

    def watch(self, monkeypatch: Any) -> None:
        """Note every sync and every change of a name from now on."""
        for name in ("fsync", "replace", "unlink", "mkdir", "rmdir", "rename"):
            monkeypatch.setattr(os, name, self._noted(name, getattr(os, name)))

    def _noted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*arguments: Any, **named: Any) -> Any:
            found = call(*arguments, **named)
            if name == "fsync":
                self._synced(Path(f"/proc/self/fd/{arguments[0]}").readlink())
            self.note()
            return found

        return noting

    def note(self) -> None:
        """This is a moment at which the power may go."""
        self.moments.append(Moment(self._live(), dict(self.names), dict(self.contents)))

    def _synced(self, path: Path) -> None:
        if path.is_dir():
            kept = {at: entry for at, entry in self.names.items() if at.parent != path}
            here = {at: entry for at, entry in self._live().items() if at.parent == path}
            self.names = kept | here
        else:
            self.contents[path.stat().st_ino] = path.read_bytes()

    def _live(self) -> dict[Path, Entry]:
        # A claim is nobody's after a crash of the machine that its holder ran on.
        found = (at for at in self.root.rglob("*") if not at.name.startswith(CLAIM))
        return {
            at: (at.stat().st_ino, None if at.is_dir() else at.read_bytes()) for at in sorted(found)
        }


def after_a_crash(moment: Moment, draw: Callable[[Any], Any]) -> dict[Path, bytes | None]:
    """What the disk holds then: folders and files by path.

    Args:
        moment: when the power went.
        draw: of a Hypothesis strategy.
    """
    left: dict[Path, bytes | None] = {}
    for at in sorted(moment.live.keys() | moment.names.keys()):
        if at.parent in moment.live.keys() | moment.names.keys() and at.parent not in left:
            continue  # its folder is gone
        old, new = moment.names.get(at), moment.live.get(at)
        entry = old if old == new else draw(st.sampled_from([old, new]))
        if entry is not None:
            left[at] = None if entry[1] is None else _content(moment, entry, draw)
    return left


def _content(moment: Moment, entry: Entry, draw: Callable[[Any], Any]) -> bytes:
    inode, written = entry
    assert written is not None
    if moment.contents.get(inode) == written:
        return written
    return draw(st.sampled_from([b"", written[: len(written) // 2], bytes(len(written)), written]))


def lay(root: Path, left: dict[Path, bytes | None], place: Path) -> None:
    """Put what a crash left of ``root`` into the empty folder ``place``."""
    for at, content in left.items():
        target = place / at.relative_to(root)
        if content is None:
            target.mkdir()
        else:
            target.write_bytes(content)
