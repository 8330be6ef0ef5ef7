"""
Regular expressions and replacements as Java writes them, done by RE2 (through Arrow), which takes linear time.

RE2 has no look-around and no references within a pattern; such a pattern is refused when it is configured.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyarrow import compute

from headrace_connect.core.options import BadOption

pc: Any = compute  # its stubs are narrower than it is
_PATTERN_CHARS_MAX = 1_000


class Pattern:
    """A pattern that whole texts match or not."""

    def __init__(self, option: str, text: str) -> None:
        """
        Raises:
            BadOption: of ``option``; it is none.
        """
        if len(text) > _PATTERN_CHARS_MAX:
            raise BadOption(option, f"is longer than {_PATTERN_CHARS_MAX} characters")
        self.text, self._groups = _for_re2(text)
        try:
            pc.match_substring_regex(pa.array([""]), self.text)
        except (pa.ArrowInvalid, ValueError) as wrong:
            raise BadOption(
                option, f"{text[:80]!r} is no pattern: {wrong}; there are no look-around and no back-references"
            ) from None

    def matches(self, texts: Any) -> Any:
        """True for each text that matches as a whole."""
        return pc.match_substring_regex(texts, rf"\A(?:{self.text})\z")

    def replaced(self, texts: Any, replacement: str) -> Any:
        """
        With the first match replaced, in the texts that match as a whole.

        Args:
            replacement: as ``replacement_for`` gives it.
        """
        made = pc.replace_substring_regex(texts, self.text, replacement, max_replacements=1)
        return pc.if_else(self.matches(texts), made, texts)

    def replacement_for(self, option: str, text: str) -> str:
        """
        A replacement of Java's (``$1``, ``${name}``, a backslash before what stands for itself) as RE2 has it.

        Raises:
            BadOption: of ``option``; it names a group that is not there.
        """
        made = ""
        at = 0
        while at < len(text):
            sign = text[at]
            if sign == "\\" and at + 1 == len(text):
                raise BadOption(option, "ends with a backslash; write two of them for one")
            if sign == "\\":
                made += _literal(text[at + 1])
                at += 2
            elif sign == "$":
                group, at = self._group(option, text, at + 1)
                made += f"\\{group}"
            else:
                made += sign
                at += 1
        return made

    def _group(self, option: str, text: str, at: int) -> tuple[int, int]:
        """The number of a group, and where the text goes on."""
        if text[at : at + 1] == "{":
            end = text.find("}", at)
            name = text[at + 1 : end] if end > 0 else text[at + 1 :]
            if name not in self._groups:
                raise BadOption(option, f"the pattern has no group {name[:40]!r}")
            return self._groups.index(name) + 1, end + 1
        end = at
        while end < len(text) and text[end].isdecimal() and (end == at or int(text[at : end + 1]) <= len(self._groups)):
            end += 1
        number = int(text[at:end]) if end > at else -1
        if not 0 <= number <= len(self._groups):
            raise BadOption(option, f"{text[at - 1 : end + 1]!r} is no group of the pattern; for a dollar write \\$")
        if number > 9:
            raise BadOption(option, f"group {number}: only the first nine can be named")
        return number, end


def _literal(sign: str) -> str:
    return "\\\\" if sign == "\\" else sign


def _for_re2(text: str) -> tuple[str, list[str]]:
    """The pattern with names of groups as RE2 writes them, and these names; empty for groups without one."""
    made = ""
    groups: list[str] = []
    at = 0
    in_class = False
    while at < len(text):
        sign = text[at]
        if sign == "\\":
            made += text[at : at + 2]
            at += 2
            continue
        if sign == "[":
            in_class = True
        elif sign == "]":
            in_class = False
        elif sign == "(" and not in_class:
            rest = text[at + 1 :]
            if rest.startswith("?<") and rest[2:3] not in ("=", "!"):
                groups.append(rest[2 : max(rest.find(">"), 2)])
                made += "(?P<"
                at += 3
                continue
            if not rest.startswith("?"):
                groups.append("")
        made += sign
        at += 1
    return made, groups
