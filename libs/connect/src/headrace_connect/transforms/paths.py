"""Paths to fields within fields, as Kafka Connect writes them (KIP-821, version 2)."""

from __future__ import annotations

from headrace_connect.core.options import BadOption


def parse_path(option: str, text: str) -> tuple[str, ...]:
    """
    The names in ``a.b`` or in ``a.`b.c```. A backtick within a name, before a point, has a backslash before it.

    Raises:
        BadOption: of ``option``; a backtick is not closed.
    """
    steps: list[str] = []
    at = 0
    while at <= len(text):
        if text[at : at + 1] == "`":
            step, at = _quoted(option, text, at + 1)
        else:
            end = text.find(".", at)
            end = len(text) if end < 0 else end
            step, at = text[at:end], end + 1
        steps.append(step)
    return tuple(steps)


def _quoted(option: str, text: str, begin: int) -> tuple[str, int]:
    """The name that begins there, and where the next one does."""
    name = ""
    at = begin
    while True:
        end = text.find("`", at)
        if end < 0:
            raise BadOption(option, f"{text[:80]!r}: the backtick at character {begin} is not closed")
        escaped = text[end - 1 : end] == "\\" and end > begin
        closes = end + 1 == len(text) or text[end + 1] == "."
        if closes and not escaped:
            return name + text[at:end], end + 2
        name += text[at : end - 1] + "`" if closes else text[at : end + 1]
        at = end + 1
