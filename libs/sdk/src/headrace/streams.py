"""
Stream processing, where users look for it: everything here is of ``headrace_streams``, a package of its own.

::

    from headrace import streams
    from headrace.streams import agg, col, json, tumbling
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace_streams import *  # noqa: F403  # all of it


def __getattr__(name: str) -> Any:
    try:
        package = importlib.import_module("headrace_streams")
    except ModuleNotFoundError as error:
        if error.name != "headrace_streams":
            raise
        raise ImportError(
            "stream processing is in the package headrace-streams, which is not installed here; "
            "install it with: pip install headrace-streams"
        ) from None
    return getattr(package, name)
