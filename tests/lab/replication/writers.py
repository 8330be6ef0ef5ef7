"""Writers under fencing tokens whose batches are in transactions, and how writers come one after the other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.lab.replication.clients import FIRST_WRITER, Sent, Writer

from headrace_common.core.ids import PartitionId
from headrace_proto.v1.errors_pb2 import ErrorCode

if TYPE_CHECKING:
    from tests.lab.replication.world import World

TAKE_OVER_S = 1.2
IN_FLIGHT_MAX = 3
TRANSACTIONAL_SHARE = 0.85
"""Of the writers of a world with transactions; the others write without."""
ENDED = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.PRODUCER_FENCED,
    }
)
"""After these a transaction can only be aborted."""


@dataclass(eq=False)
class TransactionalWriter(Writer):
    """
    The same in transactions of a few batches. In the midst of one it sets a new token for itself now and then, while
    batches under the old one are under way. Who comes after it aborts what it left open, or leaves that to the clock.
    """

    open: bool = False
    _left: int = 0
    """Batches that its transaction still gets."""
    _silent_until_s: float = 0.0
    _waiting: list[Sent] = field(default_factory=list)
    """For a fence that has to be set again."""

    def make(self, now_s: float) -> None:
        """What comes next: its fence, what waited for that, a transaction, its batches, its end."""
        random = self.world.random
        if now_s < self._silent_until_s or any(one.sequence < 0 for one in self.sent):
            return
        if self.done and not self.open:
            return
        if self.fencing:
            self.fence(now_s)
        elif self._waiting:
            self.sent, self._waiting = [*self.sent, *self._waiting], []
        elif not self.open:
            self.epoch, self._sequence, self.open = self.world.verdicts.begin(self.number, self.partition), 0, True
            self._left = random.randint(1, 8)
        elif self._left == 0 or self.done:
            if not self.sent:
                self._end(commit=random.random() < 0.7)
                self._silent_until_s = now_s + random.random() * 0.2
        elif len(self.sent) < IN_FLIGHT_MAX:
            self._left -= 1
            self.append(now_s)
            self._silent_until_s = now_s + random.random() * random.choice((0.0, 0.0, 0.2))
            if random.random() < 0.2:
                self.own, self.fencing = self.world.next_token(self.number), True
                self.world.counts["fences in mid-transaction"] += 1

    def answered(self, one: Sent, base: int) -> None:
        """It is committed."""
        self.sent.remove(one)
        if one.sequence < 0:
            self.fencing = False
            if self.world.random.random() < 0.4:
                self.world.verdicts.abort_others(self.number, self.partition)
        self.world.counts["values in transactions"] += one.values
        self.world.acknowledged(self, one, base)

    def refused(self, one: Sent, result: Any) -> None:
        """It is over; or its transaction is; or it is sent again, maybe under a fence that has to be set again."""
        token = self.present_token(result)
        assert self.own is not None, "a writer has one"
        if result.error in ENDED:
            self._abort()
        elif result.error != ErrorCode.FENCED_WRITER:
            return
        elif token > self.own:
            self.world.counts["writers fenced"] += 1
            self.over = True
            if self.world.random.random() < 0.5:
                self._abort()
            self.sent.clear()
        elif one.sequence < 0:  # the answer to an earlier attempt was lost
            self.sent.remove(one)
            self.fencing = False
        elif token < self.own:  # who leads has not seen the fence, or has cut it
            self._waiting += [one for one in self.sent if one.sequence >= 0]
            self.sent, self.fencing = [], True
        else:  # its own next fence came before it
            self.world.counts["batches behind the writer's next fence"] += 1
            self._abort()

    def _abort(self) -> None:
        """What it has sent of its transaction is no use any more."""
        self._end(commit=False)
        self.sent, self._waiting = [one for one in self.sent if one.sequence < 0], []

    def _end(self, *, commit: bool) -> None:
        if self.open:
            self.world.verdicts.end(self.number, self.epoch, commit=commit)
            self.open = False


async def take_over(partition: PartitionId, world: World) -> None:
    """Make a new writer for a partition every now and then; those before go on, not knowing."""
    random = world.random
    while not world.calm:
        await asyncio.sleep(TAKE_OVER_S * (0.2 + 1.6 * random.random()))
        number = FIRST_WRITER + world.last_token + 1
        token = world.next_token(number)
        if not world.profile.transactions or random.random() > TRANSACTIONAL_SHARE:
            world.begin(Writer(number, partition, world, own=token))
            continue
        if random.random() < 0.3:
            world.verdicts.abort_others(number, partition)
        world.begin(TransactionalWriter(number, partition, world, own=token, transactional_id=f"w{number}"))
