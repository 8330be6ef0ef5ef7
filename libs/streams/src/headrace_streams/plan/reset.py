"""
What a reset of an app does, step by step. Pure: ``runtime.resetting`` carries it out.

A whole reset leaves an app that has read nothing: its internal topics are deleted, and its positions are forgotten or
set. Whatever copy of state a disk has belongs to a topic that is not there any more, so it is of no use. From the first
step to the last a mark has every start of the app refused, so a reset that is cut off does no harm, and the next one
does all of it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.records import TopicPartition
from headrace_common.core.errors import NotFound, Rejected
from headrace_streams.core.state.changelog import Progress
from headrace_streams.plan.compare import TOPIC, store_of
from headrace_streams.plan.known import CHANGELOG, Known, is_internal, part_of, taken
from headrace_streams.plan.nodes import reset_topic

Positions = Mapping[TopicPartition, int]

EARLIEST: Final = "earliest"
LATEST: Final = "latest"


@dataclass(frozen=True, slots=True)
class Standing:
    """What a cluster has of an app."""

    app: str
    topics: Mapping[str, int] = field(default_factory=dict)
    """Its internal topics, with their partitions."""
    foreign: Sequence[str] = ()
    """Topics whose names look like one of its internal ones, and that may be somebody else's."""
    shared: Mapping[str, str] = field(default_factory=dict)
    """Internal topics of this app and of another one, by the other's name."""
    known: Known = field(default_factory=lambda: Known(""))
    """What its group says."""
    positions: Positions = field(default_factory=dict)
    """Of its group, except in its internal topics."""
    progress: Mapping[TopicPartition, Progress] = field(default_factory=dict)
    """What the newest commit of each task with state says, by the partition of its changelog."""
    members: int = 0
    marked: bool = False
    """A reset has begun and not ended."""
    reached: Positions = field(default_factory=dict)
    """Of its group in each partition of its repartition topics; -1: it has none there."""
    rows: Mapping[str, str] = field(default_factory=dict)
    """The columns of rows in repartition topics, where rows wait or workers run, as ``hop.rows_text``."""

    @property
    def changelogs(self) -> dict[str, int]:
        """Those of the internal topics."""
        return {topic: count for topic, count in self.topics.items() if topic.endswith(CHANGELOG)}

    def part_of(self, changelog: str) -> str:
        """The name of the sub-topology whose state is there."""
        return part_of(changelog, self.app)

    def reader_of(self, topic: str) -> str:
        """
        The name of the sub-topology that reads a topic. One without state is taken to read nothing else: only its
        program would know.
        """
        for changelog, progress in self.progress.items():
            if topic in progress.positions:
                return self.part_of(changelog.topic)
        return part_of(topic, self.app) if topic in self.topics else topic

    def check_alone(self) -> None:
        """
        Raises:
            Rejected: it shares an internal topic with another app, so nothing of it is changed.
        """
        for topic, other in sorted(self.shared.items()):
            what, do = taken(self.app, topic, other)
            raise Rejected(f"{what}; nothing was changed: {do}")


@dataclass(frozen=True, slots=True)
class Stateful:
    """A sub-topology with state, as the program has it now."""

    changelog: str
    tasks: int
    sources: Mapping[str, str]
    """Topics of others that it reads, with their ids."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Have starts of the app refused."""

    topic: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete an internal topic."""

    topic: str
    partitions: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Forget the group's positions, so that what they are of is read from its first record on."""

    positions: Positions


@dataclass(frozen=True, slots=True)
class Place:
    """Set the group's positions, and those of tasks with state, as one unit."""

    positions: Positions
    changelogs: Mapping[str, int] = field(default_factory=dict)
    """That are made for it, with their partitions."""
    progress: Mapping[TopicPartition, Progress] = field(default_factory=dict)
    """By the partition of a changelog."""


@dataclass(frozen=True, slots=True)
class Unmark:
    """The app may start."""

    topic: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Delete one store's rows from changelogs, as one unit."""

    store: str
    changelogs: tuple[TopicPartition, ...]


Step = Mark | Delete | Forget | Place | Unmark | Drop


def owner_of(topic: str, apps: Iterable[str]) -> str | None:
    """Of which of these apps a topic is, by its name: of two that fit, of the one with the longer name."""
    return max((app for app in apps if is_internal(topic, app)), key=len, default=None)


def whole(standing: Standing, targets: Positions, parts: Sequence[Stateful] | None) -> list[Step]:
    """
    The steps that have the app begin anew; none: it has read nothing.

    Args:
        targets: where it begins; elsewhere at the first record.
        parts: of the program; None: it is not known.

    Raises:
        Rejected: where tasks with state begin cannot be said without the program; or a topic is another app's too.
    """
    standing.check_alone()
    if targets and parts is None and (standing.changelogs or standing.known.parts or standing.marked):
        raise Rejected(
            f"{standing.app} keeps state, and where it begins has to be said beside it: give the program in place of "
            "the name, as in headrace streams reset app.py --to latest"
        )
    mark = reset_topic(standing.app)
    forgotten = {tp: at for tp, at in sorted(standing.positions.items()) if tp not in targets}
    steps: list[Step] = [Delete(topic, count) for topic, count in sorted(standing.topics.items())]
    if forgotten:
        steps.append(Forget(forgotten))
    if targets:
        steps.append(_place(targets, parts or ()))
    return [Mark(mark), *steps, Unmark(mark)] if steps or standing.marked else []


def _place(targets: Positions, parts: Sequence[Stateful]) -> Place:
    """A task with state goes by the positions in its changelog, so they stand there too."""
    progress: dict[TopicPartition, Progress] = {}
    for part in parts:
        for number in range(part.tasks):
            here = {topic: targets[at] for topic in part.sources if (at := TopicPartition(topic, number)) in targets}
            if here:
                basis = {TOPIC + topic: part.sources[topic] for topic in here}
                progress[TopicPartition(part.changelog, number)] = Progress(here, basis=basis)
    # Those behind a repartition too: what is read before it, and no changelog, are state that was lost.
    return Place(targets, {part.changelog: part.tasks for part in parts}, progress)


def of_store(standing: Standing, store: str) -> list[Step]:
    """
    The step that deletes one store.

    Raises:
        NotFound: there is no such store; names those that are there.
        Rejected: a whole reset was cut off; or a topic is another app's too.
    """
    standing.check_alone()
    if standing.marked:
        raise Rejected(
            f"a reset of {standing.app} has begun and not ended: wait for it, or, if it was cut off, run it again, "
            "without --store, before anything else"
        )
    here = tuple(tp for tp, progress in sorted(standing.progress.items()) if store in stores_of(progress))
    if not here:
        known = sorted({name for progress in standing.progress.values() for name in stores_of(progress)})
        raise NotFound(f"{standing.app} has no state {store!r}; it has {', '.join(known) or 'none'}")
    return [Drop(store, here)]


def stores_of(progress: Progress) -> dict[str, dict[str, str]]:
    """The stores that a task has, and in which form each part is kept."""
    forms = {name: form for name, form in progress.basis.items() if not name.startswith(TOPIC)}
    found: dict[str, dict[str, str]] = {}
    for name, form in forms.items():
        found.setdefault(store_of(name, forms), {})[name] = form
    return found


def without(progress: Progress, store: str) -> Progress:
    """The same place in the input, with nothing said of this store."""
    gone = stores_of(progress).get(store, {})
    basis = {name: said for name, said in progress.basis.items() if name not in gone}
    return Progress(progress.positions, progress.watermarks, basis)


def rows(standing: Standing, steps: Iterable[Step]) -> list[dict[str, object]]:
    """The steps as people and programs read them, topic by topic."""
    found: list[dict[str, object]] = []

    def add(step: Step, topic: str, partition: int | str | None = None, **more: object) -> None:
        row = {"step": type(step).__name__.lower(), "topic": topic, "partition": partition}
        found.append(row | {"old_offset": None, "new_offset": None} | more)

    for step in steps:
        match step:
            case Mark(topic) | Unmark(topic):
                add(step, topic)
            case Delete(topic, count):
                add(step, topic, f"0-{count - 1}" if count > 1 else 0)
            case Forget(positions):
                for tp, at in positions.items():
                    add(step, *tp, old_offset=at, new_offset="first")
            case Place(positions):
                for tp, at in sorted(positions.items()):
                    add(step, *tp, old_offset=standing.positions.get(tp), new_offset=at)
            case Drop(_, changelogs):
                for tp in changelogs:
                    add(step, *tp)
    return found


def as_data(standing: Standing) -> dict[str, object]:
    """What a cluster has, for ``compare``: what is kept, not which steps made it."""
    parts = []
    for changelog in standing.changelogs:
        of_part = [progress for tp, progress in standing.progress.items() if tp.topic == changelog]
        said_of: dict[str, set[str]] = {}
        for progress in of_part:
            for name, said in progress.basis.items():
                said_of.setdefault(name, set()).add(said)
        # A task may have begun with a topic that was made anew, while state of another belongs to the old one.
        basis = {name: " and ".join(sorted(said)) for name, said in said_of.items()}
        parts.append(
            {
                "name": standing.part_of(changelog),
                "stores": {name: said for name, said in basis.items() if not name.startswith(TOPIC)},
                "topic_ids": {name.removeprefix(TOPIC): said for name, said in basis.items() if name.startswith(TOPIC)},
            }
        )
    return {
        "app": standing.app,
        "topics": dict(standing.topics),
        "sub_topologies": parts,
        "rows": dict(standing.rows),
    }
