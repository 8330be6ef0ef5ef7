"""
What stands in a shard's partition of work groups, besides positions: see ``records``, which reads and writes by this.

Items are named in *declarations*, each of which is written once, in parts, since it may be large::

    key    format u8 = 3, kind u8 = 5, group text16, serial number i64, part u32 a part of a declaration's value, cut
    value  of a declaration: format u8 = 3, then ``_DECLARATION``, then ``_TERMS`` if it has any
    value  of a group: format u8 = 3, protocol u8 = 3, then ``_WORK``

The group's record names items by their place in a list: those of its declarations, by serial number and in their order,
each once; then ``others``. A declaration's parts stand before the first record that needs them, and go after the last;
no serial number is used twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final, NamedTuple

from headrace_coordinator.core.binary import (
    I32,
    I32S,
    I64,
    OPTIONAL_TEXT,
    TEXT,
    U8,
    Form,
    KeyForm,
    Reader,
    fields,
    many,
    pair,
    readable,
)
from headrace_coordinator.core.values import Declaration, GroupProtocol, MemberState, WorkItem

WORK_FORMAT: Final = 3
PART_BYTES: Final = 256 << 10
"""Of a declaration in one record."""
_HEAD: Final = bytes((WORK_FORMAT, GroupProtocol.WORK.value))
DECLARATION_KEY: Final = KeyForm(WORK_FORMAT, 5, "qI")
_NO_VERSION: Final = -1


class DeclarationKey(NamedTuple):
    """Of a part of a declaration."""

    group_id: str
    serial: int
    part: int


@dataclass(frozen=True, slots=True)
class WorkMemberRecord:
    """One member; items by their places."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_address: str
    rebalance_timeout_ms: int
    process_id: str
    endpoint: str
    zone: str
    transactional_id: str
    declaration: int
    """Its serial number."""
    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: Sequence[int]
    revoking: Sequence[int]
    epochs: Sequence[int]
    """Of ``assigned`` and then of ``revoking``."""
    target: Sequence[int]
    standby: Sequence[int]
    warm_up: Sequence[int]


@dataclass(frozen=True, slots=True)
class WorkRecord:
    """The durable state of a work group."""

    group_epoch: int
    item_epoch: int
    """The highest that an item, or a declaration's serial number, ever had."""
    empty_since_ms: int
    """Wall clock; -1: it is not empty."""
    declarations: Sequence[tuple[int, int]] = ()
    """Their serial numbers, ascending, and into how many parts each is cut."""
    others: Sequence[str] = ()
    left: Sequence[tuple[str, Sequence[int]]] = ()
    """Transactional ids of members that were put out, and what they had."""
    awaited: Sequence[tuple[int, str]] = ()
    """Items, and who is to take them over."""
    members: Sequence[WorkMemberRecord] = ()


_I64S: Final = many(I64)
_MEMBER: Final = fields(
    WorkMemberRecord,
    *(TEXT, OPTIONAL_TEXT, TEXT, TEXT, I32, TEXT, TEXT, TEXT, TEXT, I64, I32, I32),
    U8.of(attrgetter("value"), MemberState),
    *(I32S, I32S, _I64S, I32S, I32S, I32S),
)
_WORK: Final = fields(
    WorkRecord,
    *(I32, I64, I64),
    many(pair(I64, I32)),
    many(TEXT),
    many(pair(TEXT, I32S)),
    many(pair(I32, TEXT)),
    many(_MEMBER),
)
_ITEM: Final = fields(WorkItem, TEXT, I32, U8.of(int, bool), I32)
_ITEMS: Final[Form[Mapping[str, WorkItem]]] = many(_ITEM).of(
    lambda items: items.values(), lambda items: {item.id: item for item in items}
)
_VERSION: Final[Form[int | None]] = I64.of(
    lambda version: _NO_VERSION if version is None else version,
    lambda version: None if version == _NO_VERSION else version,
)
_TERMS: Final[Form[Mapping[str, str]]] = many(pair(TEXT, TEXT)).of(lambda terms: sorted(terms.items()), dict)
_DECLARATION: Final = fields(Declaration, TEXT, _VERSION, _ITEMS, I64, I32)


def pack_work(record: WorkRecord) -> bytes:
    return _HEAD + _WORK.pack(record)


def take_work(into: Reader) -> WorkRecord:
    """The rest of a record, behind its format and protocol."""
    return _WORK.take(into)


def cut_declaration(declaration: Declaration) -> tuple[bytes, ...]:
    """The values of its parts."""
    terms = _TERMS.pack(declaration.terms) if declaration.terms else b""
    whole = bytes((WORK_FORMAT,)) + _DECLARATION.pack(declaration) + terms
    return tuple(whole[at : at + PART_BYTES] for at in range(0, len(whole), PART_BYTES))


@readable("a declaration of a work group")
def read_declaration(parts: Iterable[bytes]) -> Declaration:
    """
    The parts, joined.

    Raises:
        RecordDamaged: as ``records.read_key``.
    """
    into = Reader(b"".join(parts))
    written = U8.take(into)
    if written != WORK_FORMAT:
        raise ValueError(f"it has format {written}")
    declaration = _DECLARATION.take(into)
    if into.has_more:
        declaration = replace(declaration, terms=_TERMS.take(into))
    into.end()
    return declaration
