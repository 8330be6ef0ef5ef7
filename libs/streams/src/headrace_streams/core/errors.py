"""What goes wrong in a program, and what it says."""

from __future__ import annotations

from dataclasses import dataclass
from traceback import walk_tb
from typing import Final

from headrace_common.core.errors import Busy, ErrorCode, Internal, Rejected

_OWN: Final = __file__.rpartition("core/")[0]


def words_of(error: BaseException) -> str:
    """
    What an exception of the program says, as text that can be written anywhere; where it was raised, if it says
    nothing. It may fail to say anything.
    """
    try:
        said = str(error)
    except Exception as another:  # noqa: BLE001  # the program's class
        return f"its text cannot be had: {type(another).__name__}"
    return (said or _raised_at(error)).encode("utf-8", "backslashreplace").decode()


def cause_of(error: BaseException) -> str:
    """The class of an exception of the program and its words: ``ValueError: x``, ``StopIteration raised at a.py:7``."""
    words = words_of(error)
    between = " " if words and words == _raised_at(error) else ": " if words else ""
    return f"{type(error).__name__}{between}{words}"


def _raised_at(error: BaseException) -> str:
    """The last line outside of this package that it came from; empty: it came from none, as from a builtin."""
    frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    outside = [f"{file.rpartition('/')[2]}:{line}" for file, line in frames if not file.startswith(_OWN)]
    return f"raised at {outside[-1]}" if outside else ""


class NotAllowed(Rejected, code=ErrorCode.INVALID_CONFIG):
    """A program cannot be built as it is written: the message says where, and what would be right."""


class StateFailed(Rejected, code=ErrorCode.INVALID_RECORD):
    """State would take a value that it cannot hold; names store and key. Nothing of the commit is kept."""


class Blocked(Internal, code=ErrorCode.REQUEST_TIMED_OUT):
    """A function of the program has not returned in time: its worker gives its tasks up, and its process ends."""


class TableGone(Internal, code=ErrorCode.OFFSET_OUT_OF_RANGE):
    """A global table's topic lost records that were not read, or is another one: a worker that starts reads it anew."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The record that a row stems from."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} at offset {self.offset}"


class RowFailed(Rejected, code=ErrorCode.INVALID_RECORD):
    """A record could not be processed, and the program's ``on_error`` is "fail"; its position is not committed."""

    def __init__(self, node: str, origin: Origin | None, cause: str, row: str = "a row of several records") -> None:
        """
        Args:
            row: what to say of a row that stems from no single record.
        """
        self.node = node
        self.origin = origin
        of = f"the record of {origin}" if origin is not None else row
        super().__init__(
            f"{node}: {of} failed: {cause}; mend the program, or go on without such records: on_error='skip', or "
            "on_error=TOPIC for a dead letter topic"
        )


class RegistryUnavailable(Busy, code=ErrorCode.NETWORK_EXCEPTION):
    """A schema registry does not answer; the worker goes back to its last commit and asks again."""


class RegistryRefused(Rejected, code=ErrorCode.INVALID_CONFIG):
    """A schema registry does not allow what the program asks of it; asking again does not help."""
