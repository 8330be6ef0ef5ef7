"""What the commands about restored metadata and stray logs show."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace import AdminClient

Row = dict[str, Any]


def restore(admin: AdminClient) -> Row | None:
    """The last restore; None: there was none."""
    from headrace_common.rpc import answers

    last = admin.describe_restore()
    return None if last is None else answers.restore(last.wire)["restore"]


def for_people(found: Row) -> Row:
    row = dict(found)
    for name in ("backup", "restore"):
        row[f"{name}_time"] = _utc(row.pop(f"{name}_time_ms"))
    return row


def waits_for(found: Row) -> str:
    """Why nobody leads yet, and what to do."""
    missing, silent = (", ".join(map(str, found[f"{which}_brokers"])) for which in ("missing", "silent"))
    if not missing and silent:
        return f"nobody leads yet: these do not say what they have, look into their logs: broker {silent}"
    if not missing:
        return "nobody leads yet: every broker has joined, and what each has is compared; ask again in a moment"
    return f"nobody leads before every broker was asked what it has; start: broker {missing}"


def strays(admin: AdminClient) -> Row:
    """Stray logs by topic, and brokers that did not answer. Every broker is asked for all it has."""
    from headrace_common.rpc import answers

    return answers.strays(admin.list_strays().wire)


def stray_for_people(row: Row) -> Row:
    brokers = sorted({log["broker"] for log in row["logs"]})
    return row | {"logs": len(row["logs"]), "brokers": brokers}


def adopt(admin: AdminClient, topic_id: str, name: str | None, partitions: int, *, dry_run: bool) -> Row:
    """What was, or would be, made."""
    from headrace_common.rpc import answers

    return answers.topic(admin.adopt_topic(topic_id, name, partitions=partitions, validate_only=dry_run).wire)


def _utc(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
