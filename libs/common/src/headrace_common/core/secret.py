"""Texts that are shown to nobody: API keys, and whatever else logs in."""

from __future__ import annotations

from typing import Final

SHOWN: Final = "***"


class Secret:
    """
    A text that shows itself as ``***`` wherever it is printed, formatted or logged; ``reveal`` gives it.

    A copy and a pickle hold the text: what Spark hands to its tasks has to work there. Whoever keeps pickles gives a
    file in place of the text.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text, for whoever sends it."""
        return self._text

    def __repr__(self) -> str:
        return SHOWN

    def __format__(self, spec: str) -> str:
        return format(SHOWN, spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)
