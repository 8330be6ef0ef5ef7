"""
One transactional id: its producer, its open or ending transaction, and how the last one ended. ``producers``, ``units``
and ``ending`` move it from state to state; here is what each move changes.

A producer epoch belongs to one transaction. Each end raises it: the markers carry the raised epoch, and the next
transaction is written under it, unless 32767 is reached, or nobody may go on with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from struct import Struct
from typing import Final

from headrace_common.core.ids import PartitionId, TopicId
from headrace_coordinator.core.transactions.effects import TransactionDescription, TransactionListing
from headrace_coordinator.core.transactions.events import Request
from headrace_coordinator.core.transactions.values import (
    AT_REST,
    ENDING,
    EPOCH_LAST,
    NO_NONCE,
    NO_OWNER_EPOCH,
    NO_PRODUCER,
    NO_TIME,
    Decided,
    EndCause,
    Producer,
    Token,
    TxnState,
    key_of,
)
from headrace_coordinator.core.values import Moment

PARTITION: Final = Struct(">16sI")
_NOBODY: Final = Producer(NO_PRODUCER, -1)
_COMPLETE: Final = {
    TxnState.PREPARE_COMMIT: TxnState.COMPLETE_COMMIT,
    TxnState.PREPARE_ABORT: TxnState.COMPLETE_ABORT,
}


@dataclass(slots=True)
class Transaction:
    """State of one transactional id; all of it is durable but what stands at the end."""

    transactional_id: str
    producer: Producer
    """What the open, or else the next transaction is written under; while one is ending already that of the next."""
    timeout_ms: int
    state: TxnState = TxnState.EMPTY
    marker: Producer = _NOBODY
    """What markers carry, while it is ending."""
    partitions: dict[PartitionId, None] = field(default_factory=dict)
    """Enrolled; while it is ending only those without their marker."""
    packed: bytearray = field(default_factory=bytearray)
    """All that were enrolled, as records have them."""
    started_at_ms: int = NO_TIME
    prepared_at_ms: int = NO_TIME
    updated_at_ms: int = NO_TIME
    nonce: int = NO_NONCE
    decided: Decided | None = None
    """The last transaction that was decided, whoever wrote it."""
    continues: bool = False
    """Whoever wrote the transaction that was decided last may have ``producer``."""
    contested: bool = False
    """More than one producer had the token, so the one that decides cannot be told from the others; until the next
    takes over."""
    owner_epoch: int = NO_OWNER_EPOCH
    """Under which its producer came, see ``Owner.epoch_of_ids``; -1: it has no owner, or nobody claimed that yet."""

    group_id: str = field(init=False)
    waiting: deque[Request] = field(default_factory=deque)
    """For the end."""
    due_ms: float = inf
    """When its time is up, monotonic."""
    scheduled_ms: float = inf
    """Of its entry among the register's wakes."""
    ending_since_ms: float = 0.0
    decided_at_step: int = 0
    """Of the register; 0: before the shard was loaded."""

    def __post_init__(self) -> None:
        self.group_id = key_of(self.transactional_id)

    # --- reading ----------------------------------------------------------------------------------------------

    @property
    def ending(self) -> bool:
        """Decided, and markers are being written."""
        return self.state in ENDING

    @property
    def at_rest(self) -> bool:
        """Nothing is open, prepared or ending."""
        return self.state in AT_REST

    @property
    def is_held(self) -> bool:
        """Whether anybody may have ``producer``: after a fence, and where the epochs ran out, nobody has."""
        if self.producer.epoch > EPOCH_LAST:
            return False
        return self.continues or self.state in (TxnState.EMPTY, TxnState.ONGOING, TxnState.PREPARED)

    @property
    def by_unit(self) -> bool:
        """A unit committed the last one."""
        return self.decided is not None and self.decided.commit and self.decided.cause is EndCause.UNIT

    @property
    def token(self) -> Token | None:
        """What decides it, while it is prepared."""
        if self.state is not TxnState.PREPARED:
            return None
        return Token(self.transactional_id, *self.producer, self.nonce)

    def find_verdict(self, producer: Producer) -> Decided | None:
        """How the transaction that was written under ``producer`` ended, if that is still known."""
        return self.decided if self.decided is not None and self.decided.producer == producer else None

    def verdict_on(self, token: Token) -> Decided | None:
        """How the prepared transaction that ``token`` names was decided, if that is still known."""
        ended = self.find_verdict(Producer(token.producer_id, token.epoch))
        if ended is None or token.nonce == NO_NONCE or ended.nonce != token.nonce:
            return None
        return ended

    def list_enrolled(self) -> tuple[PartitionId, ...]:
        """All partitions, in the order in which they came."""
        return tuple(PartitionId(TopicId(topic), number) for topic, number in PARTITION.iter_unpack(self.packed))

    def make_listing(self) -> TransactionListing:
        return TransactionListing(
            self.transactional_id, self.producer, self.state, self.started_at_ms, self.prepared_at_ms
        )

    def description(self) -> TransactionDescription:
        """All that operators may want to know."""
        return TransactionDescription(
            transactional_id=self.transactional_id,
            state=self.state,
            producer=self.producer,
            timeout_ms=self.timeout_ms,
            started_at_ms=self.started_at_ms,
            prepared_at_ms=self.prepared_at_ms,
            partitions=self.list_enrolled(),
            without_marker=tuple(self.partitions) if self.ending else (),
            token=self.token,
        )

    # --- moves ------------------------------------------------------------------------------------------------

    def take_over(self, producer: Producer, timeout_ms: int, owner_epoch: int) -> None:
        """A newer producer has the id; whoever had it before is fenced."""
        assert self.at_rest, "what is open is aborted first"
        self.producer = producer
        self.timeout_ms = timeout_ms
        self.owner_epoch = owner_epoch
        self.state = TxnState.EMPTY
        self.continues = self.contested = False

    def begin(self, at: Moment) -> None:
        """The first write of a transaction is about to be made, or it is prepared without one."""
        assert self.at_rest, "one transaction at a time"
        assert self.is_held, "somebody has the identity"
        self.state = TxnState.ONGOING
        self.started_at_ms = at.wall_ms
        self.due_ms = at.mono_ms + self.timeout_ms

    def add(self, partitions: Sequence[PartitionId]) -> None:
        """Partitions that are not enrolled yet, each once."""
        assert self.state is TxnState.ONGOING, "partitions join an open transaction"
        pack = PARTITION.pack
        for partition in partitions:
            self.partitions[partition] = None
            self.packed += pack(*partition)

    def prepare(self, nonce: int, at: Moment) -> None:
        """From now on the token decides."""
        assert self.state is TxnState.ONGOING, "what is open is prepared"
        assert nonce != NO_NONCE, "the nonce names the transaction"
        self.state = TxnState.PREPARED
        self.nonce = nonce
        self.prepared_at_ms = at.wall_ms
        self.due_ms = inf

    def contest(self) -> None:
        """A second producer gets the token: after the verdict neither goes on without a new identity."""
        self.contested = True
        self.continues = False

    def decide(self, *, commit: bool, cause: EndCause, at: Moment, continues: bool) -> None:
        """
        The verdict. Without partitions nobody has to be told, and it is complete.

        Args:
            continues: its producer may go on under the raised epoch.
        """
        assert not self.ending, "a verdict never changes"
        assert self.producer.epoch <= EPOCH_LAST, "nothing is written under the last epoch"
        self.decided = Decided(self.producer, commit, cause, self.nonce)
        self.marker = self.producer = Producer(self.producer.producer_id, self.producer.epoch + 1)
        self.state = TxnState.PREPARE_COMMIT if commit else TxnState.PREPARE_ABORT
        self.continues = continues and not self.contested
        self.due_ms = inf
        self.ending_since_ms = at.mono_ms
        if not self.partitions:
            self.complete()

    def undecide(self) -> None:
        """The unit that committed it was never decided: it is prepared, as it was."""
        assert self.ending, "only what is not complete"
        assert self.decided is not None, "an end has a verdict"
        self.producer, self.nonce = self.decided.producer, self.decided.nonce
        self.state = TxnState.PREPARED
        self.marker, self.decided, self.continues = _NOBODY, None, False

    def complete(self) -> None:
        """All partitions have their marker."""
        assert not self.partitions, "every partition is told"
        self.state = _COMPLETE[self.state]
        self.marker = _NOBODY
        self.packed = bytearray()
        self.started_at_ms = self.prepared_at_ms = NO_TIME
        self.nonce = NO_NONCE
