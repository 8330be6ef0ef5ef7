"""How a task's loop ends when it fails."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Final

from headrace_common.core.errors import ErrorCode, HeadraceError
from headrace_connect.core.errors import BrokenPlugin, Fault, RetriableError, fault_of

TRACE_CHARS_MAX: Final = 16_000


class TaskFailed(Exception):
    """A task has failed; ``fault`` says who can help."""

    def __init__(self, fault: Fault, reason: str) -> None:
        super().__init__(reason)
        self.fault = fault


_THEIRS: Final = frozenset({Fault.CONFIG, Fault.DATA, Fault.FENCED})
"""Failures that are no fault of a program."""
FENCED = frozenset({ErrorCode.FENCED_OWNER, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
"""Another producer has the transactional id, or the owner."""
OUT_OF_GROUP = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)
"""The member's partitions are others' by now."""


def reason_of(error: BaseException) -> str:
    """For people."""
    text = sound(str(error))
    return (
        text
        if isinstance(error, HeadraceError) and text
        else f"{type(error).__name__}: {text}"
        if text
        else repr(error)
    )


def trace_of(error: Exception) -> str:
    """
    Where ``error`` was raised and by what, as Python prints it; of a long one the end. Empty: its text says what is
    wrong and where, for it was raised for people who run connectors.
    """
    fault = failed_by(error).fault
    told = fault in _THEIRS or (fault is Fault.WORLD and isinstance(error, HeadraceError | RetriableError | TaskFailed))
    if told and not any(isinstance(one, BrokenPlugin) for one in _causes(error)):
        return ""
    return sound("".join(traceback.format_exception(error)))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """It, and what it was raised from."""
    one: BaseException | None = error
    while one is not None:
        yield one
        one = one.__cause__


def sound(text: str) -> str:
    """``text`` as others can read it: bounded, the end of it where it is long, and without half characters."""
    return text[-TRACE_CHARS_MAX:].encode(errors="replace").decode()


def failed_by(error: Exception) -> TaskFailed:
    """The failure of a task by an error that nothing in the task handles."""
    if isinstance(error, TaskFailed):
        return error
    return TaskFailed(fault_of(error), reason_of(error))
