"""
What ``headrace txn`` asks the admin service, as plain rows for people and programs. The only user of the types that
``AdminClient`` has for transactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace_cli.group_view import error_of
from headrace_cli.output import moment_for_people

if TYPE_CHECKING:
    from headrace import AdminClient
    from headrace.admin_transaction_types import OpenList, OpenTransaction, TransactionDescription
    from headrace.group_types import MissingShard

Row = dict[str, Any]


def list_transactions(
    admin: AdminClient, states: Sequence[str], producer_ids: Sequence[int], older_than: str, now_ms: int
) -> Row:
    """Transactional ids, and the shards that are missing."""
    found = admin.list_transactions(states=states, producer_ids=producer_ids, older_than=older_than)
    return {
        "transactions": [
            {
                "transactional_id": t.transactional_id,
                "state": t.state,
                "producer_id": t.producer_id,
                "producer_epoch": t.producer_epoch,
                "open_seconds": _age(t.started_at_ms, now_ms),
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
        "started": moment_for_people(t.started_at_ms),
        "started_at_ms": t.started_at_ms,
        "prepared": moment_for_people(t.prepared_at_ms),
        "prepared_at_ms": t.prepared_at_ms,
        "coordinator": t.coordinator,
        "shard": t.shard,
        "token": None if t.token is None else str(t.token),
        "partitions": [
            {"topic": p.topic, "partition": p.partition, "without_marker": p in without} for p in t.partitions
        ],
    }


def prepared(admin: AdminClient, older_than: str, now_ms: int) -> Row:
    """What is prepared, with what decides it."""
    found = admin.list_prepared_transactions(older_than=older_than)
    return {
        "transactions": [
            described(t)
            | {
                "age_seconds": _age(t.prepared_at_ms, now_ms),
                "overdue": t.prepared_at_ms is not None and now_ms - t.prepared_at_ms >= found.prepared_max_ms,
            }
            for t in found.transactions
        ],
        "prepared_max_ms": found.prepared_max_ms,
        "missing_shards": _missing(found.missing),
    }


def hanging(admin: AdminClient, topics: Sequence[str], older_than: str | None, now_ms: int) -> Row:
    """What nobody will end."""
    return open_rows(admin.find_hanging_transactions(topics, older_than=older_than), now_ms)


def still_open(admin: AdminClient, topics: Sequence[str], older_than: str, now_ms: int) -> Row:
    """What is open, whoever knows of it."""
    return open_rows(admin.list_open_transactions(topics, older_than=older_than), now_ms)


def open_rows(found: OpenList, now_ms: int) -> Row:
    """What is open, and who could not be asked."""
    return {
        "transactions": [open_row(t, now_ms) for t in found.transactions],
        "more": found.more,
        "unasked": [
            {"topic": tp.topic, "partition": tp.partition, **error_of(error)} for tp, error in found.unasked.items()
        ],
        "missing_shards": _missing(found.missing),
    }


def open_row(t: OpenTransaction, now_ms: int) -> Row:
    """What a producer has open in one partition."""
    return {
        "partition": str(t.partition),
        "producer_id": t.producer_id,
        "producer_epoch": t.producer_epoch,
        "standing": t.standing,
        "transactional_id": t.transactional_id,
        "state": t.state,
        "first_offset": t.first_offset,
        "held_back": t.held_back,
        "open_seconds": _age(t.open_since_ms, now_ms),
        "open_since_ms": t.open_since_ms,
        "last_write_ms": t.last_write_ms,
    }


def _age(since_ms: int | None, now_ms: int) -> float | None:
    return None if since_ms is None else max(0, now_ms - since_ms) / 1_000


def _missing(shards: Sequence[MissingShard]) -> list[Row]:
    return [{"shard": m.shard, "coordinator": m.coordinator, **error_of(m.error)} for m in shards]
