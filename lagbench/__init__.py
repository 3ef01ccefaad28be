"""Simulation of parallel training: staleness, delay and churn that a user's training tolerates.

    import lagbench
    result = lagbench.compare(model, loss, (X, y), test=(Xt, yt), cluster="my.toml",
        algorithms=["async", "averaging:10", "sync"], workers=[1, 4, 16, 64])
    result.report("out/")       # error and time to target by workers, with intervals

``model`` is any `torch.nn.Module`, or a function that makes one; ``loss(outputs, targets)`` returns
one number for a minibatch. Every run is stored under the hash of all its inputs: the same call
again loads finished runs and resumes interrupted ones. See ``docs/api.md``.

All names are those of `lagbench.calls`, which is imported when the first of them is used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lagbench.calls import *  # noqa: F403

    __version__: str


def __getattr__(name: str) -> Any:
    if name == "__version__":
        _refuse_shadows()
        return import_module("harness.base.files").version_of("lagbench")
    if name.startswith("__") and name != "__all__":  # what Python and its tools look for
        raise AttributeError(f"module 'lagbench' has no attribute {name!r}")
    calls = _load()
    if name not in ("__all__", *calls.__all__):
        raise AttributeError(f"module 'lagbench' has no attribute {name!r}", name=name, obj=calls)
    return getattr(calls, name)


def __dir__() -> list[str]:
    return ["__version__", *_load().__all__]


def _load() -> Any:
    """The module with all names.

    Raises:
        ImportError: a file of the user's, or another distribution, shadows one of our packages.
    """
    if "lagbench.calls" not in sys.modules:
        _refuse_shadows()
    return import_module("lagbench.calls")


def _refuse_shadows() -> None:
    from lagbench_start import PACKAGES, shadow

    for told in filter(None, map(shadow, PACKAGES)):
        error = ImportError(told)
        _print_in_one_line(error)
        raise error


def _print_in_one_line(error: ImportError) -> None:
    """Have Python end with one line in place of a traceback if nothing catches the error."""
    usual = sys.excepthook

    def end(kind: type[BaseException], value: BaseException, trace: Any) -> None:
        if value is error:
            print(f"error: {error}", file=sys.stderr)
        else:
            usual(kind, value, trace)

    sys.excepthook = end
