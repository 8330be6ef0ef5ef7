"""
What ``headrace txn`` asks the admin service, as plain rows for people and programs. The only user of the types that
``AdminClient`` has for transactions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from headrace_cli.group_view import error_of, missing_row
from headrace_cli.output import moment_for_people

if TYPE_CHECKING:
    from headrace import AdminClient
    from headrace.admin_transaction_types import OpenList, OpenTransaction, TransactionDescription
    from headrace.group_types import MissingShard
    from headrace.records import TopicPartition
    from headrace_common.core.errors import ErrorCode, HeadraceError

Row = dict[str, Any]

_WHERE: Final = "/v1/transactions"


def list_transactions(admin: AdminClient, states: Sequence[str], producer_ids: Sequence[int], older_than: str) -> Row:
    """Transactional ids, and the shards that are missing."""
    found = admin.list_transactions(states=states, producer_ids=producer_ids, older_than=older_than)
    return {
        "transactions": [
            {
                "transactional_id": t.transactional_id,
                "state": t.state,
                "producer_id": t.producer_id,
                "producer_epoch": t.producer_epoch,
                "started_at_ms": t.started_at_ms,
                "prepared_at_ms": t.prepared_at_ms,
                "coordinator": t.coordinator,
            }
            for t in found.transactions
        ],
        "missing_shards": _missing(found.missing),
    }


def describe(admin: AdminClient, transactional_id: str) -> Row:
    """A transactional id with its partitions."""
    return described(admin.describe_transaction(transactional_id))


def described(t: TransactionDescription) -> Row:
    """A transactional id with its partitions."""
    without = set(t.without_marker)
    return {
        "transactional_id": t.transactional_id,
        "state": t.state,
        "producer_id": t.producer_id,
        "producer_epoch": t.producer_epoch,
        "timeout_ms": t.timeout_ms,
        "started_at_ms": t.started_at_ms,
        "prepared_at_ms": t.prepared_at_ms,
        "coordinator": t.coordinator,
        "shard": t.shard,
        "token": None if t.token is None else str(t.token),
        "partitions": [
            {"topic": p.topic, "partition": p.partition, "without_marker": p in without} for p in t.partitions
        ],
    }


def described_for_people(found: Row) -> Row:
    """The same with times as people read them, and without its partitions."""
    hidden = {"partitions", "started_at_ms", "prepared_at_ms", *(() if found["token"] else ("token",))}
    times = {name: moment_for_people(found[f"{name}_at_ms"]) for name in ("started", "prepared")}
    return {name: value for name, value in found.items() if name not in hidden} | times


def prepared(admin: AdminClient, older_than: str) -> Row:
    """What is prepared, with what decides it."""
    found = admin.list_prepared_transactions(older_than=older_than)
    return {
        "transactions": [described(t) for t in found.transactions],
        "prepared_max_ms": found.prepared_max_ms,
        "missing_shards": _missing(found.missing),
    }


def prepared_for_people(found: Row, now_ms: int) -> list[Row]:
    """What is prepared, with how long it has been, and whether that is too long."""
    return [
        t
        | {
            "prepared": moment_for_people(t["prepared_at_ms"]),
            "age_seconds": age_seconds(t["prepared_at_ms"], now_ms),
            "overdue": t["prepared_at_ms"] is not None and now_ms - t["prepared_at_ms"] >= found["prepared_max_ms"],
        }
        for t in found["transactions"]
    ]


def open_list(found: OpenList) -> Row:
    """What is open, and who could not be asked."""
    return {
        "transactions": [open_row(t) for t in found.transactions],
        "more": found.more,
        "unasked": _unasked(found.unasked),
        "missing_shards": _missing(found.missing),
    }


def _unasked(unasked: Mapping[TopicPartition, HeadraceError]) -> list[Row]:
    """One row per topic and kind of error."""
    rows: dict[tuple[str, ErrorCode], Row] = {}
    for tp, error in sorted(unasked.items()):
        row: Row = {"topic": tp.topic, "partitions": [], "error": error_of(error, _WHERE)}
        rows.setdefault((tp.topic, error.code), row)["partitions"].append(tp.partition)
    return list(rows.values())


def open_row(t: OpenTransaction) -> Row:
    """What a producer has open in one partition."""
    return {
        "topic": t.partition.topic,
        "partition": t.partition.partition,
        "producer_id": t.producer_id,
        "producer_epoch": t.producer_epoch,
        "first_offset": t.first_offset,
        "held_back": t.held_back,
        "open_since_ms": t.open_since_ms,
        "last_write_ms": t.last_write_ms,
        "standing": t.standing,
        "transactional_id": t.transactional_id,
        "state": t.state,
    }


def open_for_people(row: Row, now_ms: int) -> Row:
    """The same with the partition in one word, and for how long it has been open."""
    return row | {
        "partition": f"{row['topic']}-{row['partition']}",
        "open_seconds": age_seconds(row["open_since_ms"], now_ms),
    }


def age_seconds(since_ms: int | None, now_ms: int) -> float | None:
    """How long ago; clocks differ, so never below 0."""
    return None if since_ms is None else max(0, now_ms - since_ms) / 1_000


def _missing(shards: Sequence[MissingShard]) -> list[Row]:
    return [missing_row(m, _WHERE) for m in shards]
