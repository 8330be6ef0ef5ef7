"""
Decides which replicas and which preferred leaders move so that brokers carry alike; called by ``plans``.

What is balanced are tokens: a token belongs to a topic and lies on a broker. For ``Replicas`` a token is a replica,
for ``Leaders`` the preference for a leader. Both are levelled the same way, first within each topic, then over all
topics without spoiling that: as long as a broker has two tokens more than another, find the shortest chain of allowed
steps from the one to the other (an augmenting path, as in maximum flow) and take it. Without racks such a chain exists
whenever the spread is above one, so the result is within one; racks can make that impossible, and then it is as close
as chains get. Each step chosen is the one that copies least against where the replicas are now.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from headrace_admin.core.placement import PartitionName, Placement
from headrace_common.core.ids import NodeId

Spot: TypeAlias = tuple[str, NodeId]
"""A broker within a topic."""


@dataclass(frozen=True, slots=True)
class Step:
    """One token goes from ``old`` to ``new``."""

    name: PartitionName
    old: NodeId
    new: NodeId


class Tokens(Protocol):
    """What is levelled."""

    @property
    def open(self) -> list[NodeId]:
        """Brokers that take part."""
        ...

    @property
    def per_topic(self) -> Mapping[str, Counter[NodeId]]:
        """Tokens by topic and broker."""
        ...

    @property
    def total(self) -> Counter[NodeId]:
        """Tokens by broker."""
        ...

    @property
    def independent(self) -> bool:
        """Whether two steps of one partition, each of them allowed, are allowed together."""
        ...

    def best(self, topic: str, old: NodeId, new: NodeId) -> tuple[Any, Step] | None:
        """The cheapest step of the topic from ``old`` to ``new`` with its cost, if one is allowed."""
        ...

    def take(self, step: Step) -> None: ...


class Replicas:
    """Replicas as tokens: they go where the partition is not yet, and never to a more crowded rack."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self.open = placement.open
        self.per_topic = placement.per_topic
        self.total = placement.total
        self.independent = not placement.racks_shared

    def best(self, topic: str, old: NodeId, new: NodeId) -> tuple[Any, Step] | None:
        """By what has to be copied."""
        now = self._placement
        candidates = (
            name
            for name in now.holding[topic, old]
            if new not in now.replicas[name] and now.crowding_change(name, old, new) <= 0
        )
        costs = ((now.cost_of_move(name, old, new), name) for name in candidates)
        found = min(costs, default=None)
        return None if found is None else (found[0], Step(found[1], old, new))

    def take(self, step: Step) -> None:
        self._placement.move(step.name, step.old, step.new)


class Leaders:
    """Preferences for leaders as tokens: they go to another replica of the partition."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self.open = placement.open
        self.per_topic = placement.leaders_per_topic
        self.total = placement.leaders
        self.independent = True

    def best(self, topic: str, old: NodeId, new: NodeId) -> tuple[Any, Step] | None:
        """Partitions first that change anyway, or that go back to where they were."""
        now = self._placement
        led = now.leading[topic, old]
        costs = ((self._cost(name, new), name) for name in led if new in now.replicas[name])
        found = min(costs, default=None)
        return None if found is None else (found[0], Step(found[1], old, new))

    def _cost(self, name: PartitionName, new: NodeId) -> int:
        before, now = self._placement.before[name].replicas, self._placement.replicas[name]
        if new == before[0]:
            return 0
        return 1 if set(before) != set(now) or now[0] != before[0] else 2

    def take(self, step: Step) -> None:
        self._placement.prefer(step.name, step.new)


def level(tokens: Tokens) -> None:
    """Level the tokens within each topic, then over all topics."""
    if len(tokens.open) < 2:
        return
    topics = sorted(tokens.per_topic)
    for topic in topics:
        _level_topic(tokens, topic)
    bounds = {topic: _bounds(tokens, topic) for topic in topics}
    _until_level(tokens, tokens.total, lambda old, targets: _chain_over_topics(tokens, bounds, old, targets))


def _level_topic(tokens: Tokens, topic: str) -> None:
    counts = tokens.per_topic[topic]
    _until_level(tokens, counts, lambda old, targets: _chain_in_topic(tokens, topic, old, targets))


def _until_level(tokens: Tokens, counts: Counter[NodeId], chain: Callable[[NodeId, list[NodeId]], list[Step]]) -> None:
    """
    Take chains from the fullest brokers to those with at least two tokens less, until there is none. Every one lowers
    the sum of squares of the counts, so this ends.
    """
    while True:
        for old in sorted(tokens.open, key=lambda b: (-counts[b], -tokens.total[b], b)):
            emptier = [b for b in tokens.open if counts[b] <= counts[old] - 2]
            targets = sorted(emptier, key=lambda b: (counts[b], tokens.total[b], b))
            steps = chain(old, targets) if targets else []
            if steps:
                for step in steps:
                    tokens.take(step)
                break
        else:
            return


def _bounds(tokens: Tokens, topic: str) -> tuple[int, int]:
    """The least and the most tokens of a topic that levelling over topics leaves a broker with."""
    counts = [tokens.per_topic[topic][b] for b in tokens.open]
    share, rest = divmod(sum(counts), len(counts))
    return min(share, *counts), max(share + bool(rest), *counts)


def _chain_in_topic(tokens: Tokens, topic: str, old: NodeId, targets: list[NodeId]) -> list[Step]:
    for target in targets:
        if (direct := tokens.best(topic, old, target)) is not None:
            return [direct[1]]

    def next_to(spot: Spot) -> Iterable[tuple[Spot, Step]]:
        return _steps_from(tokens, topic, spot[1])

    return _checked(tokens, _search([((topic, old), None)], next_to, lambda spot: spot[1] in targets))


def _chain_over_topics(
    tokens: Tokens, bounds: Mapping[str, tuple[int, int]], old: NodeId, targets: list[NodeId]
) -> list[Step]:
    def gives(topic: str, broker: NodeId) -> bool:
        return tokens.per_topic[topic][broker] > bounds[topic][0]

    def takes(topic: str, broker: NodeId) -> bool:
        return tokens.per_topic[topic][broker] < bounds[topic][1]

    givers = [topic for topic in bounds if gives(topic, old)]
    for target in targets:
        fitting = (tokens.best(topic, old, target) for topic in givers if takes(topic, target))
        direct = min((found for found in fitting if found is not None), key=lambda f: f[0], default=None)
        if direct is not None:
            return [direct[1]]

    def next_to(spot: Spot) -> Iterable[tuple[Spot, Step | None]]:
        topic, broker = spot
        yield from _steps_from(tokens, topic, broker)
        if takes(topic, broker):  # the broker may keep this one and give one of another topic
            yield from (((other, broker), None) for other in bounds if other != topic and gives(other, broker))

    starts: list[tuple[Spot, Step | None]] = [((topic, old), None) for topic in givers]
    return _checked(tokens, _search(starts, next_to, lambda spot: spot[1] in targets and takes(*spot)))


def _steps_from(tokens: Tokens, topic: str, old: NodeId) -> Iterable[tuple[Spot, Step]]:
    for new in tokens.open:
        if new != old and (found := tokens.best(topic, old, new)) is not None:
            yield (topic, new), found[1]


def _search(
    starts: list[tuple[Spot, Step | None]],
    next_to: Callable[[Spot], Iterable[tuple[Spot, Step | None]]],
    done: Callable[[Spot], bool],
) -> list[Step]:
    """The steps of a shortest chain from a start to where it is done; empty when there is none. Breadth first."""
    came: dict[Spot, tuple[Spot, Step | None] | None] = dict.fromkeys((spot for spot, _ in starts), None)
    waiting = deque(came)
    while waiting:
        spot = waiting.popleft()
        for following, step in next_to(spot):
            if following in came:
                continue
            came[following] = (spot, step)
            if done(following):
                return _traced(came, following)
            waiting.append(following)
    return []


def _traced(came: Mapping[Spot, tuple[Spot, Step | None] | None], end: Spot) -> list[Step]:
    """The steps on the way to ``end``."""
    steps: list[Step] = []
    at: Spot = end
    while (before := came[at]) is not None:
        at, step = before
        if step is not None:
            steps.append(step)
    return steps[::-1]


def _checked(tokens: Tokens, steps: list[Step]) -> list[Step]:
    """No steps, if one of them could spoil what made another of the same partition allowed."""
    return steps if tokens.independent or len({s.name for s in steps}) == len(steps) else []
