"""
A plan as sub-topologies: it is cut where rows change their task, at the repartition topics.

A sub-topology over one partition is a task. All topics that a sub-topology reads have equally many partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace_streams.core.errors import NotAllowed
from headrace_streams.core.operators.base import Operator
from headrace_streams.core.operators.columns import Merge
from headrace_streams.core.operators.global_join import GlobalRows
from headrace_streams.core.operators.hop import interval_ms
from headrace_streams.core.outputs import Limits, Output
from headrace_streams.core.rows import KEY, NO_TIME, user_columns
from headrace_streams.core.state.chosen import Between, OfKey
from headrace_streams.core.state.store import Cold
from headrace_streams.core.task import FAIL, SKIP, Hop, Inputs, Link, Step, Task
from headrace_streams.plan.nodes import (
    JOIN,
    REPARTITION,
    SINK,
    SOURCE,
    Making,
    Node,
    Plan,
    changelog_topic,
    is_internal,
    partitions_text,
    repartition_topic,
)

JOINED: Final = "_and_"
"""In the name of a sub-topology: between those of what it reads."""
_ENTRY: Final = 1_000_000
"""Added to the number of a repartition node: where its rows enter the next sub-topology."""


@dataclass(frozen=True, slots=True)
class SubTopology:
    """A part of a plan that one task runs."""

    name: str
    """Of the topics and repartitions that it reads: it stays the same when steps between are added or removed."""
    nodes: tuple[Node, ...]
    topics: tuple[str, ...]
    """That it reads, repartition topics not counted."""
    hops: tuple[Node, ...]
    """The repartitions that it reads."""

    @property
    def stateful(self) -> bool:
        """Whether it keeps more than positions."""
        return any(node.stateful for node in self.nodes)

    @property
    def in_order(self) -> bool:
        """Whether it matters in which order the records of its inputs are fed: it joins them."""
        return len(self.topics) + len(self.hops) > 1 and any(node.kind == JOIN for node in self.nodes)

    @property
    def tables(self) -> frozenset[str]:
        """The topics that it reads as tables."""
        sources = [node for node in self.nodes if node.kind == SOURCE and node.settings.get("deletes")]
        return frozenset(topic for node in sources for topic in node.topics)

    @property
    def stores(self) -> list[str]:
        """Their names."""
        return [node.name for node in self.nodes if node.stateful]

    @property
    def form(self) -> dict[str, str]:
        """In which form each part of its state is kept."""
        return {f"{node.name}{part}": form for node in self.nodes for part, form in node.form.items()}


def sub_topologies(plan: Plan) -> list[SubTopology]:
    """The parts of a plan, each after those whose rows it reads."""
    root = list(range(len(plan.nodes)))

    def find(node: int) -> int:
        while root[node] != node:
            node = root[node]
        return node

    for node in plan.nodes:
        joined = [i.node for i in node.inputs if plan.nodes[i.node].kind != REPARTITION]
        # Nodes that read the same repartition topic are one part too.
        joined += [first for i in node.inputs if (first := _first_reader(plan, i.node)) is not None]
        for other in joined:
            root[find(other)] = find(node.id)
    parts: dict[int, list[Node]] = {}
    for node in plan.nodes:
        parts.setdefault(find(node.id), []).append(node)
    found = _in_order([_part(plan, nodes) for nodes in parts.values()])
    for one, another in combinations(found, 2):
        if one.name == another.name:
            raise NotAllowed(
                f"two parts of the program would both be called {one.name!r}; rename a topic that one reads"
            )
    return found


def _in_order(parts: list[SubTopology]) -> list[SubTopology]:
    """
    Senders before receivers. There are no circles: a node has only earlier ones as inputs. What goes to and fro between
    two tables is not counted.
    """
    ordered: list[SubTopology] = []
    written: set[int] = set()
    while len(ordered) < len(parts):
        for part in parts:
            if part not in ordered and all(hop.id in written or hop.answers for hop in part.hops):
                ordered.append(part)
                written |= {node.id for node in part.nodes}
    return ordered


def _first_reader(plan: Plan, node: int) -> int | None:
    """The first node that reads a repartition."""
    if plan.nodes[node].kind != REPARTITION:
        return None
    return next(other.id for other in plan.nodes if any(i.node == node for i in other.inputs))


def _part(plan: Plan, nodes: list[Node]) -> SubTopology:
    topics = tuple(topic for node in nodes if node.kind == SOURCE for topic in node.topics)
    read = {i.node for node in nodes for i in node.inputs if plan.nodes[i.node].kind == REPARTITION}
    hops = tuple(plan.nodes[node] for node in sorted(read))
    sources = [node for node in nodes if node.kind == SOURCE]
    names = [name for node in sources for name in ((node.name,) if node.pattern else node.topics)]
    return SubTopology(JOINED.join(sorted([*names, *(hop.name for hop in hops)])), tuple(nodes), topics, hops)


def on_topics(app: str, plan: Plan, on_error: str, topics: Iterable[str]) -> Plan:
    """A program with the topics that its patterns match; none of the app's own, and none that get its dead letters."""
    return plan.matching({topic for topic in topics if not is_internal(app, topic)} - {on_error})


class Assembly:
    """A plan for topics that exist: how many tasks it has, and the tasks themselves."""

    def __init__(
        self,
        app: str,
        plan: Plan,
        partitions: Mapping[str, int],
        on_error: str = FAIL,
        tables: Mapping[str, GlobalRows] | None = None,
        limits: Mapping[str, Limits] | None = None,
        watermark_interval_ms: int = 0,
    ) -> None:
        """
        Args:
            partitions: of each topic that the plan reads.
            tables: those that are here whole, by topic.
            limits: of topics that it writes, as far as they are known.
            watermark_interval_ms: how often repartition topics are told event time alone; 0: with each flush.

        Raises:
            NotAllowed: topics that one task reads differ in their number of partitions; or the plan reads none.
        """
        self.app = app
        self.parts = sub_topologies(plan)
        if not self.parts:
            raise NotAllowed(f"{app} reads no topic: give it one, stream = app.stream('orders', value=…)")
        self._on_error = on_error
        self._tables = tables or {}
        self._limits = limits or {}
        self._interval_ms = watermark_interval_ms
        self._tasks: dict[str, int] = {}
        self.repartitions: dict[str, int] = {}
        """The number of partitions of each repartition topic, by the name of the repartition."""
        self._senders: dict[str, int] = {}
        for part in self.parts:
            self._count(part, partitions)
        for part in self.parts:
            self.repartitions |= {hop.name: self._tasks[part.name] for hop in part.hops if hop.answers}

    @staticmethod
    def written_by(plan: Plan) -> list[str]:
        """The topics that a program writes its rows to."""
        return list(dict.fromkeys(topic for node in plan.nodes if node.kind == SINK for topic in node.topics))

    @staticmethod
    def topics_of(plan: Plan, on_error: str) -> list[str]:
        """The topics that a program reads and writes, and that must exist before it."""
        named = [topic for node in plan.nodes if node.kind in (SOURCE, SINK) for topic in node.topics]
        named += [one.topic for one in plan.globals]
        policies = [on_error, *(node.on_error for node in plan.nodes)]
        return list(dict.fromkeys([*named, *(policy for policy in policies if policy not in ("", FAIL, SKIP))]))

    @property
    def columns(self) -> dict[str, Mapping[str, str]]:
        """Names and types of the columns of the rows in each repartition topic."""
        hops = (hop for part in self.parts for hop in part.hops)
        return {repartition_topic(self.app, hop.name): hop.settings["columns"] for hop in hops}

    def check(self, partitions: Mapping[str, int]) -> None:
        """
        Hold internal topics that exist against what they must be.

        Raises:
            NotAllowed: one has another number of partitions: its rows or its state would be in the wrong tasks.
        """
        for topic, count in self.internal().items():
            if partitions[topic] != count:
                raise NotAllowed(
                    f"the topic {topic} has {partitions_text(partitions[topic])}, and the program needs {count}: "
                    "a topic that it reads was enlarged, or the plan changed; start under another app name, or "
                    f"`headrace streams reset {self.app}`"
                )

    def internal(self) -> dict[str, int]:
        """The topics that the app makes for itself, with their numbers of partitions."""
        wanted = {repartition_topic(self.app, name): count for name, count in self.repartitions.items()}
        return wanted | {
            changelog_topic(self.app, part.name): self.tasks_of(part) for part in self.parts if part.stateful
        }

    def _count(self, part: SubTopology, partitions: Mapping[str, int]) -> None:
        counts = {topic: partitions[topic] for topic in part.topics}
        counts |= {
            repartition_topic(self.app, hop.name): self.repartitions[hop.name] for hop in part.hops if not hop.answers
        }
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{topic} has {count}" for topic, count in counts.items())
            outside = {partitions[topic] for topic in part.topics}
            moved = [hop.name for hop in part.hops if not hop.answers and {self.repartitions[hop.name]} != outside]
            do = "put repartition(n, name=…) behind one of them"
            if moved and len(outside) == 1:
                do = f"say repartition({outside.pop()}, name={moved[0]!r})"
            raise NotAllowed(f"one task reads topics of different numbers of partitions: {listed}; {do}")
        count = self._tasks[part.name] = next(iter(counts.values()), 0)
        for node in part.nodes:
            if node.kind == REPARTITION:
                self.repartitions[node.name] = node.partitions or count
                self._senders[node.name] = count

    def hops_of(self, part: SubTopology) -> list[str]:
        """The repartition topics that it reads."""
        return [repartition_topic(self.app, hop.name) for hop in part.hops]

    def sender_of(self, hop: Node) -> SubTopology:
        """Who writes a repartition topic."""
        return next(part for part in self.parts if hop in part.nodes)

    def topics_behind(self, part: SubTopology) -> list[str]:
        """What its state is made of: the topics that it reads, and those of others that all senders before it read."""
        senders = {part.name: part}
        waiting = [part]
        while waiting:
            for hop in waiting.pop().hops:
                sender = self.sender_of(hop)
                if sender.name not in senders:
                    senders[sender.name] = sender
                    waiting.append(sender)
        of_others = [topic for sender in senders.values() for topic in sender.topics]
        return list(dict.fromkeys([*part.topics, *self.hops_of(part), *of_others]))

    def tasks_of(self, part: SubTopology) -> int:
        """How many tasks it has: its number of partitions."""
        return self._tasks[part.name]

    def read(
        self,
        store: str,
        partition: int,
        cold: Cold,
        key: bytes | None = None,
        first: bytes | None = None,
        last: bytes | None = None,
    ) -> pa.Table | None:
        """
        What a store holds, as rows of the user's columns; None: it has nothing that can be shown.

        Args:
            cold: its committed state in the task of that partition.
            key: of its rows those with this key.
            first, last: of its rows those whose keys are not below and not above, by their bytes.
        """
        part = next(part for part in self.parts if store in part.stores)
        step = self.make(part, partition).step(store)
        kept = step.operator.store
        assert kept is not None
        if kept.key_at is not None and key is not None:
            cold = OfKey(cold, key, kept.key_at)
        elif kept.key_at is not None and (first is not None or last is not None):
            cold = Between(cold, first, last, kept.key_at)
        kept.open(cold)
        step.operator.begin(NO_TIME)
        rows = step.operator.contents()
        if rows is None:
            return None
        bounds: list[tuple[bytes | None, Any]] = [(key, pc.equal), (first, pc.greater_equal), (last, pc.less_equal)]
        for wanted, holds in bounds:
            if wanted is not None:
                rows = rows.filter(holds(rows[KEY].cast(pa.binary()), pa.scalar(wanted, pa.binary())))
        return rows.select(user_columns(rows.column_names))

    def make(self, part: SubTopology, partition: int) -> Task:
        """A task without state: ``open`` it."""
        hops = {hop.id for hop in part.hops}
        written: list[Output] = []  # by the operators; the task takes it from here
        steps = [Step(_ENTRY + hop.id, hop.label, Merge()) for hop in part.hops]
        links = []
        made: dict[int, Operator] = {}
        for node in part.nodes:
            partitions = self.repartitions.get(node.name, 0)
            making = Making(
                partition,
                written.append,
                self.app,
                partitions,
                made,
                self._on_error,
                self._tables,
                self._limits,
                interval_ms(self._interval_ms, self._senders.get(node.name, 0), partitions),
            )
            operator = made[node.id] = node.make(making)
            assert (operator.store is not None) == node.stateful, node.label
            store = node.name if node.stateful else ""
            steps.append(Step(node.id, node.label, operator, node.on_error or self._on_error, store))
            links += [Link(_ENTRY + i.node if i.node in hops else i.node, i.edge, node.id, i.port) for i in node.inputs]
        inputs = Inputs(
            {topic: node.id for node in part.nodes if node.kind == SOURCE for topic in node.topics},
            {
                repartition_topic(self.app, hop.name): Hop(
                    _ENTRY + hop.id, self._senders[hop.name], hop.settings["columns"], timed=not hop.answers
                )
                for hop in part.hops
            },
            part.tables,
        )
        return Task(partition, steps, links, inputs, written, self.app)
