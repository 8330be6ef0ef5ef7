"""
The history that the full checker judges: what it is made of, how it is written down, how calls and returns are paired.

Every operation has two entries: one when it is called (``invoke``), one when it returns: ``ok``, ``fail`` (it surely
had no effect) or ``info`` (it may have had one, then or later). A process has one operation under way; after an
operation without an answer it goes on under another number. Entries stand in the order of time: whatever returned
before another was called comes first. Values are unique per key; a key is one partition.

Chaos tests and simulations record histories, ``headrace_verify.checker_txn`` judges them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import orjson

from headrace.errors import ErrorCode
from headrace_verify.checker import Key, Outcome, Value

MICRO_OPS_MAX: Final = 4
"""As many sends and polls a ``txn`` of a generated load has, at most."""


class Type(Enum):
    """Which end of an operation an entry is."""

    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    INFO = "info"


class F(Enum):
    """What was done."""

    ASSIGN = "assign"
    """The process chose partitions and positions."""
    SUBSCRIBE = "subscribe"
    """The process let a group choose them, and goes on doing so: positions may change at any time."""
    POLL = "poll"
    SEND = "send"
    """One value, or several in one call; each counts for itself. Of several with different ends the outcome is
    ``info``, and those with an offset were acknowledged."""
    TXN = "txn"
    """Sends and polls in one transaction: the sends and the polls' positions are committed, or nothing is."""
    CRASH = "crash"
    """The process's clients were thrown away."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One value; ``offset`` is known when it was acknowledged."""

    key: Key
    value: Value
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Polled:
    """What a poll returned: of each key offsets and values, in the order in which the application got them."""

    points: Mapping[Key, Sequence[tuple[int, Value]]]


Micro = Sent | Polled
NOTHING: Final = Polled({})


@dataclass(frozen=True, slots=True)
class Operation:
    """One entry. ``value`` is the sends and polls of it, or the keys that were assigned."""

    index: int
    process: int
    type: Type
    f: F
    value: tuple[Micro, ...] | tuple[Key, ...] = ()
    time_ns: int = 0


@dataclass(frozen=True, slots=True)
class Act:
    """An operation from its call to its return."""

    number: int
    """The index of its call."""
    process: int
    f: F
    micros: tuple[Micro, ...]
    outcome: Outcome
    called: int
    """Place of its call in the history."""
    returned: int | None
    """Place of its return; None: it never did."""

    def acknowledged(self, sent: Sent) -> bool:
        """Whether this send of it was: with all of it, or alone in a batch of which others were not."""
        alone = self.outcome is Outcome.INFO and self.f is F.SEND and len(self.micros) > 1
        return self.outcome is Outcome.OK or (alone and sent.offset is not None)


OUTCOMES: Final = {Type.OK: Outcome.OK, Type.FAIL: Outcome.FAIL, Type.INFO: Outcome.INFO}


def pair_calls(history: Iterable[Operation]) -> list[Act]:
    """
    Calls and returns as one, in the order of the calls. What has not returned at the end is ``info``.

    Raises:
        ValueError: the history is not one: a return without a call, a second call, indexes that do not rise.
    """
    acts: list[Act | None] = []
    open_: dict[int, tuple[int, Operation, int]] = {}
    last = -1
    for place, entry in enumerate(history):
        if entry.index <= last:
            raise ValueError(f"index {entry.index} comes after {last}: entries must stand in the order of time")
        last = entry.index
        if entry.type is Type.INVOKE:
            if entry.process in open_:
                raise ValueError(f"index {entry.index}: process {entry.process} has an operation under way already")
            open_[entry.process] = (len(acts), entry, place)
            acts.append(None)
            continue
        call = open_.pop(entry.process, None)
        if call is None or call[1].f is not entry.f:
            raise ValueError(f"index {entry.index}: process {entry.process} returns from what it did not call")
        acts[call[0]] = _act(call[1], call[2], entry, place)
    for number, call_entry, place in open_.values():
        acts[number] = _act(call_entry, place, None, None)
    return [act for act in acts if act is not None]


def _act(call: Operation, called: int, end: Operation | None, returned: int | None) -> Act:
    value = call.value if end is None or not end.value else end.value
    micros = tuple(micro for micro in value if not isinstance(micro, str))
    outcome = Outcome.INFO if end is None else OUTCOMES[end.type]
    unanswered = outcome is Outcome.INFO
    return Act(call.index, call.process, call.f, micros, outcome, called, None if unanswered else returned)


# --- which errors mean what -----------------------------------------------------------------------------------

SURELY_FAILED: Final = frozenset(
    {
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.FENCED_OWNER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUIRED_ACKS,
    }
)
"""Errors of a send after which its value is in no log that anybody reads. All others leave it open."""


def outcome_of_send(code: ErrorCode) -> Outcome:
    """What an error of a send, inside or outside a transaction, says of it."""
    return _outcome(code)


def outcome_of_transaction(commit: ErrorCode | None, abort: ErrorCode | None = None) -> Outcome:
    """
    What became of a transaction.

    Args:
        commit: what the commit ended with; None: it was not asked for.
        abort: what the abort ended with; None: it was not asked for.
    """
    if commit is ErrorCode.NONE:
        return Outcome.OK
    if abort is ErrorCode.NONE:
        return Outcome.FAIL
    return Outcome.INFO  # an error of the end says nothing: an earlier attempt of the same call may have been heard


def _outcome(code: ErrorCode) -> Outcome:
    if code is ErrorCode.NONE:
        return Outcome.OK
    return Outcome.FAIL if code in SURELY_FAILED else Outcome.INFO


# --- on disk --------------------------------------------------------------------------------------------------


def to_line(entry: Operation) -> bytes:
    """One entry as one line of JSON, without its end."""
    return orjson.dumps(
        {
            "index": entry.index,
            "process": entry.process,
            "type": entry.type.value,
            "f": entry.f.value,
            "value": [_micro_out(one) for one in entry.value],
            "time_ns": entry.time_ns,
        }
    )


def from_lines(lines: Iterable[bytes]) -> Iterator[Operation]:
    for line in lines:
        raw = orjson.loads(line)
        value = tuple(_micro_in(one) for one in raw["value"])
        yield Operation(raw["index"], raw["process"], Type(raw["type"]), F(raw["f"]), value, raw.get("time_ns", 0))


def merge_histories(histories: Iterable[Iterable[Operation]]) -> list[Operation]:
    """Histories that several processes of one machine wrote, as one: by ``time_ns``, numbered anew."""
    entries = sorted((entry for history in histories for entry in history), key=lambda entry: entry.time_ns)
    return [Operation(index, one.process, one.type, one.f, one.value, one.time_ns) for index, one in enumerate(entries)]


def _micro_out(one: Micro | Key) -> Any:
    match one:
        case Sent(key, value, offset):
            return ["send", key, value if offset is None else [offset, value]]
        case Polled(points):
            return ["poll", {key: [list(point) for point in found] for key, found in points.items()}]
        case _:
            return one


def _micro_in(raw: Any) -> Any:
    match raw:
        case ["send", key, [offset, value]]:
            return Sent(key, value, offset)
        case ["send", key, value]:
            return Sent(key, value)
        case ["poll", points]:
            return Polled({key: tuple((o, v) for o, v in found) for key, found in points.items()})
        case _:
            return raw
