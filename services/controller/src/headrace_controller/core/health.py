"""How the cluster's partitions are, in numbers. Called for descriptions and gauges, by any controller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace_common.core.image import ClusterImage, Partition
from headrace_controller.core.leadership import is_preferred
from headrace_controller.core.reassign import is_under_way
from headrace_controller.core.topics import min_isr_of

TROUBLED_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Health:
    """Counts over all partitions, and those that need somebody."""

    offline: int
    under_replicated: int
    under_min_isr: int
    not_preferred: int
    reassigning: int
    recovering: int
    troubled: tuple[Partition, ...]
    """The first of those that nobody leads, then of those below min ISR, smallest ISR first."""


def examine(image: ClusterImage) -> Health:
    """The health of every partition that the image shows."""
    partitions = image.partitions.values()
    offline = [p for p in partitions if p.offline]
    below = [p for p in partitions if len(p.isr) < min_isr_of(image.topics.get(p.id.topic_id), p)]
    weak = sorted((p for p in below if not p.offline), key=lambda p: len(p.isr))
    return Health(
        offline=len(offline),
        under_replicated=sum(len(p.isr) < len(p.replicas) for p in partitions),
        under_min_isr=len(below),
        not_preferred=sum(not p.offline and not is_preferred(p) for p in partitions),
        reassigning=sum(is_under_way(p) for p in partitions),
        recovering=sum(p.recovering for p in partitions),
        troubled=tuple([*offline, *weak][:TROUBLED_MAX]),
    )
