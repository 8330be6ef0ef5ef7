"""
One owner of transactional ids ``owner/suffix``: its epoch, its last unit, and the producer ids that its ids share.

Ids of an owner live for a transaction or a few; a producer id goes from one to the next, each time with a higher epoch,
so that brokers need not learn a new one for each. ``units`` and ``register`` call this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from struct import Struct
from typing import Final

from headrace_coordinator.core.transactions.transaction import Transaction
from headrace_coordinator.core.transactions.values import (
    EPOCH_LAST,
    NO_CLAIM,
    NO_OWNER_EPOCH,
    NO_SEQUENCE,
    NO_TIME,
    Producer,
)

FREE: Final = Struct(">qh")
NONCE: Final = Struct(">Q")


@dataclass(slots=True)
class Owner:
    """State of one owner; all of it is durable but ``ids``, which the ids' own records tell."""

    name: str
    epoch: int = -1
    last_sequence: int = NO_SEQUENCE
    """Of the last unit."""
    claim: int = NO_CLAIM
    """The highest that there ever was."""
    claim_epoch: int = NO_OWNER_EPOCH
    """Which that claim began. Below ``epoch``: somebody became the owner without one since."""
    used_at_ms: int = NO_TIME
    """When it was changed last, wall clock; -1: not known, its record is of a coordinator that did not tell."""
    free: bytearray = field(default_factory=bytearray)
    """Producer ids and the epochs that come next, as the record has them; the last one is taken first."""
    ids: dict[str, Transaction] = field(default_factory=dict)
    _undone: set[int] = field(default_factory=set)
    """Nonces of what units committed and is not known to be complete in the log."""
    _complete: deque[tuple[int, int]] = field(default_factory=deque)
    """Step and nonce of those that are complete here, in the order of the steps."""
    _packed: bytes | None = None

    # --- epochs -----------------------------------------------------------------------------------------------

    def begin_epoch(self, claim: int | None) -> None:
        """A new owner, who may have claimed it: with a number that was never reached."""
        self.epoch += 1
        if claim is not None:
            assert claim > self.claim, "claims grow"
            self.claim, self.claim_epoch = claim, self.epoch

    @property
    def epoch_of_ids(self) -> int:
        """
        What the records of ids that begin now say of their epoch.

        Only claims need it: an epoch that the log has is answered again, so all before it must be over. It is left out
        until the first claim, because coordinators that know of none cannot read it.
        """
        return NO_OWNER_EPOCH if self.claim == NO_CLAIM else self.epoch

    # --- units ------------------------------------------------------------------------------------------------

    def commit(self, sequence: int, nonces: Iterable[int]) -> None:
        """A unit is decided: with the owner's record all that it lists is."""
        assert sequence > self.last_sequence, "sequences of units grow"
        self.last_sequence = sequence
        self._undone.update(nonces)
        self._packed = None

    def completed(self, nonce: int, step: int) -> None:
        """A transaction is complete. If a unit committed it, its nonce stays in the record until that is in the log."""
        if nonce in self._undone:
            self._complete.append((step, nonce))

    def forget_complete(self, durable_step: int) -> None:
        """
        What was complete by ``durable_step`` is so in the log.

        Half of the nonces go at a time or none, so that the record is not put together anew for each.
        """
        known = 0
        while known < len(self._complete) and self._complete[known][0] <= durable_step:
            known += 1
        if 2 * known >= len(self._undone) > 0:
            self._undone.difference_update(self._complete.popleft()[1] for _ in range(known))
            self._packed = None

    def forget_all_but(self, nonces: Iterable[int]) -> None:
        """Only these are of transactions that are not complete; the others are so in the log."""
        self._undone.intersection_update(nonces)
        self._packed = None

    def has_committed(self, nonce: int) -> bool:
        """Whether a unit committed what was prepared under ``nonce``."""
        return nonce in self._undone

    def pack_undone(self) -> bytes:
        """Nonces of what units committed, as the record has them."""
        if self._packed is None:
            self._packed = b"".join(map(NONCE.pack, self._undone))
        return self._packed

    def read_undone(self, packed: bytes) -> None:
        """Take what ``pack_undone`` gave."""
        self._undone = {nonce for (nonce,) in NONCE.iter_unpack(packed)}

    # --- producer ids -----------------------------------------------------------------------------------------

    def put_back(self, producer: Producer, most: int) -> None:
        """An id that had ``producer`` is no more. The next one gets a higher epoch, if there is one."""
        if producer.epoch < EPOCH_LAST and len(self.free) < most * FREE.size:
            self.free += FREE.pack(producer.producer_id, producer.epoch + 1)

    def take(self) -> Producer | None:
        """An identity that nobody ever had; None: none is free. The owner's record has to be written."""
        if not self.free:
            return None
        producer = Producer(*FREE.unpack_from(self.free, len(self.free) - FREE.size))
        del self.free[-FREE.size :]
        return producer

    def drop_taken(self) -> bool:
        """Producer ids that an id has are not free, whatever the record says. Whether there were any."""
        taken = {txn.producer.producer_id for txn in self.ids.values()}
        kept = bytearray()
        for producer_id, epoch in FREE.iter_unpack(self.free):
            if producer_id not in taken:
                kept += FREE.pack(producer_id, epoch)
        dropped, self.free = len(kept) < len(self.free), kept
        return dropped
