"""To what the state of a sub-topology belongs: the forms in which it is kept, and the topics that it was made of."""

from __future__ import annotations

from collections.abc import Mapping

from headrace_streams.plan.compare import TOPIC
from headrace_streams.plan.cut import Assembly, SubTopology


def basis_of(assembly: Assembly, part: SubTopology, topic_ids: Mapping[str, str]) -> dict[str, str]:
    """
    The basis of a sub-topology's state, as its changelog says it.

    Args:
        topic_ids: at least of all topics that the program reads, its own repartition topics among them.
    """
    return part.form | {TOPIC + topic: topic_ids[topic] for topic in assembly.topics_behind(part)}
