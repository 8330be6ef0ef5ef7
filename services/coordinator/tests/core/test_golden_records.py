"""The bytes of every kind of record, whole: what stands in a log was written by this and must be read by what comes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace_common.core.ids import PartitionId, TopicId
from headrace_coordinator.core.records import (
    NOTE,
    ClassicMemberRecord,
    ClassicRecord,
    ConsumerMemberRecord,
    ConsumerRecord,
    DeclarationKey,
    OffsetKey,
    PendingKey,
    WorkMemberRecord,
    WorkRecord,
    cut_declaration,
    declaration_key,
    group_key,
    group_value,
    offset_key,
    offset_value,
    pending_key,
    pending_value,
    read_declaration,
    read_group,
    read_key,
    read_offset,
    read_pending,
)
from headrace_coordinator.core.transactions.owner import FREE, Owner
from headrace_coordinator.core.transactions.records import (
    Kind,
    owner_key,
    owner_row,
    read_owner,
    read_transaction,
    transaction_key,
    transaction_row,
)
from headrace_coordinator.core.transactions.records import read_key as read_transaction_key
from headrace_coordinator.core.transactions.transaction import PARTITION, Transaction
from headrace_coordinator.core.transactions.values import Decided, EndCause, Producer, TxnState
from headrace_coordinator.core.values import (
    ClassicAssignment,
    ClassicSubscription,
    CommittedOffset,
    Declaration,
    GroupState,
    MemberState,
    PendingOffset,
    TopicInfo,
    TopicPartitions,
    WorkItem,
)

TOPIC, OTHER = TopicId(b"0123456789abcdef"), TopicId(b"fedcba9876543210")
OFFSET = CommittedOffset("tö", 2**40, 3, "mm", 1_700_000_000_000)
PENDING = PendingOffset(4, 11, "tid", OFFSET)
OWNED = (TopicPartitions("t", TOPIC, (1, 3)), TopicPartitions("u", b"", ()))
CLASSIC = ClassicRecord(
    GroupState.COMPLETING_REBALANCE,
    7,
    "range",
    "m-1",
    -1,
    (
        ClassicMemberRecord(
            "m-1",
            "i",
            45_000,
            300_000,
            "client",
            "10.0.0.1",
            (("range", ClassicSubscription(("t", "u"), OWNED, 6, "rack", b"\1")), ("rr", ClassicSubscription(("t",)))),
            ClassicAssignment(OWNED, b"\2\3"),
        ),
        ClassicMemberRecord("m-2", None, 1, 2, "", "", (), ClassicAssignment()),
    ),
)
CONSUMER = ConsumerRecord(
    9,
    8,
    1_700_000_000_000,
    {"u": TopicInfo(OTHER, 2), "t": TopicInfo(TOPIC, 4)},
    (
        ConsumerMemberRecord(
            "m-1",
            "i",
            "rack",
            "client",
            "10.0.0.1",
            300_000,
            frozenset({"u", "t"}),
            "t.*",
            "uniform",
            8,
            -2,
            MemberState.UNRELEASED,
            frozenset({PartitionId(OTHER, 1), PartitionId(TOPIC, 3), PartitionId(TOPIC, 0)}),
            frozenset({PartitionId(OTHER, 0)}),
            frozenset(),
        ),
        ConsumerMemberRecord(
            "m-2", None, None, "", "", 1, frozenset(), None, None, 0, -1, MemberState.STABLE, *[frozenset()] * 3
        ),
    ),
)
WORK = WorkRecord(
    9,
    2**40,
    -1,
    ((3, 1), (4, 2)),
    ("öld",),
    (("app-m-0", (1, 2)),),
    ((0, "m-1"),),
    (
        WorkMemberRecord(
            *("m-1", "i", "client", "10.0.0.1", 45_000, "process", "host:1", "zone", "app-m-1", 4, 9, 8),
            MemberState.UNREVOKED,
            *((0, 1), (2,), (2**40, 7, 8), (0,), (3,), (0,)),
        ),
        WorkMemberRecord("m-2", None, "", "", 1, "", "", "", "", 3, 0, 0, MemberState.STABLE, *[()] * 6),
    ),
)
DECLARATION = Declaration("fö", 7, {"ä": WorkItem("ä", 5, stateful=True, standbys=2), "b": WorkItem("b")}, 10_000, 2)
PARTITIONS = [PartitionId(OTHER, 1), PartitionId(TOPIC, 70_000)]
ENDING = Transaction(
    "o/a",
    Producer(101, 3),
    60_000,
    state=TxnState.PREPARE_COMMIT,
    marker=Producer(101, 2),
    partitions=dict.fromkeys(PARTITIONS),
    packed=bytearray(b"".join(PARTITION.pack(*id) for id in PARTITIONS)),
    started_at_ms=1_700_000_000_000,
    prepared_at_ms=1_700_000_000_001,
    updated_at_ms=1_700_000_000_002,
    nonce=2**63 + 1,
    decided=Decided(Producer(101, 1), True, EndCause.UNIT, 2**63 + 1),
    continues=True,
    contested=True,
    owner_epoch=5,
)
EMPTY = Transaction("t", Producer(7, 0), 1_000)


def owner(claim: int = -1, claim_epoch: int = -1, used_at_ms: int = -1) -> Owner:
    made = Owner("o", 5, 17, claim, claim_epoch, used_at_ms, bytearray(FREE.pack(100, 5) + FREE.pack(9, 32_766)))
    made.read_undone((1).to_bytes(8, "big") + (2**64 - 1).to_bytes(8, "big"))
    return made


KEYS = {
    "key note": (read_key, NOTE, None),
    "key group": (read_key, group_key("gö"), "gö"),
    "key offset": (read_key, offset_key("gö", PARTITIONS[1]), OffsetKey("gö", PARTITIONS[1])),
    "key pending": (
        read_key,
        pending_key("gö", 2**40, PARTITIONS[1]),
        PendingKey("gö", 2**40, PARTITIONS[1]),
    ),
    "key declaration": (read_key, declaration_key("gö", 2**40, 7), DeclarationKey("gö", 2**40, 7)),
    "key transaction note": (read_transaction_key, NOTE, (Kind.NOTE, "")),
    "key transaction": (read_transaction_key, transaction_key("o/ö"), (Kind.TRANSACTION, "o/ö")),
    "key owner": (read_transaction_key, owner_key("ö"), (Kind.OWNER, "ö")),
}
VALUES: dict[str, tuple[Any, Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "offset": (OFFSET, offset_value, read_offset),
    "pending": (PENDING, pending_value, read_pending),
    "classic": (CLASSIC, group_value, read_group),
    "consumer": (CONSUMER, group_value, read_group),
    "work": (WORK, group_value, read_group),
    "declaration": (DECLARATION, lambda one: b"".join(cut_declaration(one)), lambda value: read_declaration([value])),
    "declaration without version": (
        Declaration("f", None, {}, 0, 1),
        lambda one: b"".join(cut_declaration(one)),
        lambda value: read_declaration([value]),
    ),
    "declaration with terms": (
        replace(DECLARATION, terms={"ü": "a text", "b": ""}),
        lambda one: b"".join(cut_declaration(one)),
        lambda value: read_declaration([value]),
    ),
    "transaction": (EMPTY, lambda txn: transaction_row(txn)[1], lambda value: read_transaction("t", value)),
    "transaction of owner": (ENDING, lambda txn: transaction_row(txn)[1], lambda value: read_transaction("o/a", value)),
    "owner": (owner(), lambda owner: owner_row(owner)[1], lambda value: read_owner("o", value)),
    "owner claimed": (owner(2**60, 4), lambda owner: owner_row(owner)[1], lambda value: read_owner("o", value)),
    "owner with time": (
        owner(2**60, 4, 1_700_000_000_000),
        lambda owner: owner_row(owner, with_time=True)[1],
        lambda value: read_owner("o", value),
    ),
}
GOLDEN = {
    name: bytes.fromhex(digits)
    for name, digits in (
        line.split(": ") for line in Path(__file__).with_name("golden_records.txt").read_text().splitlines()
    )
}


def test_every_kind_of_record_is_here() -> None:
    assert GOLDEN.keys() == KEYS.keys() | VALUES.keys()


@pytest.mark.parametrize("name", KEYS)
def test_a_key_has_the_bytes_that_it_always_had(name: str) -> None:
    read, key, meaning = KEYS[name]
    assert key == GOLDEN[name]
    assert read(GOLDEN[name]) == meaning


@pytest.mark.parametrize("name", VALUES)
def test_a_value_has_the_bytes_that_it_always_had(name: str) -> None:
    value, write, read = VALUES[name]
    assert write(value) == GOLDEN[name]
    assert write(read(GOLDEN[name])) == GOLDEN[name]
    assert name.startswith("owner") or read(GOLDEN[name]) == value, "an owner has a cache beside its record"
