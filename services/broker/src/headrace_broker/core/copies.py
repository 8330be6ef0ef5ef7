"""
What a follower does with what its leader sends it: append batches as they are, and note what the leader says.

``Partition`` asks, and checks before that the leader is the one it follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headrace_broker.core.controls import read_control_batch
from headrace_broker.core.local_log import LocalLog
from headrace_broker.core.partition_events import BatchesCopied, Effect
from headrace_common.core.batch import BatchHeader
from headrace_common.core.errors import CorruptBatch
from headrace_common.core.ids import NodeId, Offset


class Following(NamedTuple):
    """Whom this broker follows, and in which leader epoch."""

    leader: NodeId
    epoch: int


@dataclass(slots=True, eq=False)
class Copies:
    """Batches on their way from one leader, in one epoch, into one log; new for each."""

    log: LocalLog
    leader_high_watermark: Offset = Offset(0)
    """What the leader said last."""
    leader_forgotten_to: Offset = Offset(0)
    """The same; 0: nothing yet."""

    def take(self, following: Following, event: BatchesCopied) -> list[Effect]:
        """
        Append what the leader has sent, and note what it says.

        Raises:
            CorruptBatch: it does not go on from the log end; nothing was changed.
        """
        log = self.log
        inside = bool(event.batches) and self._begins_inside(event.batches[0][0])
        start = Offset(event.batches[0][0].base_offset) if inside else log.log_end
        end, epoch = start, log.epochs.latest
        for header, _ in event.batches:
            if header.base_offset != end or not epoch <= header.leader_epoch <= following.epoch:
                raise CorruptBatch(
                    f"the leader sent a batch for offset {header.base_offset} in epoch {header.leader_epoch}, but the"
                    f" log ends at {end} in epoch {epoch}; it is asked for again"
                )
            end, epoch = Offset(header.next_offset), header.leader_epoch
        all_said = [read_control_batch(header, batch) for header, batch in event.batches]  # before anything has changed
        effects: list[Effect] = [*log.empty(start, event.now_ms, log.fences.token)] if inside else []
        for (header, batch), said in zip(event.batches, all_said, strict=True):
            effects += log.begin_epoch(header.leader_epoch)
            effects += log.append(header, batch, log.log_end, header.leader_epoch, event.now_ms, said.commit)
            if said.token is not None:
                effects += log.fence(Offset(header.base_offset), said.token)
        if event.batches and start < event.forgotten_to and log.forgotten_to < event.forgotten_to:
            log.forgotten_to = event.forgotten_to
            effects.append(log.state())
        self.leader_high_watermark = max(self.leader_high_watermark, event.high_watermark)
        self.leader_forgotten_to = event.forgotten_to
        return effects

    def _begins_inside(self, first: BatchHeader) -> bool:
        """Whether this empty log was to start inside a batch, where the leader's does: it takes the batch whole."""
        end = self.log.log_end
        return self.log.log_start == end and first.base_offset < end < first.next_offset
