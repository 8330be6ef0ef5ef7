"""The graph that a program describes. What it does is in the operators that its nodes make."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypedDict, Unpack

import pyarrow as pa

from headrace_common.core.errors import InvalidTopic
from headrace_common.core.ids import check_topic_name
from headrace_streams.core.errors import NotAllowed
from headrace_streams.core.formats.port import Format
from headrace_streams.core.operators.base import OUT, Operator
from headrace_streams.core.operators.global_join import GlobalRows
from headrace_streams.core.outputs import Limits, Output
from headrace_streams.core.task import FAIL, SKIP


def repartition_topic(app: str, name: str) -> str:
    """The topic of a repartition."""
    return f"{app}.{name}.repartition"


def partitions_text(count: int) -> str:
    """``1 partition``, ``3 partitions``."""
    return f"{count} partition" if count == 1 else f"{count} partitions"


def changelog_topic(app: str, sub_topology: str) -> str:
    """The topic that holds the state of a sub-topology."""
    return f"{app}.{sub_topology}.changelog"


def is_internal(app: str, topic: str) -> bool:
    """Whether it is one that the app makes for itself, by its name."""
    return topic.startswith(f"{app}.") and topic.endswith((".repartition", ".changelog", ".being-reset"))


def reset_topic(app: str) -> str:
    """The topic that is there, empty, while a reset of the app has begun and not ended: nothing starts meanwhile."""
    return f"{app}.being-reset"


@dataclass(frozen=True, slots=True)
class Making:
    """For which task an operator is made."""

    partition: int
    write: Callable[[Output], None]
    """Where its records go."""
    app: str = ""
    partitions: int = 0
    """Of the repartition topic that the node writes."""
    operators: Mapping[int, Operator] = field(default_factory=dict)
    """Those of the nodes before it in the same task."""
    on_error: str = FAIL
    """Of the app."""
    globals: Mapping[str, GlobalRows] = field(default_factory=dict)
    """The tables that are here whole, by topic."""
    limits: Mapping[str, Limits] = field(default_factory=dict)
    """Of topics, as far as they are known."""
    interval_ms: int = 0
    """How often the repartition topic is told event time alone, by the wall clock; 0: with each flush."""

    def topic(self, name: str) -> str:
        """The repartition topic of that name."""
        return repartition_topic(self.app, name)


@dataclass(frozen=True, slots=True)
class Input:
    """Rows that leave another node by an edge."""

    node: int
    edge: str = OUT
    port: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """One step of a program."""

    id: int
    kind: str
    where: str
    """The file and line of the program that asked for it."""
    inputs: tuple[Input, ...]
    make: Callable[[Making], Operator]
    name: str = ""
    """Given by the program where something durable hangs on it."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What it does, as JSON can say it: two programs whose nodes say the same do the same."""
    topics: tuple[str, ...] = ()
    """That it reads (a source) or writes (a sink)."""
    pattern: re.Pattern[str] | None = None
    """Of the names of the topics that it reads, which are known when the program is on a cluster."""
    partitions: int | None = None
    """Of a repartition topic, if the program says so."""
    answers: bool = False
    """A repartition between two tables: as wide as the tasks that read it, and without event time of its own."""
    on_error: str = ""
    """Empty: as the app."""
    form: Mapping[str, str] = field(default_factory=dict)
    """Of its state: part by part, in which form it is kept. A program that says another cannot go on with it."""
    value: Format | None = None
    """Of the records of its topics."""
    key: Format | None = None
    """Of their keys, where the program reads them."""
    keys: tuple[pa.Field[Any], ...] = ()
    """The columns that its state is kept by; empty: the keys of records, whatever they are."""

    @property
    def stateful(self) -> bool:
        """It has a store, of its name."""
        return bool(self.form)

    @property
    def label(self) -> str:
        """For people."""
        name = f" {self.name!r}" if self.name else ""
        return f"{self.kind}{name} ({self.where})"


class More(TypedDict, total=False):
    """The fields of a node that not each has."""

    name: str
    settings: Mapping[str, Any]
    topics: tuple[str, ...]
    pattern: re.Pattern[str] | None
    partitions: int | None
    answers: bool
    on_error: str
    form: Mapping[str, str]
    value: Format | None
    key: Format | None
    keys: tuple[pa.Field[Any], ...]


_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,100}")
NO_NAMES: Final = frozenset({".", ".."})
"""Names of directories: state of an app or a node that is called so would be in another's."""
SOURCE = "stream"
SINK = "to"
REPARTITION = "repartition"
JOIN = "join"


@dataclass(frozen=True, slots=True)
class Global:
    """A topic that each worker reads whole."""

    topic: str
    where: str
    rows: Callable[[], GlobalRows]
    """Makes a table without rows."""
    value: Format
    key: Format | None

    @property
    def label(self) -> str:
        """For people."""
        return f"global_table ({self.where})"


class Plan:
    """The nodes of a program, in the order in which it asked for them: inputs come before what uses them."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.globals: list[Global] = []

    @property
    def read_by_name(self) -> list[str]:
        """The topics that it reads, those of patterns not counted."""
        sources = [topic for node in self.nodes if node.kind == SOURCE and not node.pattern for topic in node.topics]
        return [*sources, *(one.topic for one in self.globals)]

    def add(
        self,
        kind: str,
        where: str,
        inputs: Sequence[Input],
        make: Callable[[Making], Operator],
        **more: Unpack[More],
    ) -> Node:
        """
        One more node.

        Raises:
            NotAllowed: its name cannot be part of a topic's; another has its name, or reads its topic.
        """
        node = Node(len(self.nodes), kind, where, tuple(inputs), make, **more)
        name = node.name
        if name and (not isinstance(name, str) or not _NAME.fullmatch(name) or name in NO_NAMES):
            raise NotAllowed(
                f"{kind} ({where}): the name {node.name!r} becomes part of a topic's: "
                "use 1 to 100 letters, digits, '.', '_' and '-'"
            )
        if node.on_error:
            check_on_error(node.on_error, f"{kind} ({where})")
        for place, topic in enumerate(node.topics):
            check_topic(topic, f"{kind} ({where})")
            if topic in node.topics[:place]:
                raise NotAllowed(f"{kind} ({where}) names the topic {topic!r} twice")
        for other in self.nodes:
            if node.name and other.name == node.name:
                raise NotAllowed(
                    f"{node.label}: the name {node.name!r} is taken by {other.label}; "
                    "what is durable needs a name of its own"
                )
            for topic in set(node.topics) & set(other.topics) if kind == other.kind == SOURCE else ():
                raise NotAllowed(
                    f"{node.label}: {other.label} reads the topic {topic!r} already; use that stream twice instead"
                )
        for one in self.globals:
            _check_once(node, one)
        self.nodes.append(node)
        return node

    def add_global(self, table: Global) -> None:
        """
        One more table that each worker has whole.

        Raises:
            NotAllowed: its topic cannot be one, or is read already.
        """
        check_topic(table.topic, table.label)
        for node in self.nodes:
            _check_once(node, table)
        if any(other.topic == table.topic for other in self.globals):
            raise NotAllowed(f"{table.label}: there is one of {table.topic!r} already; use that one twice instead")
        self.globals.append(table)

    @property
    def patterns(self) -> list[Node]:
        """The nodes that read topics by a pattern."""
        return [node for node in self.nodes if node.pattern is not None]

    def matching(self, topics: Iterable[str]) -> Plan:
        """
        The same, with those of the topics that its patterns match. Topics that it names otherwise are not among them.

        Raises:
            NotAllowed: two patterns match one topic.
        """
        named = {topic for node in self.nodes for topic in (*node.topics, node.on_error) if node.pattern is None}
        named |= {one.topic for one in self.globals}
        found = Plan()
        found.globals = self.globals
        reader: dict[str, Node] = {}
        for node in self.nodes:
            matched: list[str] = []
            for topic in sorted({*topics} - named):
                if node.pattern is not None and node.pattern.fullmatch(topic):
                    if (other := reader.setdefault(topic, node)) is not node:
                        raise NotAllowed(
                            f"the topic {topic!r} is read by {other.label} and by {node.label}; mend a pattern"
                        )
                    matched.append(topic)
            found.nodes.append(node if node.pattern is None else replace(node, topics=tuple(matched)))
        return found


def _check_once(node: Node, table: Global) -> None:
    if node.kind == SOURCE and table.topic in node.topics:
        raise NotAllowed(
            f"{table.label}: {node.label} reads the topic {table.topic!r} too; a topic is one or the other"
        )


def check_topic(name: str, what: str) -> None:
    """
    Raises:
        NotAllowed: no topic can be called so.
    """
    try:
        check_topic_name(name)
    except InvalidTopic as error:
        raise NotAllowed(f"{what}: {error}") from error


def check_on_error(text: str, what: str) -> None:
    """
    Raises:
        NotAllowed: this does not say what becomes of a record that fails.
    """
    if text not in (FAIL, SKIP):
        check_topic(text, f"{what}: on_error is {text!r}; it must be 'fail', 'skip' or a topic")


def schema_text(schema: pa.Schema) -> dict[str, str]:
    """Columns and types, as they are told to people and compared."""
    return {field.name: str(field.type) for field in schema}
