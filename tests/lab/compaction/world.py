"""Worlds of replication whose brokers all compact their logs, led and followed, while everything else goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from random import Random
from unittest.mock import patch

from tests.lab.compaction.contents import Contents, Keyed, Terms
from tests.lab.kind import Outcome
from tests.lab.replication.profile import Profile
from tests.lab.replication.world import Kind, play_in

from headrace_broker.core.compaction import cleaning
from headrace_broker.core.compaction.offset_map import KEY_BYTES
from headrace_broker.engine import cleaner, upkeep
from headrace_broker.engine.image_applier import ImageApplier
from headrace_common.core.configs import TopicConfig
from headrace_common.core.ids import TopicId
from headrace_common.core.image import ClusterImage
from headrace_lab import loop

AWAY = ("estrange", "estrange", "estrange")
"""Followers that are away while much of the log goes."""


async def play(seed: int) -> Outcome:
    """One run."""
    random = Random(seed)
    profile, terms = Profile.drawn(random), Terms.drawn(random)
    profile = replace(profile, faults=(*profile.faults, *AWAY), transactions=False, required=False)
    keyed = Keyed(Random(seed))
    deletes = terms.retention_bytes >= 0
    kind = Kind(
        ghost=lambda tell: Contents(tell, keyed, terms),
        topic_configs={
            "cleanup.policy": "compact,delete" if deletes else "compact",
            "retention.bytes": str(terms.retention_bytes),
            "retention.ms": "-1",
            "delete.retention.ms": str(terms.delete_retention_ms),
            "min.cleanable.dirty.ratio": "0",
        },
        defaults={
            "log.cleaner.backoff.ms": "40",
            "log.cleaner.dedupe.buffer.size": str(terms.keys_max * KEY_BYTES),
            "log.retention.check.interval.ms": "150",
        },
        make_batch=keyed.batch,
    )
    with _in_force(terms):
        outcome = await play_in(seed, profile, random, kind)
    return replace(outcome, story=[str(terms), *outcome.story])


@contextmanager
def _in_force(terms: Terms) -> Iterator[None]:
    """Segments are small and have another size at each broker, so that replicas are cut differently."""
    config = ImageApplier._config

    def small(self: ImageApplier, image: ClusterImage, topic_id: TopicId) -> TopicConfig:
        size = terms.segment_bytes * (10 + 4 * self._replicas.broker_id) // 10
        return replace(config(self, image, topic_id), segment_bytes=size)

    with ExitStack() as stack:
        stack.enter_context(patch.object(ImageApplier, "_config", small))
        for module, name, value in (
            (cleaner, "SLEEP_MS", 40.0),
            (cleaner, "BACKOFF_MS_MIN", 40.0),
            (cleaner, "AWAY_MS_MIN", terms.away_ms),
            (cleaner, "STUCK_MS", 500.0),
            (upkeep, "RETENTION_SLEEP_MS", 100),
            (cleaning, "STEP_WRITES_MAX", terms.step_writes_max),
            (loop, "THREAD_S_MAX", terms.read_s_max),
        ):
            stack.enter_context(patch.object(module, name, value))
        yield
