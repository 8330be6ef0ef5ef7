"""What the admin service tells of waiting readers, as OpenTelemetry gauges. ``main`` calls it once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from headrace_admin.engine.waiting_watch import WaitingWatch

PREFIX = "headrace_admin_"


def publish(meter: Meter, watch: WaitingWatch) -> None:
    """Register all gauges."""
    gauges: list[tuple[str, Callable[[], float], str]] = [
        ("hanging_transactions", watch.hanging, "Partitions in which a transaction is open that nobody will end"),
        ("held_back_partitions", watch.held_back, "Partitions whose readers of read_committed wait for long"),
        ("held_back_records", watch.held_back_records, "Records that they wait for, in all"),
        ("held_back_seconds", watch.held_back_seconds, "For how long the longest of them waits"),
        ("prepared_overdue", watch.overdue, "Transactions prepared for longer than transaction.prepared.max.ms"),
        ("transaction_looks_failed", lambda: watch.looks_failed, "Looks at open transactions without an answer"),
    ]
    for name, read, description in gauges:
        meter.create_observable_gauge(PREFIX + name, [partial(_one, read)], description=description)


def _one(read: Callable[[], float], _: CallbackOptions) -> Iterable[Observation]:
    return [Observation(read())]
