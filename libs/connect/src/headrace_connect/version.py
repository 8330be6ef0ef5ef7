"""Which version of this package runs, for processes and records that say it."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def package_version() -> str:
    """Of this code; empty where it was not installed."""
    try:
        return version("headrace-connect")
    except PackageNotFoundError:
        return ""
