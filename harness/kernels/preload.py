# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false
"""Loads, when it is imported, what numba loads at the first call of a kernel: half a second.

Fork servers import this module (`harness.base.forks.context`), so that their forks need not.
"""

from __future__ import annotations

from typing import Any

from numba.core import registry

cpu_target: Any = registry.cpu_target
cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()
