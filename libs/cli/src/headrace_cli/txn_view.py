"""
What ``headrace txn`` asks the admin service, as plain rows for people and programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace_cli.output import moment_for_people

if TYPE_CHECKING:
    from headrace import AdminClient

Row = dict[str, Any]


def list_transactions(admin: AdminClient, states: Sequence[str], producer_ids: Sequence[int], older_than: str) -> Row:
    """Transactional ids, and the shards that are missing."""
    from headrace_common.rpc import answers

    found = admin.list_transactions(states=states, producer_ids=producer_ids, older_than=older_than)
    return answers.transactions(found.wire)


def describe(admin: AdminClient, transactional_id: str) -> Row:
    """A transactional id with its partitions. Raises: TransactionalIdNotFound."""
    from headrace_common.rpc import answers

    return answers.transaction(admin.describe_transaction(transactional_id).wire)


def format_transaction(found: Row) -> Row:
    """The same with times as people read them, and without its partitions."""
    hidden = {"partitions", "started_at_ms", "prepared_at_ms", *(() if found["token"] else ("token",))}
    times = {name: moment_for_people(found[f"{name}_at_ms"]) for name in ("started", "prepared")}
    return {name: value for name, value in found.items() if name not in hidden} | times


def list_prepared(admin: AdminClient, older_than: str) -> Row:
    from headrace_common.rpc import answers

    return answers.transactions(admin.list_prepared_transactions(older_than=older_than).wire)


def format_prepared(found: Row, now_ms: int) -> list[Row]:
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

    if hanging:
        return answers.transactions(admin.find_hanging_transactions(topics, older_than=older_than).wire)
    return answers.transactions(admin.list_open_transactions(topics, older_than=older_than or 0).wire)


def abort(
    admin: AdminClient, i: str, producer_id: int | None, producer_epoch: int | None = None, *, dry_run: bool
) -> Row:
    """What was aborted, or would be."""
    from headrace_common.rpc import answers

    before = admin.abort_transaction(i, producer_id=producer_id, producer_epoch=producer_epoch, validate_only=dry_run)
    return {"transaction": answers.transaction(before.wire), "aborted": not dry_run}


def abort_hanging(
    admin: AdminClient, partition: tuple[str, int], producer_id: int | None, *, dry_run: bool, force: bool
) -> Row:
    """What was ended in a partition, or would be."""
    from headrace_common.rpc.json_form import json_of

    before = admin.abort_hanging_transaction(partition, producer_id, validate_only=dry_run, force=force)
    return {"transaction": json_of(before.wire), "aborted": not dry_run}


def open_for_people(row: Row, now_ms: int) -> Row:
    """The same with the partition in one word, and for how long it has been open."""
    return row | {
        "partition": f"{row['topic']}-{row['partition']}",
        "open_seconds": age_seconds(row["open_since_ms"], now_ms),
    }


def age_seconds(since_ms: int | None, now_ms: int) -> float | None:
    """How long ago; clocks differ, so never below 0."""
    return None if since_ms is None else max(0, now_ms - since_ms) / 1_000
