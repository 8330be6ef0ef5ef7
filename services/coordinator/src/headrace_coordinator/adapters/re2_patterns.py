"""``Patterns`` over Google's RE2: linear time whatever a user writes; no back-references, no look-around."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final

import re2

from headrace_common.core.errors import InvalidRegularExpression

PATTERN_CHARACTERS_MAX: Final = 1_000
PROGRAM_BYTES_MAX: Final = 1 << 20
"""What one compiled pattern may take: ``(a{1000}){1000}`` is short to write."""
COMPILED_MAX: Final = 200
"""Compiled patterns kept for the next look; the one used longest ago goes first."""


class Re2Patterns:
    """See ``Patterns``. One event loop."""

    def __init__(self) -> None:
        self._compiled: OrderedDict[str, Any] = OrderedDict()

    def check(self, pattern: str) -> None:
        self._compile(pattern)

    def find_matching(self, pattern: str, names: Iterable[str]) -> frozenset[str]:
        """See ``Patterns``; raises what ``check`` raises."""
        match = self._compile(pattern).fullmatch
        return frozenset(name for name in names if match(name) is not None)

    def _compile(self, pattern: str) -> Any:
        found = self._compiled.get(pattern)
        if found is not None:
            self._compiled.move_to_end(pattern)
            return found
        compiled = self._compiled[pattern] = _compile_pattern(pattern)
        if len(self._compiled) > COMPILED_MAX:
            self._compiled.popitem(last=False)
        return compiled


def _compile_pattern(pattern: str) -> Any:
    if not pattern:
        raise InvalidRegularExpression("the pattern is empty; leave it out, or write one that matches topic names")
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise InvalidRegularExpression(
            f"the pattern has {len(pattern)} characters; {PATTERN_CHARACTERS_MAX} is the most"
        )
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PROGRAM_BYTES_MAX
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeError) as error:
        raise InvalidRegularExpression(f"the pattern {pattern[:80]!r} cannot be read: {_text(error)[:200]}") from None


def _text(error: Exception) -> str:
    said = error.args[0] if error.args else error
    return said.decode(errors="replace") if isinstance(said, bytes) else str(said)
