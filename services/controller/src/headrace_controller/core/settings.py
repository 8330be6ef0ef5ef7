"""
What a change of settings gives, and what a described setting looks like. Called by the active controller (changes)
and by any controller (descriptions).

The tables of what exists, with bounds, are ``headrace_common.core.configs``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from headrace_common.core.configs import (
    BROKER_SETTINGS,
    TOPIC_DEFAULT_FROM,
    TOPIC_SETTINGS,
    Setting,
    Type,
    check_broker_configs,
    check_lags,
    check_topic_configs,
)
from headrace_common.core.errors import InvalidConfig, NotFound, Rejected, unknown_topic
from headrace_common.core.ids import NodeId
from headrace_common.core.image import ClusterImage, Topic
from headrace_controller.core.topics import min_isr_of


class Source(Enum):
    """Where a value comes from."""

    DEFAULT = "the built-in default"
    CLUSTER = "set for all brokers"
    BROKER = "set for this broker"
    TOPIC = "set for this topic"


class Op(Enum):
    """One kind of change."""

    SET = "set"
    DELETE = "delete"
    APPEND = "append"
    SUBTRACT = "subtract"


@dataclass(frozen=True, slots=True)
class Alteration:
    """One change of one setting."""

    name: str
    op: Op
    value: str = ""


@dataclass(frozen=True, slots=True)
class TopicResource:
    """The settings of a topic."""

    name: str


@dataclass(frozen=True, slots=True)
class BrokerResource:
    """The settings of one broker, or with ``id`` None those of all brokers."""

    id: NodeId | None


Resource = TopicResource | BrokerResource


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting as it stands."""

    setting: Setting
    value: str
    source: Source


def broker_resource(name: str) -> BrokerResource:
    """
    The resource of a broker's name on the wire: its number, or nothing for all.

    Raises:
        Rejected: it is not a number.
    """
    if not name:
        return BrokerResource(None)
    if not name.isdecimal() or int(name) > 2**31 - 1:
        raise Rejected(f"broker {name[:60]!r} is not a number; name a broker by its id, or '' for all brokers")
    return BrokerResource(NodeId(int(name)))


def alter(
    resource: Resource, own: Mapping[str, str], changes: Sequence[Alteration], cluster: Mapping[str, str], level: int
) -> dict[str, str]:
    """
    The resource's own settings after all ``changes``, checked.

    Args:
        cluster: what is set for all brokers, which the resource inherits.
        level: the cluster's feature level.

    Raises:
        InvalidConfig: unknown settings, bad values, list operations on what is no list; all in one text. Or values that
            contradict what was set before, or what is inherited.
    """
    table = TOPIC_SETTINGS if isinstance(resource, TopicResource) else BROKER_SETTINGS
    names = [c.name for c in changes]
    twice = sorted({n[:80] for n in names if names.count(n) > 1})
    if twice:
        raise InvalidConfig(f"changed more than once in one request: {', '.join(twice)}; change each once")
    result, touched = dict(own), {}
    wrong: list[str] = []
    for change in changes:
        setting = table.get(change.name)
        if change.op is Op.DELETE and setting is not None:
            if not setting.dynamic:
                wrong.append(f"{change.name} is fixed at start; change it in the process's configuration")
            result.pop(change.name, None)
        elif setting is None or change.op in {Op.SET, Op.DELETE}:
            touched[change.name] = change.value
        elif setting.type is not Type.LIST:
            wrong.append(f"{change.name} is no list; set it instead of {change.op.value}")
        else:
            touched[change.name] = _edit_list(_in_force(setting, own, cluster), change)
    try:
        result.update(_check(resource, touched, level))
    except InvalidConfig as error:
        wrong.append(str(error))
    if wrong:
        raise InvalidConfig("; ".join(wrong))
    if isinstance(resource, TopicResource):
        check_lags(result, cluster)
    else:
        check_lags({}, result if resource.id is None else {**cluster, **result})
    return result


def check_topics_of(image: ClusterImage, cluster: Mapping[str, str]) -> None:
    """
    Whether all topics could live with what is to be set for all brokers.

    Raises:
        InvalidConfig: the first by name that could not, and why.
    """
    for name in sorted(image.topic_ids):
        topic = image.topic(name)
        assert topic is not None, "it is among the names"
        try:
            check_lags(topic.configs, cluster)
        except InvalidConfig as error:
            raise InvalidConfig(f"topic {name} would contradict it: {error}") from None


def _check(resource: Resource, touched: Mapping[str, str], level: int) -> dict[str, str]:
    if isinstance(resource, TopicResource):
        return check_topic_configs(touched, level)
    return check_broker_configs(touched, one_broker=resource.id is not None)


def _in_force(setting: Setting, own: Mapping[str, str], cluster: Mapping[str, str]) -> str:
    """What a list is appended to: its own value, else what is inherited."""
    if setting.name in own:
        return own[setting.name]
    return cluster.get(TOPIC_DEFAULT_FROM.get(setting.name, setting.name), setting.default)


def describe(image: ClusterImage, resource: Resource) -> list[Entry]:
    """
    Every setting of a resource, with its value and where that comes from.

    Raises:
        NotFound: there is no such topic or broker.
    """
    match resource:
        case TopicResource(name):
            topic = image.topic(name)
            if topic is None:
                raise unknown_topic(name)
            return [_topic_entry(setting, topic, image) for setting in TOPIC_SETTINGS.values()]
        case BrokerResource(id):
            if id is not None and all(n.key.id != id for n in image.brokers()):
                raise NotFound(f"broker {id} is not registered; there are {[n.key.id for n in image.brokers()]}")
            own = {} if id is None else image.broker_configs.get(id, {})
            return [_broker_entry(setting, own, image.cluster_configs) for setting in BROKER_SETTINGS.values()]


def _edit_list(present: str, change: Alteration) -> str:
    items = [i for i in present.split(",") if i]
    given = [i.strip() for i in change.value.split(",") if i.strip()]
    if change.op is Op.APPEND:
        return ",".join([*items, *(g for g in given if g not in items)])
    return ",".join(i for i in items if i not in given)


def _topic_entry(setting: Setting, topic: Topic, image: ClusterImage) -> Entry:
    if setting.name in topic.configs:
        return Entry(setting, topic.configs[setting.name], Source.TOPIC)
    inherited = TOPIC_DEFAULT_FROM.get(setting.name)
    if inherited is not None and inherited in image.cluster_configs:
        return Entry(setting, image.cluster_configs[inherited], Source.CLUSTER)
    if setting.name == "min.insync.replicas":
        in_force = min((min_isr_of(topic, p) for p in image.partitions_of(topic)), default=1)
        return Entry(setting, str(in_force), Source.DEFAULT)
    return Entry(setting, setting.default, Source.DEFAULT)


def _broker_entry(setting: Setting, own: Mapping[str, str], cluster: Mapping[str, str]) -> Entry:
    if setting.name in own:
        return Entry(setting, own[setting.name], Source.BROKER)
    if setting.name in cluster:
        return Entry(setting, cluster[setting.name], Source.CLUSTER)
    return Entry(setting, setting.default, Source.DEFAULT)
