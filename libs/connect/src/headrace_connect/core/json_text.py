"""JSON as text of what Arrow columns hold: decimals, dates and times are texts, bytes are base64."""

from __future__ import annotations

import base64
import json
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any


def dump(value: Any) -> str:
    """
    Raises:
        ValueError: it has NaN, or what has no form in JSON.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=plain)


def plain(value: object) -> str:
    """
    What JSON has no form of, as text.

    Raises:
        ValueError: it has none.
    """
    match value:
        case Decimal():
            return format(value, "f")
        case bytes():
            return base64.b64encode(value).decode()
        case datetime() | date() | time():
            return value.isoformat()
    raise ValueError(f"{type(value).__name__} has no form in JSON")
