"""
What waits before the storage loop, what bounds it, and what the loop makes of it.

Produce sessions and the image applier fill the queue; only ``storage_loop.py`` empties it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from headrace_broker.core.partition_events import Event
from headrace_broker.core.rows import LogId, LogWrite, PutBatch
from headrace_broker.engine.replicas import Replica
from headrace_broker.engine.shares import Share
from headrace_common.core.batch import BatchHeader
from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import Offset

Posting = Event | Callable[[], Event] | Sequence[LogWrite]
"""An event; or what makes it from the log as it is when its turn has come; or writes of a log that nobody uses yet."""


class Flush(Enum):
    """When a batch counts as written."""

    GROUP = "group"
    """When one sync for its write group is done."""
    ALWAYS = "always"
    """The same, with each request a group of its own."""
    OS = "os"
    """When the operating system has it."""


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Bounds of the queue before the storage loop; written but unconfirmed bytes count too."""

    bytes_max: int = 64 << 20
    """Above it no produce stream is read."""
    items_max: int = 20_000
    refuse_bytes: int = 256 << 20
    """Above it requests that were read already are answered OVERLOADED."""
    parked_bytes_max: int = 64 << 20
    """Batches that wait for the coordinators of their transactions; above it no more transactions begin, and everything
    else goes on."""
    stall_ms_max: int = 60_000
    """A store that stalls for longer has failed."""


class Caller(Protocol):
    """Who sent a batch and waits for its fate."""

    acks: int
    deadline_ms: float
    """On the monotonic clock: after it nobody waits for an answer."""

    def on_appended(self, index: int, base_offset: Offset, log_append_time_ms: int) -> None:
        """Entry ``index`` is as safe as was asked."""
        ...

    def on_refused(self, index: int, error: HeadraceError) -> None:
        """Entry ``index`` was not appended, or its fate is unknown."""
        ...


@dataclass(slots=True, eq=False)
class Arrival:
    """One batch on its way to a partition."""

    replica: Replica
    header: BatchHeader
    batch: bytes
    leader_epoch: int | None
    caller: Caller
    index: int
    fencing_token: int | None = None
    fence: int | None = None
    """The token that the batch, a fence record, sets."""
    transactional_id: str | None = None
    """Of a transactional batch: whose transaction it belongs to."""
    commit: bool | None = None
    """The batch is a marker and says this; None: it comes from a producer."""
    share: Share | None = None
    """Of the address that it came from; None: addresses are not told apart."""
    stranger: HeadraceError | None = None
    held: bool = False
    """Both as in ``BatchArrived``."""
    before: Arrival | None = None
    """The batch before it for the same partition in the same request: it is appended behind that one, or not at all."""
    refused: bool = False

    def refuse(self, error: HeadraceError) -> None:
        """Tell who sent it that it was not appended, or that its fate is unknown."""
        self.refused = True
        self.caller.on_refused(self.index, error)


@dataclass(slots=True, eq=False)
class Posted:
    """Events, or writes made elsewhere, for one replica; ``done`` is set when what they wrote is confirmed."""

    replica: Replica
    event: Posting
    done: asyncio.Future[None]
    size: int = 0
    """Bytes of batches in ``event``."""


@dataclass(slots=True)
class Group:
    writes: list[LogWrite] = field(default_factory=list)
    appended: list[PutBatch] = field(default_factory=list)
    """Those of ``writes`` that append a batch; others may be a compaction's."""
    rewritten: dict[LogId, list[Offset]] = field(default_factory=dict)
    """Bases of the batches that a compaction rewrites or drops."""
    ends: dict[Replica, tuple[Offset, int]] = field(default_factory=dict)
    """Where each log ends with this group, and how often its end had been cut until then."""
    done: list[asyncio.Future[None]] = field(default_factory=list)
    bytes: int = 0
    batches: int = 0
    shares: dict[Share, int] = field(default_factory=dict)
    """Bytes that each address has in it."""

    def count(self, share: Share, size: int) -> None:
        """So much of an address is in the group."""
        self.shares[share] = self.shares.get(share, 0) + size

    def give_back_shares(self) -> None:
        """What is in the group waits no more."""
        for share, size in self.shares.items():
            share.give_back(size)
        self.shares.clear()
