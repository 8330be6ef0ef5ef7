"""
What a consumer knows of one partition: its position, where its leader is, and what was fetched but not handed out.

``fetch_positions`` owns these and is the only caller. ``position`` is the next record that the application gets,
``fetch_offset`` the next that is asked for; between them lies the buffer. ``epoch`` grows with every seek, so that
answers and half-read batches from before it are known to be stale.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace._core.starts import Start
from headrace_common.core.batch.header import BatchHeader
from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import NO_NODE, NodeId, TopicId, TopicPartition

NO_TOPIC_ID = TopicId(b"")


class Fetched(NamedTuple):
    """One batch as it came, and its header; or only a header, of batches that applications never see."""

    batch: bytes
    """Empty: nothing is handed out below ``header.next_offset``."""
    header: BatchHeader


class Unreadable(NamedTuple):
    """A batch that is stored and cannot be read."""

    first: int
    """Of its offsets, the first that the application did not get."""
    next_offset: int
    """Where reading can go on."""
    error: HeadraceError


@dataclass(slots=True)
class Trouble:
    """A partition that cannot be read now: since when, why, and how often it was tried."""

    since_ms: float
    error: HeadraceError
    same_since_ms: float
    """Since when it is this error, and no other."""
    failures: int = 1


@dataclass(slots=True, eq=False)
class PartitionFetch:
    """One assigned partition. Times are monotonic milliseconds."""

    tp: TopicPartition
    start: Start | None
    """What to look up while ``position`` is None; None then means that only a seek can help."""
    topic_id: TopicId = NO_TOPIC_ID
    leader: NodeId = NO_NODE
    leader_epoch: int = -1
    follower: NodeId = NO_NODE
    """The replica near the client that the leader has named; ``fetch_sources`` decides."""
    from_leader: bool = False
    """The leader shall name none: it is read from itself."""
    epoch: int = 0
    position: int | None = None
    fetch_offset: int = -1
    stop: int | None = None
    """Reading ends here: nothing from it on is asked for or handed out. None: there is no end."""
    last_epoch: int = -1
    """Leader epoch of the last batch before ``fetch_offset``; -1: not known, as after a seek."""
    position_epoch: int = -1
    """The same of the last record before ``position``: what is committed beside it."""
    paused: bool = False
    assigned: bool = True
    buffer: deque[Fetched] = field(default_factory=deque)
    buffered_bytes: int = 0
    open: Fetched | None = None
    """The batch that is being handed out; no longer in the buffer."""
    looking_up: bool = False
    drain_first: bool = False
    """The fetch offset was refused while there was still something to hand out: that comes first."""
    trouble: Trouble | None = None
    retry_at_ms: float = 0.0
    """Not asked before this time; 0: may be asked now."""
    failure: HeadraceError | None = None
    """To be raised once the buffer is empty; nothing is asked for until it was."""
    unreadable: Unreadable | None = None
    """The batch at which reading has stopped; None: none is known."""
    lost_position: int | None = None
    """Where the application was when ``auto_offset_reset`` had to be applied."""
    log_start_offset: int = -1
    base: int | None = None
    """Where reading goes back to when a transaction fails and the group has committed nothing: where it began, was last
    sought, or was last committed. None: nothing was handed out yet."""
    sought: bool = False
    """``base`` is where the application has sought, and nothing was committed since."""

    @property
    def key(self) -> tuple[TopicId, int]:
        return self.topic_id, self.tp.partition

    @property
    def source(self) -> NodeId:
        """Where it is read from."""
        return self.leader if self.follower == NO_NODE else self.follower

    @property
    def may_ask(self) -> bool:
        """Whether its leader is known and nothing forbids to ask it."""
        return self.assigned and self.leader != NO_NODE and not self.retry_at_ms and self.failure is None

    @property
    def may_fetch(self) -> bool:
        """Whether it belongs into the next fetch from its leader."""
        drained = not self.drain_first or (not self.buffer and self.open is None)
        wanted = self.stop is None or self.fetch_offset < self.stop
        return self.may_ask and not self.paused and self.position is not None and drained and wanted

    @property
    def stopped(self) -> bool:
        """Whether all before ``stop`` was handed out; the position may be behind it, where the next batch begins."""
        return self.stop is not None and self.position is not None and self.position >= self.stop

    @property
    def may_look_up(self) -> bool:
        return self.may_ask and self.position is None and self.start is not None and not self.looking_up

    @property
    def has_records(self) -> bool:
        """Whether something can be handed out."""
        buffer = self.buffer
        return bool(buffer) and (len(buffer) > 1 or bool(buffer[0].batch)) and not self.paused and self.assigned

    @property
    def stuck_at(self) -> Unreadable | None:
        """The batch that comes next and cannot be read; None: there are records before it, or it is not known of."""
        bad = self.unreadable
        return bad if bad is not None and self.position is not None and not self.has_records else None

    @property
    def meets_unreadable(self) -> bool:
        """Whether the next fetch brings the batch again that could not be read."""
        return self.unreadable is not None and self.fetch_offset < self.unreadable.next_offset

    def meet_unreadable(self, first: int, follows: int, error: HeadraceError) -> HeadraceError:
        """Remember the batch; the error as the application gets it."""
        text = f"{self.tp}@{first}: {error}; reading can go on at offset {follows}, see Consumer.skip_batch()"
        told = type(error)(text)
        self.unreadable = Unreadable(first, follows, told)
        return told

    def pass_over(self, header: BatchHeader) -> None:
        """The next batch is not for applications. Those in a row become one, so that they take no room."""
        if self.buffer and not self.buffer[-1].batch:
            self.buffer.pop()
        self.buffer.append(Fetched(b"", header))

    def step_over(self) -> bool:
        """Move the position past what is not for applications. False: that does not come next."""
        if self.open is not None or not self.buffer or self.buffer[0].batch:
            return False
        header = self.buffer.popleft().header
        self.position, self.position_epoch = header.next_offset, header.leader_epoch
        return True

    @property
    def after_open(self) -> BatchHeader:
        """Where the position will be once the open batch is handed out: behind the batch of this header."""
        assert self.open is not None, "asked only while one is open"
        follows = self.buffer[0] if self.buffer and not self.buffer[0].batch else self.open
        return follows.header

    def move_to(self, offset: int) -> None:
        """Read on at ``offset``; what was fetched or asked before is stale."""
        self._forget()
        self.position = self.fetch_offset = offset
        self.start = None
        if self.base is None:
            self.base = offset

    def lose_position(self, start: Start | None) -> None:
        """There is no position any more; ``start`` says what to look up."""
        self._forget()
        self.position, self.fetch_offset = None, -1
        self.start = start

    def _forget(self) -> None:
        self.epoch += 1
        self.buffer.clear()
        self.buffered_bytes = 0
        self.open = None
        self.last_epoch = self.position_epoch = -1
        self.looking_up = self.drain_first = False
        self.failure = self.unreadable = None
        self.lost_position = None

    def went_well(self) -> None:
        """The leader answered: whatever was wrong is over."""
        self.trouble, self.retry_at_ms = None, 0.0

    def went_wrong(self, error: HeadraceError, now_ms: float, pause_ms: float, pause_ms_max: float) -> None:
        """Ask again later; pauses double from ``pause_ms`` to ``pause_ms_max``."""
        if self.trouble is None:
            self.trouble = Trouble(now_ms, error, now_ms)
        else:
            if self.trouble.error.code is not error.code:
                self.trouble.same_since_ms = now_ms
            self.trouble.error, self.trouble.failures = error, self.trouble.failures + 1
        doublings = min(self.trouble.failures - 1, 20)
        self.retry_at_ms = now_ms + min(pause_ms * 2**doublings, pause_ms_max)
