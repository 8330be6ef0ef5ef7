"""
Which record went where: a sync says it of the records of one partition and one transaction, and is written in that
transaction. Pure.

Syncs of a partition have keys that come round, so that a compacted topic holds the newest ones and does not grow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson

from headrace.records import TopicPartition
from headrace_connect.connectors.copying.port import Ints

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Run:
    """Records that follow each other in the source and in the target."""

    source: int
    target: int
    count: int


@dataclass(frozen=True, slots=True)
class Sync:
    """Of the source's offsets ``start`` up to ``end``, each record is in a run, or was left out by a transform."""

    number: int
    """Grows with each sync of the partition."""
    topic_id: str
    """Of the source's topic."""
    target: str
    """The topic of the copies; the partition is the same. Empty: a transform has sent some elsewhere."""
    base: int
    """All copies of this topic id are at or behind this offset of the target."""
    start: int
    end: int
    runs: Sequence[Run] = ()
    """Ascending in both."""


def find_runs(sources: Ints, targets: Ints) -> list[Run]:
    """
    Args:
        sources: offsets, ascending.
        targets: of the same records.
    """
    if not len(sources):
        return []
    cuts = np.flatnonzero((np.diff(sources) != 1) | (np.diff(targets) != 1)) + 1
    firsts = np.concatenate([[0], cuts])
    counts = np.diff(np.append(firsts, len(sources)))
    return [
        Run(source, target, count)
        for source, target, count in zip(
            sources[firsts].tolist(), targets[firsts].tolist(), counts.tolist(), strict=True
        )
    ]


def encode_key(at: TopicPartition, number: int, rounds: int) -> bytes:
    """
    Args:
        at: of the source.
        rounds: after so many numbers the keys come round.
    """
    return orjson.dumps([at.topic, at.partition, number % rounds])


def decode_key(key: bytes) -> TopicPartition:
    """The partition of the source."""
    topic, partition, _ = orjson.loads(key)
    return TopicPartition(topic, partition)


def encode(sync: Sync) -> bytes:
    """As JSON. Runs are differences to the end of the one before: gap in the source, gap in the target, records."""
    gaps, source, target = [], sync.start, sync.base
    for run in sync.runs:
        gaps.append((run.source - source, run.target - target, run.count))
        source, target = run.source + run.count, run.target + run.count
    return orjson.dumps(
        {
            "v": VERSION,
            "n": sync.number,
            "id": sync.topic_id,
            "topic": sync.target,
            "base": sync.base,
            "from": sync.start,
            "to": sync.end,
            "runs": gaps,
        }
    )


def decode(value: bytes) -> Sync | None:
    """None: a newer version has written it."""
    read: Mapping[str, Any] = orjson.loads(value)
    if read["v"] != VERSION:
        return None
    runs, source, target = [], read["from"], read["base"]
    for source_gap, target_gap, count in read["runs"]:
        run = Run(source + source_gap, target + target_gap, count)
        runs.append(run)
        source, target = run.source + count, run.target + count
    return Sync(read["n"], read["id"], read["topic"], read["base"], read["from"], read["to"], runs)
