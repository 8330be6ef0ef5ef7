"""
Which settings may be changed to what, and what holds for a topic in the end.

The controller checks every change here; brokers read effective values. ``setting_tables`` has all there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from headrace_common.core.errors import InvalidConfig
from headrace_common.core.features import HIGHEST, say_too_low
from headrace_common.core.setting import INT_MAX, LONG_MAX, Setting, Type
from headrace_common.core.setting_tables import BROKER_SETTINGS, TOPIC_DEFAULT_FROM, TOPIC_SETTINGS, WEEK_MS

__all__ = [
    "BROKER_SETTINGS",
    "INT_MAX",
    "LONG_MAX",
    "TOPIC_DEFAULT_FROM",
    "TOPIC_SETTINGS",
    "WEEK_MS",
    "Setting",
    "TopicConfig",
    "Type",
    "check_broker_configs",
    "check_lags",
    "check_topic_configs",
    "min_isr_in_force",
]


def check_topic_configs(configs: Mapping[str, str], level: int) -> dict[str, str]:
    """
    All of a topic's own settings, as they are stored. ``check_lags`` compares them with what it inherits.

    Args:
        level: the cluster's feature level.

    Raises:
        InvalidConfig: all that is wrong, in one text.
    """
    return _check(TOPIC_SETTINGS, configs, _not_of_topics, level)


def check_broker_configs(configs: Mapping[str, str], *, one_broker: bool = False) -> dict[str, str]:
    """
    The same for dynamic broker settings; those fixed at start are refused.

    Args:
        one_broker: they are to hold for one broker only, so those of the cluster are refused too.
    """
    known = [BROKER_SETTINGS[n] for n in configs if n in BROKER_SETTINGS]
    if fixed := sorted(s.name for s in known if not s.dynamic):
        raise InvalidConfig(f"{', '.join(fixed)}: fixed at start; set it in the broker's configuration")
    if one_broker and (shared := sorted(s.name for s in known if not s.per_broker)):
        raise InvalidConfig(
            f"{', '.join(shared)}: the same for all brokers; set it for the cluster, not for one broker"
        )
    return _check(BROKER_SETTINGS, configs, _not_of_brokers, HIGHEST)


def check_lags(own: Mapping[str, str], cluster: Mapping[str, str]) -> None:
    """
    Whether a topic with these settings, own and inherited ones, could be compacted at all.

    Raises:
        InvalidConfig: records must be compacted before they may be.
    """
    (low, whose_low), (high, whose_high) = (
        _origin(name, own, cluster) for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    )
    if int(low) > int(high):
        raise InvalidConfig(f"{whose_low}={low} is above {whose_high}={high}; lower the first or raise the second")


def _check(
    table: Mapping[str, Setting], configs: Mapping[str, str], unknown: Callable[[str], str], level: int
) -> dict[str, str]:
    good: dict[str, str] = {}
    wrong: list[str] = []
    for name, value in configs.items():
        setting = table.get(name)
        if setting is None:
            wrong.append(unknown(name))
            continue
        if setting.feature is not None and setting.feature.level > level:
            wrong.append(say_too_low(name, setting.feature, level))
            continue
        try:
            good[name] = setting.check(value)
        except InvalidConfig as error:
            wrong.append(str(error))
    wrong += [
        f"{name} cannot be empty; it takes delete, compact, or both"
        for name in ("cleanup.policy", "log.cleanup.policy")
        if good.get(name) == ""
    ]
    if wrong:
        raise InvalidConfig("; ".join(wrong))
    return good


def _not_of_topics(name: str) -> str:
    own = next((topic for topic, broker in TOPIC_DEFAULT_FROM.items() if broker == name), None)
    if own is not None:
        return f"{name} is the default of all topics; for one topic it is {own}"
    if name in BROKER_SETTINGS:
        return f"{name} is a broker setting, not a topic's"
    return _unknown(name, TOPIC_SETTINGS, "topic")


def _not_of_brokers(name: str) -> str:
    if name in TOPIC_DEFAULT_FROM:
        return f"{name} is a topic setting; the default of all topics is {TOPIC_DEFAULT_FROM[name]}"
    if name in TOPIC_SETTINGS:
        return f"{name} is a topic setting, not a broker's"
    return _unknown(name, BROKER_SETTINGS, "broker")


def _unknown(name: str, table: Mapping[str, Setting], what: str) -> str:
    near = get_close_matches(name[:80], table, n=1, cutoff=0.75)
    return f"{name[:80]} is not a {what} setting" + (f"; is {near[0]} meant?" if near else "")


def _origin(name: str, own: Mapping[str, str], cluster: Mapping[str, str]) -> tuple[str, str]:
    """The value in force, and the name of the setting that it is from."""
    inherited = TOPIC_DEFAULT_FROM.get(name)
    if name in own:
        return own[name], name
    if inherited is not None and inherited in cluster:
        return cluster[inherited], inherited
    return TOPIC_SETTINGS[name].default, name


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The effective settings of one topic, parsed."""

    max_message_bytes: int
    timestamp_after_max_ms: int
    timestamp_before_max_ms: int
    log_append_time: bool
    min_insync_replicas: int | None
    """None: by the number of replicas, see ``min_isr_in_force``."""
    retention_bytes: int
    """-1: no bound; so it is without the policy delete."""
    retention_ms: int
    """-1: for ever; so it is without the policy delete."""
    segment_bytes: int
    segment_ms: int
    segment_jitter_ms: int = 0
    compacts: bool = False
    """Whether the policy has compact."""
    dirty_ratio_min: float = 0.5
    """``min.cleanable.dirty.ratio``."""
    compaction_lag_ms_min: int = 0
    compaction_lag_ms_max: int = LONG_MAX
    delete_retention_ms: int = 86_400_000
    compression_type: str = "producer"
    """A codec's name, ``uncompressed``, or ``producer``: as it was sent."""
    fencing_required: bool = False
    """``fencing.required``: appends without a fencing token are refused."""
    producer_ids_max: int = 10_000
    """``producer.ids.max``, of the broker."""

    @staticmethod
    def effective(own: Mapping[str, str], cluster: Mapping[str, str]) -> TopicConfig:
        """From the topic's own settings and the cluster's dynamic defaults; both were checked before."""

        def value(name: str) -> str:
            return _origin(name, own, cluster)[0]

        policies = value("cleanup.policy").split(",")
        deletes = "delete" in policies
        return TopicConfig(
            max_message_bytes=int(value("max.message.bytes")),
            timestamp_after_max_ms=int(value("message.timestamp.after.max.ms")),
            timestamp_before_max_ms=int(value("message.timestamp.before.max.ms")),
            log_append_time=value("message.timestamp.type") == "LogAppendTime",
            min_insync_replicas=int(own["min.insync.replicas"]) if "min.insync.replicas" in own else None,
            retention_bytes=int(value("retention.bytes")) if deletes else -1,
            retention_ms=int(value("retention.ms")) if deletes else -1,
            segment_bytes=int(value("segment.bytes")),
            segment_ms=int(value("segment.ms")),
            segment_jitter_ms=int(value("segment.jitter.ms")),
            compacts="compact" in policies,
            dirty_ratio_min=float(value("min.cleanable.dirty.ratio")),
            compaction_lag_ms_min=int(value("min.compaction.lag.ms")),
            compaction_lag_ms_max=int(value("max.compaction.lag.ms")),
            delete_retention_ms=int(value("delete.retention.ms")),
            compression_type=value("compression.type"),
            fencing_required=value("fencing.required") == "true",
            producer_ids_max=int(cluster.get("producer.ids.max", BROKER_SETTINGS["producer.ids.max"].default)),
        )


def min_isr_in_force(own: int | None, replicas: int, *, adding: int = 0, removing: int = 0) -> int:
    """
    How many replicas must be in sync: what the topic says (``own``), else 2 of three or more, else 1.

    Never more than there are; while replicas are exchanged (``adding`` and ``removing`` of ``replicas``), as many as
    there were before or will be after, whichever is less.
    """
    settled = max(1, replicas - max(adding, removing))
    wanted = own if own is not None else 2 if settled >= 3 else 1
    return min(wanted, settled)
