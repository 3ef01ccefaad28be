"""What the fork server imports first (`forked`): it ends with whoever has started it.

By itself it would notice an end only after its imports, and take a second to forget them.
"""

from __future__ import annotations

from harness.forked import killed_with_starter

killed_with_starter()
