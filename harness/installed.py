"""Which version of a package is installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

__all__ = ["known_version", "version_of"]


def known_version(package: str) -> str | None:
    """Its version; None where it is not installed.

    Args:
        package: name of the distribution.
    """
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def version_of(package: str) -> str:
    """Its version, or that there is none: a checkout need not be installed, nor all packages be.

    Args:
        package: name of the distribution.
    """
    return known_version(package) or "not installed"
