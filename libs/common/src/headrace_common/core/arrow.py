"""
Whether pyarrow is installed. Records are written and read without it; tables, and what rewrites batches, need it.

Columns of many byte strings are quicker with it, so the codec uses it where it is there.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

from headrace_common.core.errors import Rejected


@cache
def has_arrow() -> bool:
    """Whether ``import pyarrow`` works; it is not loaded for that."""
    return find_spec("pyarrow") is not None


def need_arrow(what: str) -> None:
    """
    Raises:
        Rejected: pyarrow is not installed, and ``what`` needs it.
    """
    if not has_arrow():
        raise Rejected(f"{what} needs pyarrow, which is not installed here: pip install 'headrace[arrow]'")
