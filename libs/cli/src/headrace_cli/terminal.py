"""
What is different at a terminal: hints and progress for who sits there, and no bytes that a terminal would obey.
"""

from __future__ import annotations

import shutil
import sys
import time
from typing import IO, Any, Final

PROGRESS_SECONDS: Final = 1.0
PIPE_COLUMNS: Final = 140
COLUMNS_MIN: Final = 40
_KEPT: Final = frozenset("\n\t")


def is_terminal(stream: IO[Any] | None) -> bool:
    """Whether a person sees it, or types into it."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def help_width(stream: IO[Any] | None) -> int:
    """Columns for help: those of the terminal; a pipe has no edge at which to cut."""
    columns = shutil.get_terminal_size((PIPE_COLUMNS, 24)).columns
    return max(columns, COLUMNS_MIN) if is_terminal(stream) else max(columns, PIPE_COLUMNS)


def visible(text: str) -> str:
    """``text`` with what would move the cursor, colour or command a terminal shown as its escape; lines stay lines."""
    if text.isprintable():
        return text
    return "".join(c if c in _KEPT or c.isprintable() else ascii(c)[1:-1] for c in text)


def visible_bytes(data: bytes) -> bytes:
    """The same for what may be no text at all."""
    if data.isascii() and data.decode("ascii").isprintable():
        return data
    return visible(data.decode("utf-8", "backslashreplace")).encode()


def say_error(text: str, hint: str) -> None:
    sys.stderr.write(f"error: {visible(text)}\n" + (f"{hint}\n" if hint else ""))


def hint(text: str) -> None:
    """A sentence for who sits at a terminal; pipes and scripts get nothing."""
    if is_terminal(sys.stderr):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


class Progress:
    """
    One line on stderr that says how far something is, written over and over, where a person sees it.

    Not where the person types: a line that is being typed would be torn.

    Args:
        reads: the command reads what is typed.
    """

    def __init__(self, *, reads: bool = True) -> None:
        self._shown = is_terminal(sys.stderr) and not (reads and is_terminal(sys.stdin))
        self._told = time.monotonic()
        self._width = 0

    def due(self) -> bool:
        """Whether it is time to say something again."""
        return self._shown and time.monotonic() - self._told > PROGRESS_SECONDS

    def tell_now(self, text: str) -> None:
        """Say it without waiting until it is due, where anybody sees it."""
        if self._shown:
            self.tell(text)

    def tell(self, text: str) -> None:
        """Say it, over what was said last."""
        self._told = time.monotonic()
        sys.stderr.write(f"\r{text.ljust(self._width)}")
        sys.stderr.flush()
        self._width = len(text)

    def clear(self) -> None:
        """Leave an empty line for what comes next."""
        if self._width:
            sys.stderr.write(f"\r{' ' * self._width}\r")
            sys.stderr.flush()
            self._width = 0
