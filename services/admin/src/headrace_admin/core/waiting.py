"""
Decides what the verdict says of transactions: what holds readers of read_committed back, and what nobody decides.

What will not end by itself degrades the cluster; what is only long is a note. Called by ``verdict``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from headrace_admin.core.transactions import OpenTransaction, Prepared, Standing, TxnState, Waiting

_DAY_S = 86_400


def describe_hanging(waiting: Waiting) -> list[str]:
    """What does not end by itself: one part for what hangs, one for what is prepared too long."""
    hanging = [t for t in waiting.holding if t.standing is Standing.HANGING]
    return [*_hanging(hanging), *_overdue(waiting.overdue)]


def describe_waiting(waiting: Waiting) -> list[str]:
    """What will end, or may, and takes long."""
    notes: list[str] = []
    overdue = {p.transactional_id for p in waiting.overdue}
    long = [t for t in waiting.holding if t.standing is not Standing.HANGING and not _is_of(t, overdue)]
    if long:
        t = long[0]
        notes.append(
            f"readers of read_committed wait in {_where(long)}: {_who(t)} is open since {moment(t.since_ms)} and holds "
            f"{format_count(t.held_back, 'record')} back; {_what_then(t)}"
        )
    if waiting.unasked:
        notes.append(
            f"whether transactions hold readers back is not known of {format_count(waiting.unasked, 'partition')}"
        )
    return notes


def _hanging(hanging: Sequence[OpenTransaction]) -> list[str]:
    if not hanging:
        return []
    t = hanging[0]
    number = format_count(len(hanging), "hanging transaction")
    return [
        f"{number} {'holds' if len(hanging) == 1 else 'hold'} readers of read_committed back in {_where(hanging)}: "
        f"{_who(t)}, open since {moment(t.since_ms)}, {format_count(t.held_back, 'record')} held back, and no "
        "coordinator is going to end it; "
        f"`headrace txn abort --partition {t.partition} --producer-id {t.producer_id}` does"
    ]


def _overdue(overdue: Sequence[Prepared]) -> list[str]:
    if not overdue:
        return []
    p = overdue[0]
    number = format_count(len(overdue), "transaction")
    return [
        f"{number} {'is' if len(overdue) == 1 else 'are'} prepared for long and decided by nobody: "
        f"{p.transactional_id!r} (producer {p.producer_id}) since {moment(p.prepared_at_ms)}; `headrace txn prepared` "
        "shows the tokens, `headrace txn commit TOKEN` or `abort TOKEN` decides"
    ]


def _is_of(t: OpenTransaction, ids: set[str]) -> bool:
    """Whether it belongs to one of these transactional ids, of which more was said already."""
    return t.owner is not None and t.owner.transactional_id in ids


def _who(t: OpenTransaction) -> str:
    if t.owner is None:
        return f"producer {t.producer_id}"
    return f"{t.owner.transactional_id!r} (producer {t.producer_id})"


def _what_then(t: OpenTransaction) -> str:
    if t.standing is not Standing.COORDINATED or t.owner is None:
        return "`headrace txn find-hanging` says whether anybody is going to end it"
    match t.owner.state:
        case TxnState.PREPARED:
            return "it is prepared, and the holder of its token decides it: `headrace txn prepared`"
        case TxnState.ONGOING:
            return f"it ends by itself or by its timeout, or with `headrace txn abort {t.owner.transactional_id}`"
    return "its end is on its way to that partition"


def _where(transactions: Sequence[OpenTransaction]) -> str:
    more = f" and {format_count(len(transactions) - 1, 'other partition')}" if len(transactions) > 1 else ""
    return f"{transactions[0].partition}{more}"


def clock(ms: int) -> str:
    """A time of day, as verdicts tell it."""
    minutes, seconds = divmod(ms // 1_000 % _DAY_S, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02} UTC"


def moment(ms: int) -> str:
    """A time that may be days ago."""
    return datetime.fromtimestamp(ms // 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def format_count(number: int, what: str) -> str:
    """``1 broker``, ``3 brokers``."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
