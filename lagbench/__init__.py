"""Simulation of parallel training: staleness, delay and churn that a user's training tolerates.

    import lagbench
    result = lagbench.compare(model, loss, (X, y), test=(Xt, yt), cluster="my.toml",
        algorithms=["async", "averaging:10", "sync"], workers=[1, 4, 16, 64])
    result.report("out/")       # error and time to target by workers, with intervals

``model`` is any `torch.nn.Module`, or a function that makes one; ``loss(outputs, targets)`` returns
one number for a minibatch. Every run is stored under the hash of all its inputs: the same call
again loads finished runs and resumes interrupted ones. See ``docs/api.md``.

All names are those of `lagbench.names`, which is imported when the first of them is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lagbench.names import *  # noqa: F403

    __version__: str


def __getattr__(name: str) -> Any:
    if name == "__version__":
        globals()[name] = import_module("harness.base.registry").version_of("lagbench")
        return globals()[name]
    if name.startswith("__") and name != "__all__":  # what Python and its tools look for
        raise AttributeError(f"module 'lagbench' has no attribute {name!r}")
    names = import_module("lagbench.names")
    public = [key for key in vars(names) if not key.startswith("_")]
    if name not in ("__all__", *public):
        raise AttributeError(f"module 'lagbench' has no attribute {name!r}", name=name, obj=names)
    globals().update({key: getattr(names, key) for key in public}, __all__=public)
    return globals()[name]


def __dir__() -> list[str]:
    return ["__version__", *__getattr__("__all__")]
