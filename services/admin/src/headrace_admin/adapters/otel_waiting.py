"""What the admin service tells of waiting readers, as OpenTelemetry gauges. ``main`` calls it once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

PREFIX: Final = "headrace_admin_"

GAUGES: Final[Mapping[str, str]] = {
    "hanging_transactions": "Partitions in which a transaction is open that nobody will end",
    "held_back_partitions": "Partitions whose readers of read_committed wait for long",
    "held_back_records": "Records that they wait for, in all",
    "held_back_seconds": "For how long the longest of them waits",
    "prepared_overdue": "Transactions prepared for longer than transaction.prepared.max.ms",
    "transaction_looks_failed": "Looks at open transactions without an answer",
}


def publish(meter: Meter, readings: Mapping[str, Callable[[], float]]) -> None:
    """Register all gauges; ``readings`` has one for each name of ``GAUGES``, called from the endpoint's thread."""
    for name, description in GAUGES.items():
        meter.create_observable_gauge(PREFIX + name, [partial(_one, readings[name])], description=description)


def _one(read: Callable[[], float], _: CallbackOptions) -> Iterable[Observation]:
    return [Observation(read())]
