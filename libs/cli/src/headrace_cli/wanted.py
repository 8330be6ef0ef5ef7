"""
What ``headrace apply`` is given, and what is to be changed for it. Pure; nothing is ever deleted or made smaller.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.output import format_count
from headrace_cli.wanted_access import parse_access, say
from headrace_cli.wanted_quotas import Quotas, parse_quotas
from headrace_common.core.errors import Rejected

if TYPE_CHECKING:
    from headrace.admin_types import ConfigEntry, TopicDescription
    from headrace_common.core.access.changes import Item

_HINT: Final = (
    'It is YAML or JSON: {"cluster": {"configs": {}}, "topics": '
    '[{"name": "a", "partitions": 3, "replicationFactor": 3, "configs": {"retention.ms": 86400000}}]}'
)
_INT_MAX: Final = 2**31 - 1

Configs = dict[str, str | None]
"""None: back to the default."""


@dataclass(frozen=True, slots=True)
class WantedTopic:
    """A topic as it shall be; None leaves it to the cluster."""

    name: str
    partitions: int | None
    replication_factor: int | None
    configs: Configs


@dataclass(frozen=True, slots=True)
class Wanted:
    """All that a file asks for."""

    cluster_configs: Configs
    topics: tuple[WantedTopic, ...]
    access: tuple[Item, ...] = ()
    """Roles, then bindings and rules; those that are so already too."""
    quotas: Quotas = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between what is wanted and what is."""

    kind: str
    """set cluster configs, create topic, add partitions, set topic configs, give access, set quotas."""
    topic: WantedTopic | None
    configs: Configs
    """What to set, or to create the topic with."""
    total: int | None = None
    """Partitions then."""
    access: Item | None = None
    entity: str | None = None
    """Whose quotas; their values are in ``configs``."""

    def as_row(self) -> dict[str, Any]:
        """For people and programs."""
        named = {} if self.entity is None else {"entity": self.entity}
        return (
            named
            | ({} if self.access is None else {"access": say(self.access)})
            | {
                "change": self.kind,
                "topic": None if self.topic is None else self.topic.name,
                "partitions": self.total,
                "configs": self.configs,
            }
        )


def parse(text: str, source: str) -> Wanted:
    """
    The content of a file.

    Raises:
        CommandFailed: it cannot mean anything; the text says where and what would be right.
    """
    found = _read_json(text, source) if text.lstrip()[:1] in ("{", "[") else _read_yaml(text, source)
    try:
        top = _section(found, "the file", {"cluster", "topics", "access", "quotas"})
        cluster = _section(_take_field(top, "cluster", {}), "cluster", {"configs"})
        topics = _take_field(top, "topics", [])
        if not isinstance(topics, list):
            raise _Wrong("topics takes a list")
        wanted = tuple(_topic(topic, number) for number, topic in enumerate(topics))
        names = [topic.name for topic in wanted]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise _Wrong(f"topics has {', '.join(twice)} twice")
        access = parse_access(_take_field(top, "access", {}), _section)
        quotas = parse_quotas(_take_field(top, "quotas", []), _section)
        return Wanted(_configs(_take_field(cluster, "configs", {}), "cluster.configs"), wanted, access, quotas)
    except (_Wrong, Rejected) as error:
        raise CommandFailed(f"{source}: {error}", ExitCode.USAGE, _HINT) from None


def _read_json(text: str, source: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        if isinstance(error, json.JSONDecodeError):
            with contextlib.suppress(CommandFailed):
                return _read_yaml(text, source)  # {a: b} is YAML
        raise CommandFailed(f"{source}: {error}", ExitCode.USAGE, _HINT) from None


def _read_yaml(text: str, source: str) -> Any:
    import yaml

    from headrace_common.runtime.once_yaml import OnceLoader

    try:
        return yaml.load(text, OnceLoader)
    except (yaml.YAMLError, RecursionError) as error:
        said = " ".join(str(error).split()) or "it is nested too deeply"
        raise CommandFailed(f"{source}: {said}", ExitCode.USAGE, _HINT) from None


def cluster_changes(wanted: Wanted, present: Mapping[str, ConfigEntry]) -> list[Change]:
    """What to set for all brokers."""
    now = {name: entry.value for name, entry in present.items() if entry.source == "dynamic_default_broker"}
    configs = _differing(wanted.cluster_configs, now)
    return [Change("set cluster configs", None, configs)] if configs else []


def topic_changes(wanted: WantedTopic, present: TopicDescription | None) -> list[Change]:
    """What to do for a topic; ``present`` is None where there is none of the name."""
    if present is None:
        configs = {name: value for name, value in wanted.configs.items() if value is not None}
        return [Change("create topic", wanted, dict(configs), wanted.partitions)]
    changes: list[Change] = []
    if wanted.partitions is not None and wanted.partitions > len(present.partitions):
        changes.append(Change("add partitions", wanted, {}, wanted.partitions))
    configs_now = _differing(wanted.configs, present.configs)
    if configs_now:
        changes.append(Change("set topic configs", wanted, configs_now))
    return changes


def list_unmet(wanted: WantedTopic, present: TopicDescription) -> Iterable[str]:
    """What is wanted and not done, as sentences."""
    count = len(present.partitions)
    if wanted.partitions is not None and wanted.partitions < count:
        yield f"{wanted.name} has {format_count(count, 'partition')}, {wanted.partitions} wanted: partitions never go"
    replicas = {len(p.replicas) for p in present.partitions}
    if wanted.replication_factor is not None and replicas - {wanted.replication_factor}:
        has = " to ".join(map(str, dict.fromkeys((min(replicas), max(replicas)))))
        yield (
            f"{wanted.name} has {has} replicas per partition, {wanted.replication_factor} wanted: "
            "`headrace partition move` changes that"
        )


class _Wrong(Exception):
    """What is wrong in the file."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} is there twice")
    return found


def _take_field(fields: dict[str, Any], name: str, default: Any) -> Any:
    """A field; null means that it is not given."""
    return default if fields.get(name) is None else fields[name]


def _section(value: Any, where: str, known: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Wrong(f"{where} takes an object")
    unknown = sorted(value.keys() - known)
    if unknown:
        raise _Wrong(f"{where} has no {', '.join(unknown)}; it takes {', '.join(sorted(known))}")
    return value


def _topic(value: Any, number: int) -> WantedTopic:
    where = f"topics[{number}]"
    fields = _section(value, where, {"name", "partitions", "replicationFactor", "configs"})
    name = fields.get("name")
    if not isinstance(name, str) or not name:
        raise _Wrong(f"{where} needs a name")
    return WantedTopic(
        name,
        _count(fields.get("partitions"), f"{name}: partitions"),
        _count(fields.get("replicationFactor"), f"{name}: replicationFactor"),
        _configs(_take_field(fields, "configs", {}), f"{name}: configs"),
    )


def _count(value: Any, where: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():  # Helm's JSON may write 3 as 3.0
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _INT_MAX:
        raise _Wrong(f"{where} takes a number from 1, not {value!r}")
    return value


def _configs(value: Any, where: str) -> Configs:
    if not isinstance(value, dict):
        raise _Wrong(f"{where} takes an object")
    return {name: _text(setting, f"{where}.{name}") for name, setting in value.items()}


def _text(value: Any, where: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():  # YAML gives 604800000 to Helm as 6.048e+08
        return str(int(value))
    if isinstance(value, int | float):
        return str(value)
    raise _Wrong(f"{where} takes a text, a number, true, false or null")


def _differing(wanted: Configs, now: Mapping[str, str]) -> Configs:
    return {name: value for name, value in wanted.items() if now.get(name) != value}
