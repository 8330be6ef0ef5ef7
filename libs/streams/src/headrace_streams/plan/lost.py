"""State that a program would find empty, although what it is made of was read: the topic that held it is gone."""

from __future__ import annotations

from collections.abc import Collection

from headrace_streams.plan.cut import Assembly
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
                found[part.name] = (
                    f"the state {', '.join(map(repr, part.stores))} would begin empty, and what was counted would be "
                    f"lost: {assembly.app} has read {tp} up to {offset}, and the topic of the state that it makes of "
                    f"it, {log}, does not exist: it was deleted, or the program has kept no such state so far",
                    f"to begin anew, headrace streams reset {assembly.app}",
                )
                break
    return found
