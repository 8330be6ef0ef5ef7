"""
Publishes plain numbers as OpenTelemetry instruments, read when Prometheus asks and not before.

``main`` calls it once. Distributions appear as cumulative counters ``…_bucket`` with an ``le`` attribute, ``…_sum``
and ``…_count``, so that ``histogram_quantile`` works on them and the hot path pays one list increment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import partial

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from headrace_broker.core.measures import Distribution, Measures, PartitionGauges, TopicGauges

PREFIX = "headrace_broker_"


def publish(
    meter: Meter,
    measures: Measures,
    gauges: Mapping[str, Callable[[], float]],
    partitions: Callable[[], Iterable[PartitionGauges]],
    topics: Callable[[], Iterable[TopicGauges]],
) -> None:
    """Create all instruments of one broker; the callables are called at each look, from the endpoint's thread."""
    for field in fields(measures):
        value = getattr(measures, field.name)
        if isinstance(value, Distribution):
            _distribution(meter, PREFIX + field.name, value)
        else:
            _counter(meter, PREFIX + field.name, partial(getattr, measures, field.name))
    for name, read in gauges.items():
        meter.create_observable_gauge(PREFIX + name, [partial(_one, read)])
    for name in ("log_start", "log_end", "high_watermark", "last_stable"):
        meter.create_observable_gauge(PREFIX + name, [partial(_per_partition, partitions, name)])
    for name in ("log_bytes", "oldest_age_s"):
        meter.create_observable_gauge(PREFIX + name, [partial(_per_topic, topics, name)])


def _counter(meter: Meter, name: str, read: Callable[[], float]) -> None:
    meter.create_observable_counter(name, [partial(_one, read)])


def _one(read: Callable[[], float], options: CallbackOptions) -> Iterable[Observation]:
    del options
    return [Observation(read())]


def _distribution(meter: Meter, name: str, values: Distribution) -> None:
    meter.create_observable_counter(f"{name}_bucket", [partial(_buckets, values)])
    _counter(meter, f"{name}_sum", lambda: values.total)
    _counter(meter, f"{name}_count", lambda: values.count)


def _buckets(values: Distribution, options: CallbackOptions) -> Iterable[Observation]:
    del options
    total = 0
    for bound, count in zip((*map(str, values.bounds), "+Inf"), values.counts, strict=True):
        total += count
        yield Observation(total, {"le": bound})


def _per_partition(
    partitions: Callable[[], Iterable[PartitionGauges]], name: str, options: CallbackOptions
) -> Iterable[Observation]:
    del options
    return [
        Observation(getattr(one, name), {"topic": one.topic, "partition": str(one.partition)}) for one in partitions()
    ]


def _per_topic(
    topics: Callable[[], Iterable[TopicGauges]], name: str, options: CallbackOptions
) -> Iterable[Observation]:
    del options
    return [Observation(getattr(one, name), {"topic": one.topic}) for one in topics()]
