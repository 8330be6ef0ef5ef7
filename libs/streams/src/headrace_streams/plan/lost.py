"""
State that a program cannot go on with, as it does not belong to what the app has read: the topic that held it is
gone, or it and the group's positions are not of one commit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from headrace.records import TopicPartition
from headrace_streams.core.state.changelog import Progress
from headrace_streams.plan.cut import JOINED, Assembly, SubTopology
from headrace_streams.plan.known import Known
from headrace_streams.plan.nodes import changelog_topic

Lost = dict[str, tuple[str, str]]
"""By sub-topology: what is there, and what to do."""


def find_lost(assembly: Assembly, known: Known, topics: Collection[str]) -> Lost:
    """
    What a sub-topology has read of its own topics counts. Where its repartition topic is gone too, so are the positions
    in it: then what was read of the topics behind counts, if the group knows the sub-topology as one that kept state.
    One that it does not know is new, and begins empty behind topics that were read long ago.

    Args:
        known: what the app's group says.
        topics: those of the app's internal topics that are there.
    """
    found: Lost = {}
    for part in assembly.parts:
        log = changelog_topic(assembly.app, part.name)
        if not part.stateful or log in topics:
            continue
        own = (*part.topics, *assembly.hops_of(part))
        counted = assembly.topics_behind(part) if part.name in known.parts else own
        for tp, offset in sorted(known.positions.items()):
            if tp.topic in counted:
                found[part.name] = _explain_lost(assembly, part, known, f"{tp} up to {offset}")
                break
    return found


def _explain_lost(assembly: Assembly, part: SubTopology, known: Known, read: str) -> tuple[str, str]:
    app, stores = assembly.app, ", ".join(map(repr, part.stores))
    pieces = set(part.name.split(JOINED))
    before = sorted(name for name in known.parts - {part.name} if pieces & set(name.split(JOINED)))
    if before:
        return (
            f"the state {stores} would begin empty: {app} has read {read}, and its state belongs to what "
            f"{' and '.join(before)} reads; the program has it where {part.name} is read",
            f"read the topics together as before, or, {_anew(app)}",
        )
    return (
        f"the state {stores} would begin empty, and what was counted would be lost: {app} has read {read}, and the "
        f"topic of the state that it makes of it, {changelog_topic(app, part.name)}, does not exist: it was deleted, "
        "or the program has kept no such state so far",
        _anew(app),
    )


def find_apart(assembly: Assembly, known: Known, progress: Mapping[TopicPartition, Progress]) -> Lost:
    """
    Where a task's state and the group's positions are not of one commit: a worker that took it would refuse.

    Args:
        known: what the app's group says. While workers run, positions and commits are not read at one moment, so that
            they differ says nothing; then only tasks that have made no commit count.
        progress: what the newest commit of each task with state says, by the partition of its changelog.
    """
    found: Lost = {}
    resends = not all(part.stateful for part in assembly.parts)
    for part in assembly.parts:
        log = changelog_topic(assembly.app, part.name)
        for number in range(assembly.tasks_of(part)) if part.stateful else ():
            kept = progress.get(TopicPartition(log, number), Progress()).positions
            if known.members and kept:
                continue
            topics = (*part.topics, *assembly.hops_of(part))
            at = {topic: known.positions.get(TopicPartition(topic, number)) for topic in topics}
            label = f"{part.name}/{number}"
            said = explain_apart(assembly.app, label, kept, {t: n for t, n in at.items() if n is not None}, resends)
            if said is not None:
                found.setdefault(part.name, said)
    return found


def explain_apart(
    app: str, label: str, kept: Mapping[str, int], of_group: Mapping[str, int], resends: bool
) -> tuple[str, str] | None:
    """
    Why the state of a task does not belong to the group's positions, and what to do; None: it does.

    Args:
        kept: the positions that belong to the state, by topic.
        of_group: those of the group.
        resends: whether the app has tasks that keep nothing but positions: without these they would write again what
            others have counted.
    """
    if not of_group and kept and resends:
        return explain_no_positions(app, label)
    for topic, at in of_group.items():
        if kept.get(topic) != at:
            return (
                f"the state of task {label} belongs to offset {kept.get(topic)} of {topic}, and the group {app} stands "
                f"at {at}: the group or the changelog was changed by hand, or the program has kept no state there so "
                "far",
                f"set the group's offset back, or {_anew(app)}",
            )
    return None


def explain_no_positions(app: str, label: str) -> tuple[str, str]:
    """The group has none, and there is state of what would be read again; and what to do."""
    return (
        f"the group {app} has no offsets, so they were deleted or have expired, and task {label} has state of what "
        "would be read again",
        f"set the group's offsets, or {_anew(app)}",
    )


def _anew(app: str) -> str:
    return f"to begin anew, headrace streams reset {app}"
