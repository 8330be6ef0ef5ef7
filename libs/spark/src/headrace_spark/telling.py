"""
How errors of ours reach the user of Spark: as their text, and not below a trace of what happened inside. Called around
all that Spark calls.

Loaded in every planner process of Spark, so it imports nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def shorten_trace(function: Callable[P, T]) -> Callable[P, T]:
    """Spark puts the whole trace of an error into its own; of ours it gets this frame alone, and the text behind it."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        from headrace_common.core.errors import HeadraceError

        try:
            return function(*args, **kwargs)
        except HeadraceError as error:
            raise error.with_traceback(None) from None

    return call
