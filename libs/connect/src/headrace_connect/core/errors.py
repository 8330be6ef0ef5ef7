"""What connectors say when something fails, and what follows from it: whose fault it is decides who tries again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from headrace_common.core.error_kinds import HeadraceError, Kind
from headrace_common.core.errors import ErrorCode, InvalidConfig

if TYPE_CHECKING:
    from headrace.records import TopicPartition


class RetriableError(Exception):
    """
    The other system cannot be reached, or refuses for now: the same again may succeed later.

    Args:
        after_ms: what the other system says: not before so many milliseconds from now. 0: it says nothing.
    """

    def __init__(self, *args: object, after_ms: float = 0) -> None:
        super().__init__(*args)
        self.after_ms = after_ms


class RowsRefused(Exception):
    """
    Rows that will never be written, or read, as they are.

    Args:
        reasons: index of each bad row in what was given -> what is wrong with it. The others are good. Empty: nobody
            knows which ones.
    """

    def __init__(self, reasons: Mapping[int, str], message: str = "") -> None:
        first = next(iter(sorted(reasons.items())), None)
        super().__init__(message or (f"row {first[0]}: {first[1]}" if first else "rows were refused"))
        self.reasons = dict(reasons)


class BrokenPlugin(InvalidConfig, code=ErrorCode.INVALID_CONFIG):
    """A module that is named in the configuration has raised when it was imported; that is its cause."""


class PartitionTaken(Exception):
    """The target says that others hold these partitions by now: nothing may be written for them any more."""

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        self.partitions = frozenset(partitions)
        super().__init__(f"others hold {', '.join(sorted(f'{p.topic}-{p.partition}' for p in self.partitions))} by now")


class Fault(StrEnum):
    """Whose fault a failure is."""

    WORLD = "world"
    """Something outside is away or refuses: a task that fails so is restarted for ever."""
    CONFIG = "config"
    """The settings: only a change of them helps."""
    DATA = "data"
    """Rows that cannot be handled, and ``errors.tolerance`` is ``none``: somebody has to look at them."""
    BUG = "bug"
    """Of the connector, or ours."""
    FENCED = "fenced"
    """A newer task has taken over: this one ends, and nothing is wrong."""


_BUGS: Final = (
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    RecursionError,
    SyntaxError,
    TypeError,
    UnboundLocalError,
)
_WORLD: Final = (RetriableError, OSError, EOFError)
_KINDS: Final[Mapping[Kind, Fault]] = {
    Kind.INVALID: Fault.CONFIG,
    Kind.DENIED: Fault.CONFIG,
    Kind.FENCED: Fault.FENCED,
    Kind.INTERNAL: Fault.BUG,
}


def fault_of(error: BaseException) -> Fault:
    """Whose fault ``error`` is. What nobody knows is the world's: drivers have errors of their own."""
    match error:
        case InvalidConfig():
            return Fault.CONFIG
        case RowsRefused():
            return Fault.DATA
        case PartitionTaken():
            return Fault.FENCED
        case HeadraceError():
            return _KINDS.get(error.kind, Fault.WORLD)
    if isinstance(error, _WORLD):
        return Fault.WORLD
    return Fault.BUG if isinstance(error, _BUGS) else Fault.WORLD


def after_ms_of(error: BaseException) -> float:
    """How long the other system says to wait before the same again; 0: as long as one likes."""
    return error.after_ms if isinstance(error, RetriableError) else 0


def is_retriable(error: BaseException) -> bool:
    """Whether the same call may succeed later: only what is known to be so, for other errors may lie in the rows."""
    if isinstance(error, HeadraceError):
        return error.retriable
    return isinstance(error, _WORLD)
