"""
What ``headrace txn`` asks the admin service, as plain rows for people and programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace_cli.output import moment_for_people
from headrace_common.core.errors import error_for
from headrace_common.core.moments import parse_duration_ms

if TYPE_CHECKING:
    from headrace import AdminClient

Row = dict[str, Any]


def list_transactions(admin: AdminClient, states: Sequence[str], producer_ids: Sequence[int], older_than: str) -> Row:
    """Transactional ids, and the shards that are missing."""
    from headrace.admin_transaction_types import state_number
    from headrace_common.rpc import answers
    from headrace_proto.v1 import transaction_pb2

    request = transaction_pb2.ListTransactionsRequest(
        states=map(state_number, states), producer_ids=producer_ids, older_than_ms=parse_duration_ms(older_than)
    )
    return answers.transactions(admin.ask("ListTransactions", request))


def describe(admin: AdminClient, transactional_id: str) -> Row:
    """A transactional id with its partitions. Raises: TransactionalIdNotFound."""
    from headrace_common.rpc import answers
    from headrace_proto.v1 import transaction_pb2

    request = transaction_pb2.DescribeTransactionsRequest(transactional_ids=[transactional_id])
    (found,) = admin.ask("DescribeTransactions", request).transactions
    if found.transaction.error:
        raise error_for(found.transaction.error, found.transaction.message)
    return answers.transaction(found)


def described_for_people(found: Row) -> Row:
    """The same with times as people read them, and without its partitions."""
    hidden = {"partitions", "started_at_ms", "prepared_at_ms", *(() if found["token"] else ("token",))}
    times = {name: moment_for_people(found[f"{name}_at_ms"]) for name in ("started", "prepared")}
    return {name: value for name, value in found.items() if name not in hidden} | times


def prepared(admin: AdminClient, older_than: str) -> Row:
    """What is prepared, with what decides it."""
    from headrace_common.rpc import answers
    from headrace_proto.v1 import admin_pb2

    request = admin_pb2.ListPreparedTransactionsRequest(older_than_ms=parse_duration_ms(older_than))
    return answers.transactions(admin.ask("ListPreparedTransactions", request))


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


def still_open(admin: AdminClient, topics: Sequence[str], older_than: str | None, *, hanging: bool = False) -> Row:
    """What is open, or what of it nobody will end; and who could not be asked."""
    from headrace_common.rpc import answers
    from headrace_proto.v1 import admin_pb2

    request = admin_pb2.ListOpenTransactionsRequest(
        topics=topics,
        hanging_only=hanging,
        older_than_ms=None if older_than is None else parse_duration_ms(older_than),
    )
    return answers.transactions(admin.ask("ListOpenTransactions", request))


def abort(
    admin: AdminClient, i: str, producer_id: int | None, producer_epoch: int | None = None, *, dry_run: bool
) -> Row:
    """What was aborted, or would be."""
    from headrace_common.rpc.json_form import json_of
    from headrace_proto.v1 import admin_pb2

    request = admin_pb2.AbortClusterTransactionRequest(
        transactional_id=i, producer_id=producer_id, producer_epoch=producer_epoch, validate_only=dry_run
    )
    return json_of(admin.ask("AbortTransaction", request, change=not dry_run))


def abort_hanging(
    admin: AdminClient, partition: tuple[str, int], producer_id: int | None, *, dry_run: bool, force: bool
) -> Row:
    """What was ended in a partition, or would be."""
    from headrace_common.rpc.json_form import json_of
    from headrace_proto.v1 import admin_pb2

    request = admin_pb2.AbortHangingTransactionRequest(
        topic=partition[0], partition=partition[1], producer_id=producer_id, validate_only=dry_run, force=force
    )
    return json_of(admin.ask("AbortHangingTransaction", request, change=not dry_run))


def open_for_people(row: Row, now_ms: int) -> Row:
    """The same with the partition in one word, and for how long it has been open."""
    return row | {
        "partition": f"{row['topic']}-{row['partition']}",
        "open_seconds": age_seconds(row["open_since_ms"], now_ms),
    }


def age_seconds(since_ms: int | None, now_ms: int) -> float | None:
    """How long ago; clocks differ, so never below 0."""
    return None if since_ms is None else max(0, now_ms - since_ms) / 1_000
