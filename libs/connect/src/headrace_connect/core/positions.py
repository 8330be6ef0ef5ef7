"""Positions of sources, as they are in the offset topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from headrace_common.core.errors import InvalidConfig

POSITION_BYTES_MAX: Final = 4 << 10


def encode_position(split: str, position: Mapping[str, Any]) -> bytes:
    """
    The value of its record: JSON.

    Raises:
        InvalidConfig: it is no JSON, or too large.
    """
    try:
        value = orjson.dumps(dict(position))
    except TypeError as error:
        raise InvalidConfig(f"the position of split {split!r} cannot be written as JSON: {error}") from None
    if len(value) > POSITION_BYTES_MAX:
        raise InvalidConfig(f"the position of split {split!r} has {len(value)} bytes; {POSITION_BYTES_MAX} is the most")
    return value
