"""
What the group of an app says of it when its program is not at hand: whose an internal topic is.

Names do not say it: ``a.b.x.changelog`` may be of the app ``a`` or of ``a.b``. But a work group remembers the tasks of
its newest program, also while no worker runs, and the positions of an app stand in the repartition topics that it
reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.records import TopicPartition

CHANGELOG: Final = ".changelog"
REPARTITION: Final = ".repartition"


def is_internal(topic: str, app: str) -> bool:
    """Whether the name is one that an app of this name gives to its own topics."""
    return topic.startswith(f"{app}.") and topic.endswith((CHANGELOG, REPARTITION))


def part_of(topic: str, app: str) -> str:
    """What an internal topic is called within its app: a changelog as its sub-topology, others as their repartition."""
    return topic.removeprefix(f"{app}.").removesuffix(CHANGELOG).removesuffix(REPARTITION)


def apps_of(topics: Iterable[str]) -> set[str]:
    """What apps would be called that could have one of these internal topics, by their names alone."""
    found = set()
    for topic in topics:
        pieces = topic.removesuffix(CHANGELOG).removesuffix(REPARTITION).split(".")
        found |= {".".join(pieces[:count]) for count in range(1, len(pieces))}
    return found


@dataclass(frozen=True, slots=True)
class Known:
    """What the group of an app says."""

    app: str
    works: bool = False
    """It is a work group, as those of apps are."""
    members: int = 0
    parts: frozenset[str] = frozenset()
    """The sub-topologies with state of its newest program."""
    hops: frozenset[str] = frozenset()
    """The repartition topics that its workers send to; none while no worker runs."""
    positions: Mapping[TopicPartition, int] = field(default_factory=dict)

    def has(self, topic: str) -> bool:
        """Whether an internal topic is the app's; False also where the group does not say."""
        if not self.works or not is_internal(topic, self.app):
            return False
        if topic.endswith(CHANGELOG):
            return part_of(topic, self.app) in self.parts
        return topic in self.hops or any(tp.topic == topic for tp in self.positions)


def taken(app: str, topic: str, other: str) -> tuple[str, str]:
    """Why an app cannot use a topic that is another one's, and what to do."""
    return (
        f"the topic {topic} belongs to the app {other}, and {app} would use it too: the name of an app and those of "
        "its steps are put together with dots",
        f"give this app, or the step, another name; if {other} is not needed any more, headrace group delete {other}, "
        f"then headrace streams reset {app}",
    )
