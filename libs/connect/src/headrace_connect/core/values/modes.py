"""How values are represented where there is a choice, with Debezium's settings."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args, get_origin, get_type_hints

from headrace_common.core.errors import InvalidConfig

Decimals = Literal["precise", "double", "string"]
Times = Literal["adaptive", "adaptive_time_microseconds", "connect", "isostring"]
Bytes = Literal["bytes", "base64", "base64-url-safe", "hex"]
Arrays = Literal["list", "text"]


@dataclass(frozen=True, slots=True)
class ValueModes:
    decimals: Decimals = "precise"
    """``decimal.handling.mode``: decimals as such, as doubles (which rounds), or as text."""
    times: Times = "adaptive"
    """``time.precision.mode``: in ms or µs after the column's precision; times of day always in µs; all in ms; text."""
    bytes: Bytes = "bytes"
    """``binary.handling.mode``: bytea as it is, or as text."""
    arrays: Arrays = "list"
    """``array.handling.mode``: lists, of one dimension; or PostgreSQL's text, of any."""
    placeholder: str | None = "__debezium_unavailable_value"
    """``unavailable.value.placeholder``: what is made of it stands for a large value that an update did not touch.
    None: nothing does, and the row has a problem."""

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for field in fields(self):
            known = get_args(hints[field.name]) if get_origin(hints[field.name]) is Literal else ()
            if known and getattr(self, field.name) not in known:
                raise InvalidConfig(f"{field.name} is {getattr(self, field.name)!r}; it is one of {', '.join(known)}")
