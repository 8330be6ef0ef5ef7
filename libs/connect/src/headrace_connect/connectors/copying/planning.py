"""Which topics are copied, under which names, and what has to be changed at the target; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace_common.core.configs import TOPIC_SETTINGS
from headrace_connect.connectors.copying.port import SourceTopic
from headrace_connect.connectors.copying.settings import CopySettings
from headrace_connect.plugin import TopicState
from headrace_connect.settings import near

_PLAIN: Final = re.compile(r"[A-Za-z0-9._-]+")
"""A pattern that is a name."""


@dataclass(frozen=True, slots=True)
class Change:
    """What makes a topic of the target follow its source."""

    topic: str
    """Of the target."""
    create: bool = False
    partitions: int | None = None
    """So many it has to have; None: it has enough."""
    configs: Mapping[str, str | None] = field(default_factory=dict)
    """To be set; None: back to the default."""


def is_copied(topic: str, settings: CopySettings) -> bool:
    """Whether the settings mean this topic of the source."""
    if topic == settings.syncs_topic or any(re.fullmatch(one, topic) for one in settings.topics_exclude):
        return False
    return any(one == topic or re.fullmatch(one, topic) for one in settings.topics)


def target_of(topic: str, settings: CopySettings) -> str:
    """The name of the copy."""
    return settings.topic_prefix + topic


def find_missing(topics: Mapping[str, SourceTopic], settings: CopySettings) -> dict[str, str]:
    """Of the setting ``topics``: what means no topic of the source, and a sentence that says so."""
    problems = {}
    for pattern in settings.topics:
        if any(pattern == topic or re.fullmatch(pattern, topic) for topic in topics):
            continue
        what = f"there is no topic {pattern}" if is_plain(pattern) else f"no topic matches {pattern}"
        problems[pattern] = f"topics: {what} at the source{near(pattern, list(topics))}"
    return problems


def is_plain(pattern: str) -> bool:
    """Whether it is meant as the name of one topic."""
    return _PLAIN.fullmatch(pattern) is not None


def plan(
    sources: Mapping[str, SourceTopic], targets: Mapping[str, TopicState], settings: CopySettings
) -> Sequence[Change]:
    """
    What has to be changed at the target, in the order of names.

    Args:
        sources: those that are copied.
    """
    changes = []
    for name, source in sorted(sources.items()):
        target = target_of(name, settings)
        wanted = _wanted(source.configs, settings)
        known = targets.get(target)
        if known is None:
            changes.append(Change(target, True, source.partitions, wanted))
            continue
        more = source.partitions if source.partitions > known.partitions else None
        configs = _differences(wanted, known.configs, settings)
        if more is not None or configs:
            changes.append(Change(target, False, more, configs))
    return changes


def find_unknown(sources: Mapping[str, SourceTopic], settings: CopySettings) -> list[str]:
    """Settings of topics that are to be copied, and that the target does not know."""
    names = {name for source in sources.values() for name in source.configs}
    return sorted(names - TOPIC_SETTINGS.keys() - set(settings.config_properties_exclude))


def _wanted(configs: Mapping[str, str], settings: CopySettings) -> dict[str, str | None]:
    if not settings.sync_topic_configs_enabled:
        return {}
    excluded = settings.config_properties_exclude
    return {name: value for name, value in configs.items() if name not in excluded and name in TOPIC_SETTINGS}


def _differences(
    wanted: Mapping[str, str | None], known: Mapping[str, str], settings: CopySettings
) -> dict[str, str | None]:
    if not settings.sync_topic_configs_enabled:
        return {}
    surplus = known.keys() - wanted.keys() - set(settings.config_properties_exclude)
    changed: dict[str, str | None] = {name: value for name, value in wanted.items() if known.get(name) != value}
    return changed | dict.fromkeys(sorted(surplus))
