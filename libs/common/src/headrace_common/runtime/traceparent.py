"""
W3C trace context as text and as a record header, without OpenTelemetry.

The SDK and the tracing interceptor both speak through it, so that a record carries its trace from producer to
consumer even where neither process has a tracing library loaded.
Source: https://www.w3.org/TR/trace-context/ (version 00).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

HEADER: Final = "traceparent"

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


@dataclass(frozen=True, slots=True)
class TraceParent:
    """Who caused this: a span of a trace."""

    trace_id: int
    """128 bits, not 0."""
    span_id: int
    """64 bits, not 0."""
    sampled: bool = True

    def __str__(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"

    @staticmethod
    def parse(text: str) -> TraceParent | None:
        """The parent that ``text`` names; None where it is not valid, for then it is as if there were none."""
        match = _FORM.fullmatch(text.strip())
        if match is None:
            return None
        version, trace_id, span_id, flags, rest = match.groups()
        if version == "ff" or (version == "00" and rest) or not int(trace_id, 16) or not int(span_id, 16):
            return None
        return TraceParent(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & 1))


def from_headers(headers: Iterable[tuple[str, bytes | None]]) -> TraceParent | None:
    """The parent in a record's headers; the last one counts."""
    found = None
    for key, value in headers:
        if key == HEADER and value is not None:
            found = value
    return None if found is None else TraceParent.parse(found.decode("ascii", "replace"))


def to_header(parent: TraceParent) -> tuple[str, bytes]:
    """The record header that carries ``parent``."""
    return HEADER, str(parent).encode("ascii")


def current() -> TraceParent | None:
    """The span this code runs in; None without one. Loads nothing: a process that traces has loaded OpenTelemetry."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return TraceParent(context.trace_id, context.span_id, bool(context.trace_flags.sampled))
