"""
What a single setting takes: its type and bounds. ``configs`` has the tables of all there are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from headrace_common.core.errors import InvalidConfig
from headrace_common.core.features import Feature

LONG_MAX: Final = 2**63 - 1
INT_MAX: Final = 2**31 - 1
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,30}")
_EXACT_MAX: Final = 2**63
"""Bounds above are told in powers of ten."""


class Type(Enum):
    """How a value is written."""

    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    STRING = "string"
    LIST = "list"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting; bounds are inclusive."""

    name: str
    type: Type
    default: str
    doc: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    dynamic: bool = True
    """False: fixed when the process starts."""
    per_broker: bool = True
    """False: it is the cluster's, one broker cannot differ."""
    feature: Feature | None = None
    """It can be set once the cluster has this: a node of an older version would not go by it."""

    def check(self, value: str) -> str:
        """
        Return ``value`` as it is stored.

        Raises:
            InvalidConfig: with what would be allowed.
        """
        text = value.strip()
        match self.type:
            case Type.INT | Type.LONG | Type.DOUBLE:
                self._check_number(text)
            case Type.BOOLEAN:
                text = text.lower()
                if text not in {"true", "false"}:
                    raise InvalidConfig(f"{self.name} takes true or false, not {value!r}")
            case Type.LIST:
                items = [item.strip() for item in text.split(",") if item.strip()]
                for item in items:
                    self._check_choice(item)
                text = ",".join(dict.fromkeys(items))
            case Type.STRING:
                self._check_choice(text)
        return text

    def _check_number(self, text: str) -> None:
        try:
            number = float(text) if self.type is Type.DOUBLE else _whole(text)
        except ValueError:
            raise InvalidConfig(f"{self.name} takes a number ({self.type.value}), not {text[:60]!r}") from None
        low = self.low if self.low is not None else -LONG_MAX
        high = self.high if self.high is not None else (INT_MAX if self.type is Type.INT else LONG_MAX)
        if not low <= number <= high:
            raise InvalidConfig(f"{self.name} takes {_format_bound(low)} to {_format_bound(high)}, not {text[:60]}")

    def _check_choice(self, text: str) -> None:
        if self.choices and text not in self.choices:
            raise InvalidConfig(f"{self.name} takes {', '.join(self.choices)}, not {text[:60]!r}")


def _whole(text: str) -> int:
    """As Kafka reads numbers; ``int`` would also take underscores and the digits of any script."""
    if not _WHOLE.fullmatch(text):
        raise ValueError(text)
    return int(text)


def _format_bound(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) and abs(bound) <= _EXACT_MAX else f"{bound:g}"
