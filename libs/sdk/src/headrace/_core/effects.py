"""What the producing core asks its shell to do. Made by ``lane`` and ``producing``; carried out by ``aio._engine``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from headrace._core.batch import Batch, Identity


@dataclass(frozen=True, slots=True)
class Settle:
    """The outcome of ``batch`` is set: tell those who wait, and give back its ``size_bytes``."""

    batch: Batch
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Divided:
    """``batch`` became two: whoever waits for it must look again."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class RefreshMetadata:
    """What is believed about leaders may be old."""

    reason: str


@dataclass(frozen=True, slots=True)
class DoubtLeader:
    """Who leads the partition since ``leader_epoch`` does not answer as a leader: find out who does, soon."""

    topic: str
    partition: int
    leader_epoch: int
    """-1: nobody was known."""
    reason: str


@dataclass(frozen=True, slots=True)
class AskIdentity:
    """Ask for a producer id: a new one, or the next epoch of ``previous``. Repeat until there is an answer."""

    previous: Identity | None


@dataclass(frozen=True, slots=True)
class SendBatches:
    """One request: these batches, each of another partition, to the broker that leads them all."""

    broker: int
    batches: tuple[Batch, ...]


Effect: TypeAlias = Settle | Divided | RefreshMetadata | DoubtLeader | AskIdentity | SendBatches
