"""Encodings of text files: to UTF-8 and back, so that an offset in what was parsed is an offset in the file."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import Final

_UTF8: Final = frozenset({"utf-8", "utf-8-sig"})
_UTF16: Final = {"utf-16-le": "utf-16-le", "utf-16-be": "utf-16-be"}
_MARKS: Final = {"utf-8": codecs.BOM_UTF8, "utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}


@dataclass(frozen=True, slots=True)
class Encoding:
    """One that keeps offsets: UTF-8, UTF-16, or one with a byte for each character."""

    name: str
    """As ``codecs`` calls it."""
    unit: int
    """A character begins at a multiple of so many bytes."""

    def mark_bytes(self, start: bytes) -> int:
        """The length of the byte order mark with which the file begins that begins with ``start``."""
        mark = _MARKS.get(self.name, b"")
        return len(mark) if mark and start.startswith(mark) else 0

    def to_utf8(self, raw: bytes) -> bytes:
        """``raw`` as UTF-8, without half a character at its end; what is no text becomes what is no UTF-8."""
        if self.name == "utf-8":
            return raw
        if self.unit == 1:
            return raw.decode(self.name, "surrogateescape").encode("utf-8", "surrogatepass")
        raw = raw[: len(raw) // self.unit * self.unit]
        text = raw.decode(self.name, "surrogatepass") if not self._ends_in_half_a_pair(raw) else ""
        if not text and raw:
            text = raw[: -self.unit].decode(self.name, "surrogatepass")
        return text.encode("utf-8", "surrogatepass")

    def raw_bytes(self, text: bytes) -> int:
        """How many bytes of the file ``text`` is, which ``to_utf8`` began with."""
        if self.name == "utf-8":
            return len(text)
        decoded = text.decode("utf-8", "surrogatepass")
        return len(decoded) if self.unit == 1 else len(decoded.encode(self.name, "surrogatepass"))

    def _ends_in_half_a_pair(self, raw: bytes) -> bool:
        high = raw[-1:] if self.name == "utf-16-le" else raw[-2:-1]
        return bool(high) and 0xD8 <= high[0] <= 0xDB


def find_encoding(name: str) -> Encoding:
    """
    The encoding of that name, as Python knows it.

    Raises:
        ValueError: there is none, or offsets cannot be kept in it.
    """
    try:
        known = codecs.lookup(name).name
    except LookupError:
        raise ValueError(f"there is no encoding {name!r}") from None
    if known in _UTF8:
        return Encoding("utf-8", 1)
    if known in _UTF16:
        return Encoding(known, 2)
    if not _has_a_byte_for_each_character(known):
        raise ValueError(
            f"offsets cannot be kept in the encoding {name!r}; there are utf-8, utf-16-le, utf-16-be, and those with "
            "one byte for each character, as latin-1 and cp1252; convert the file, with iconv for example"
        )
    return Encoding(known, 1)


def _has_a_byte_for_each_character(name: str) -> bool:
    try:
        text = bytes(range(256)).decode(name, "surrogateescape")
        return len(text) == 256 and all(len(char.encode(name, "surrogateescape")) == 1 for char in text)
    except (LookupError, UnicodeError, TypeError):
        return False
