"""
Decides, for one partition, which batch is sent when and under which sequence, and what an answer means.

At most ``in_flight_max`` batches count from the first without an outcome: a broker remembers as many. The rules
(``docs/replication.md`` on idempotence; KIP-98, KIP-360; differences are argued in DESIGN.md):

* A batch that was ever sent is sent again only under the same sequence, until the leader says that it is not there:
  NOT_LEADER, a timeout and a disconnect leave its fate unknown.
* After a failure nothing is sent until every batch under way was answered; then all are repeated in order, after a
  pause that grows with each failure under one leader epoch. A newer epoch is tried at once.
* A log takes any first sequence of a producer it does not know. So until one batch was acknowledged under an identity,
  and again after a long pause, one at a time is under way: else a second batch could overtake a first that got lost.
* A batch that is given up leaves a gap. Later batches that were sent are repeated until they are either found written,
  or refused as out of order by a leader that knows all before them is decided: then they are surely absent. When all
  are decided the lane takes a new epoch, and numbers what is left from 0.
* A fence goes alone: when all before it is decided, and before anything behind it. So each batch leaves, and is
  repeated, under one token. Once the writer has lost the partition, or a fence has failed, nothing is written until the
  next fence is (``fencing``).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from headrace._core.batch import SEQUENCES, Batch, Identity, Outcome, Piece, cut
from headrace._core.chunk import BATCH_OVERHEAD
from headrace._core.effects import Divided, DoubtLeader, Effect, RefreshMetadata, Settle
from headrace._core.fencing import NO_TOKEN, Fencing, explain_missing
from headrace._core.remedies import ABSENT, GAP, Asker, Remedy, is_refusal, remedy_for
from headrace.errors import (
    DeliveryTimedOut,
    ErrorCode,
    ExpiredUnderWay,
    HeadraceError,
    RevokedUnderWay,
    UnknownOutcome,
    error_for,
)
from headrace_common.core.batch import RECORDS_PER_BATCH_MAX, Codec

NEVER: Final = float("inf")

PAUSE_MS: Final = 60_000
"""After a pause like this the leader may have forgotten the producer; brokers keep it far longer."""

BEHIND_MS: Final = 20
"""First pause for a broker that has not heard of its own election yet, or for a transaction that is just ending."""


@dataclass(frozen=True, slots=True)
class LaneRules:
    """What the settings say, in the units of the core."""

    idempotent: bool
    in_flight_max: int
    retries: int
    delivery_timeout_ms: float
    backoff_ms: float
    backoff_max_ms: float
    codec: Codec
    transactional: bool = False
    """Identities come from transactions, one each; a batch that is given up is the end of its transaction."""


class Lane:
    """
    The batches of one partition, oldest first.

    ``waiting`` were never given a sequence; the last takes more rows until it is sent. ``sent`` hold a sequence: the
    first has no outcome (or expired while under way: it stays until its answer comes), others may be written already;
    they count, for the broker must still recognise the first when it is repeated. Time is monotonic milliseconds.
    """

    def __init__(self, topic: str, partition: int, rules: LaneRules, bytes_max: int) -> None:
        self.topic = topic
        self.partition = partition
        self.bytes_max = bytes_max
        """The most bytes that a batch may have on the wire."""
        self.waiting: deque[Batch] = deque()
        self.sent: list[Batch] = []
        self.unreported: deque[Batch] = deque()
        """Whose outcome nobody was told of, in the order of the calls: a later one waits for those before it."""
        self.in_flight = 0
        self.broker = -1
        """Where the batches under way are, or where the last one was."""
        self.leader_epoch = -1
        """The leader epoch under which they left."""
        self.failures = 0
        """Rounds in a row that failed under this leader epoch."""
        self.not_before_ms = -NEVER
        self.wakes_ms = NEVER
        """When the core looks at this lane again by itself."""
        self.identity: Identity | None = None
        self.next_sequence = 0
        self.proven = False
        """The leader knows this identity: it has acknowledged a batch."""
        self.left_ms = -NEVER
        """When the last batch left."""
        self.retrying = False
        """Repeat what has no outcome, once nothing is under way."""
        self.gap = False
        """A sequence is missing: number anew, once all that was sent is decided."""
        self.fencing: Fencing | None = None
        """None: no fencing token was ever asked for."""
        self._rules = rules

    @property
    def idle(self) -> bool:
        """Nothing to send and nothing to wait for."""
        return not self.waiting and not self.sent

    def join(self, piece: Piece, created_ms: float, batch_bytes: int) -> list[tuple[int, Batch, int]]:
        """
        Take rows in: they fill up the last waiting batch to ``batch_bytes``, or make new ones.

        Returns:
            (start in the piece, batch, place of that row in the batch), ascending.
        """
        size = min(batch_bytes, self.bytes_max - BATCH_OVERHEAD)
        last = self.waiting[-1] if self.waiting else None
        if last is not None and last.encoded is None and last.fits(piece, size):
            return [(0, last, last.add(piece))]
        rows = len(piece.values)
        share = rows
        if piece.size_bytes > min(size + size // 2, self.bytes_max - BATCH_OVERHEAD):
            share = max(1, rows * size // piece.size_bytes)
        share = min(share, RECORDS_PER_BATCH_MAX)
        joined: list[tuple[int, Batch, int]] = []
        for start in range(0, rows, share):
            end = min(start + share, rows)
            batch = Batch(self.topic, self.partition, created_ms)
            total = piece.size_bytes
            batch.add(cut(piece, start, end, total * end // rows - total * start // rows) if share < rows else piece)
            self.waiting.append(batch)
            self.unreported.append(batch)
            joined.append((start, batch, 0))
        return joined

    def fence(self, batch: Batch) -> None:
        """Set a token in its turn. Raises: ``Rejected``: a higher one was asked for before."""
        assert batch.fence is not None, "it is a fence"
        fencing = self.fencing or Fencing(f"{self.topic}-{self.partition}")
        fencing.ask(batch.fence)
        self.fencing = fencing
        self.waiting.append(batch)
        self.unreported.append(batch)

    def drop_closed(self) -> list[Effect]:
        """What can never be written, up to the next fence, fails: the writer has lost the partition."""
        effects: list[Effect] = []
        if self.fencing is not None and (error := self.fencing.closed) is not None:
            while self.waiting and self.waiting[0].fence is None:
                effects += self._settle(self.waiting.popleft(), error)
        return effects

    def reports(self) -> list[Batch]:
        """Those whose outcome may be told now, in the order of the calls."""
        told: list[Batch] = []
        while self.unreported and self.unreported[0].outcome is not None:
            told.append(self.unreported.popleft())
        return told

    def _halves(self, batch: Batch) -> tuple[Batch, Batch]:
        first, second = batch.halves()
        at = self.unreported.index(batch)
        self.unreported[at] = first
        self.unreported.insert(at + 1, second)
        return first, second

    # --- sending ----------------------------------------------------------------------------------------------

    def wants_identity(self) -> bool:
        """Whether nothing can be sent before ``renew``."""
        if not self._rules.idempotent or self._rules.transactional or self.idle:
            return False
        if self.identity is None:
            return True
        return self.gap and not self.in_flight and all(batch.absent or batch.written for batch in self.sent)

    def waits_for(self, error: HeadraceError) -> None:
        """Why nothing that waits was sent yet."""
        for batch in self.waiting:
            batch.last_error = error

    def renew(self, identity: Identity) -> None:
        """Number all that is left from 0 under ``identity``."""
        assert not self.in_flight, "what is under way has its sequence"
        self.sent = [batch for batch in self.sent if not batch.written]
        assert all(batch.absent for batch in self.sent), "what may be written keeps its sequence"
        self.identity = identity
        self.next_sequence = 0
        self.gap = self.retrying = self.proven = False
        for batch in self.sent:
            batch.restamp(identity, self._take_sequence(batch.count))

    def pauses(self, now_ms: float, leader_epoch: int) -> bool:
        """Whether the pause after a failure stands: a leader that is newer than what failed is asked at once."""
        return now_ms < self.not_before_ms and leader_epoch <= self.leader_epoch

    def next(
        self, leader: tuple[int, int], now_ms: float, current: Identity | None
    ) -> tuple[Batch | None, list[Effect]]:
        """
        The batch to send to the leader now; it counts as under way from here on.

        Args:
            leader: its node id, and its leader epoch.
            current: the producer's identity; a lane without unsettled sequences takes it on.
        """
        if self.pauses(now_ms, leader[1]) or (self.in_flight and leader != (self.broker, self.leader_epoch)):
            return None, []
        if self.retrying:
            if self.in_flight:
                return None, []
            self.retrying = False
        if not self.sent and now_ms - self.left_ms > PAUSE_MS:
            self.proven = False
        room = self._rules.in_flight_max if self.proven or not self._rules.idempotent else 1
        if self.in_flight >= room:
            return None, []
        window = [batch for batch in self.sent if not batch.absent][: self._rules.in_flight_max]
        for batch in window:
            if not (batch.in_flight or batch.written):
                return self._leaves(batch, leader, now_ms), []
        if self._rules.transactional and not self.sent and current != self.identity:
            self._begin_transaction(current)
            room = self._rules.in_flight_max
        if self.gap or not self.waiting or len(self.sent) >= room:
            return None, []
        if self.fencing is not None:
            if self.sent and (self.sent[0].fence or self.waiting[0].fence):
                return None, []
            if self.waiting[0].fence:
                self.sent.append(self.waiting.popleft())
                return self._leaves(self.sent[0], leader, now_ms), []
        if self._rules.idempotent:
            if not self.sent and current is not None and current != self.identity:
                self.identity, self.next_sequence, self.proven = current, 0, False
            if self.identity is None:
                return None, []
        return self._drain(leader, now_ms)

    def _begin_transaction(self, identity: Identity | None) -> None:
        """What became of the last transaction does not matter; logs take only 0 as the first sequence of the next."""
        self.identity, self.next_sequence = identity, 0
        self.gap, self.proven = False, True

    def _drain(self, leader: tuple[int, int], now_ms: float) -> tuple[Batch | None, list[Effect]]:
        effects: list[Effect] = []
        while self.waiting:
            batch = self.waiting[0]
            try:
                encoded = self._encode(batch, self.next_sequence if self.identity else -1)
            except (HeadraceError, TypeError, ValueError, OverflowError) as error:
                effects += self._settle(self.waiting.popleft(), error)
                continue
            self.waiting.popleft()
            if len(encoded) > self.bytes_max and batch.count > 1:
                self.waiting.extendleft(reversed(self._halves(batch)))
                effects.append(Divided(batch))
                continue
            self._take_sequence(batch.count)
            if self.fencing is not None:
                batch.token = self.fencing.token
            self.sent.append(batch)
            return self._leaves(batch, leader, now_ms), effects
        return None, effects

    def _encode(self, batch: Batch, sequence: int) -> bytes:
        return batch.encode(self._rules.codec, self.identity, sequence, transactional=self._rules.transactional)

    def _leaves(self, batch: Batch, leader: tuple[int, int], now_ms: float) -> Batch:
        assert not batch.in_flight, "a batch is under way once"
        batch.in_flight = batch.sent = True
        self.in_flight += 1
        if leader[1] > self.leader_epoch:
            self.failures, self.not_before_ms = 0, -NEVER
        self.broker, self.leader_epoch = leader
        self.left_ms = now_ms
        return batch

    def _take_sequence(self, count: int) -> int:
        sequence = self.next_sequence
        self.next_sequence = (sequence + count) % SEQUENCES
        return sequence

    # --- answers ----------------------------------------------------------------------------------------------

    def acked(self, batch: Batch, base_offset: int, log_append_ms: int) -> list[Effect]:
        """The leader has written the batch, now or before."""
        self._returned(batch)
        self.proven |= batch.fence is None
        self.failures = 0
        if batch.expired:
            self._leave(batch)
            return []
        if batch.fence is not None and self.fencing is not None:
            self.fencing.was_set(batch.fence, self.leader_epoch)
        batch.outcome = Outcome(base_offset, log_append_ms, None)
        if batch is self.sent[0]:
            self._leave(batch)
        return self._report_outcome(batch)

    def lost(self, batch: Batch, error: HeadraceError, now_ms: float) -> list[Effect]:
        """No answer came: the batch may be written. After a refusal it is given up, with that."""
        self._returned(batch)
        if is_refusal(error):
            self._leave(batch)
            return [] if batch.expired else self._give_up(batch, _when_under_way(error, uncertain=batch.uncertain))
        return self._again(batch, error, now_ms, moved=True)

    def refused(
        self, batch: Batch, code: int, message: str, now_ms: float, fencing_token: int = NO_TOKEN
    ) -> list[Effect]:
        """The leader, or who was taken for it, answered with an error; ``fencing_token``: the one that it has."""
        self._returned(batch)
        error = error_for(code, f"{self.topic}-{self.partition}: {message}" if message else "")
        if batch.expired:
            self._leave(batch)
            return []
        if error.code is ErrorCode.FENCED_WRITER:
            return self._fenced(batch, error, fencing_token, now_ms)
        if error.code in GAP and self._rules.idempotent and batch.fence is None:
            return self._out_of_order(batch, error)
        if error.code is ErrorCode.MESSAGE_TOO_LARGE and batch.count > 1 and not batch.uncertain:
            return self._divide(batch)
        remedy = remedy_for(Asker.PRODUCER, error.code)
        if remedy is not Remedy.RAISE:
            return self._again(batch, error, now_ms, moved=remedy is Remedy.REFRESH, sure=error.code in ABSENT)
        return self._fail(batch, error)

    def _fail(self, batch: Batch, error: HeadraceError) -> list[Effect]:
        self._leave(batch)
        if batch.uncertain:
            error = UnknownOutcome(f"{error}; but an attempt before may have been written")
        return self._give_up(batch, error)

    def _fenced(self, batch: Batch, error: HeadraceError, told: int, now_ms: float) -> list[Effect]:
        """The leader has token ``told``; nothing was appended by this attempt."""
        mine = batch.fence or batch.token
        if mine is None:
            return self._fail(batch, explain_missing(error, self.topic, self.partition))
        assert self.fencing is not None, "it has asked for a token"
        lost = self.fencing.explain_refusal(error, mine, told, self.leader_epoch)
        if lost is None:
            return self._again(batch, error, now_ms, moved=True, sure=True)
        self.fencing.closed = lost
        if batch.fence is not None:  # whether an earlier attempt has set it does not matter any more
            self._leave(batch)
            return self._settle(batch, lost)
        return self._fail(batch, lost)

    def _leave(self, batch: Batch) -> None:
        """Forget ``batch``, and those written that only stayed because of it."""
        self.sent.remove(batch)
        while self.sent and self.sent[0].written:
            del self.sent[0]

    def _returned(self, batch: Batch) -> None:
        assert batch.in_flight, "an answer belongs to a batch under way"
        batch.in_flight = False
        self.in_flight -= 1

    def _again(
        self, batch: Batch, error: HeadraceError, now_ms: float, *, moved: bool, sure: bool = False
    ) -> list[Effect]:
        effects: list[Effect] = []
        if moved:
            effects.append(DoubtLeader(self.topic, self.partition, self.leader_epoch, str(error)))
        batch.uncertain |= not sure
        batch.last_error = error
        batch.attempts += 1
        if batch.expired:
            self._leave(batch)
            return effects
        if batch.attempts > self._rules.retries:
            self._leave(batch)
            return effects + self._give_up(batch, error)
        if not self.retrying:
            self.failures += 1  # what else comes back belongs to the same round
        self.retrying = True
        first_ms = self._rules.backoff_ms
        if error.code in (ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.CONCURRENT_TRANSACTIONS):
            first_ms = min(first_ms, BEHIND_MS)
        wait = min(first_ms * 2.0 ** min(self.failures - 1, 16), self._rules.backoff_max_ms)
        self.not_before_ms = max(self.not_before_ms, now_ms + wait)
        return effects

    def _out_of_order(self, batch: Batch, error: HeadraceError) -> list[Effect]:
        batch.last_error = error
        earlier = self.sent[: self.sent.index(batch)]
        if all(other.absent or other.written for other in earlier):
            closed = None if self.fencing is None else self.fencing.closed
            if closed is not None or self._rules.transactional:  # the epoch is the transaction's: no sequence is anew
                self._leave(batch)
                return self._give_up(batch, closed or error)
            batch.absent = True
            self.gap = True
        else:
            self.retrying = True
        return []

    def _divide(self, batch: Batch) -> list[Effect]:
        """Two halves in its place, under the sequences that its records have: it was not written."""
        place = self.sent.index(batch)
        sequence = batch.sequence
        halves = self._halves(batch)
        for half in halves:
            half.token = batch.token
            self._encode(half, sequence)
            if self.identity is not None:
                sequence = (sequence + half.count) % SEQUENCES
        self.sent[place : place + 1] = halves
        self.bytes_max = max(BATCH_OVERHEAD * 2, min(self.bytes_max, len(halves[0].encoded or b"") + BATCH_OVERHEAD))
        self.retrying = True
        return [Divided(batch), RefreshMetadata(f"{self.topic} takes smaller batches than was known")]

    def _give_up(self, batch: Batch, error: HeadraceError) -> list[Effect]:
        if self._rules.idempotent and batch.fence is None:
            self.gap = True
        return self._settle(batch, error)

    # --- time -------------------------------------------------------------------------------------------------

    def expire(self, now_ms: float) -> list[Effect]:
        """Give up what is older than the delivery timeout."""
        limit = now_ms - self._rules.delivery_timeout_ms
        effects: list[Effect] = []
        for batch in [b for b in self.sent if b.created_ms <= limit and b.outcome is None]:
            batch.expired = True
            effects += self._give_up(batch, self._explain_timeout(batch))
            if not batch.in_flight:
                self._leave(batch)
        while self.waiting and self.waiting[0].created_ms <= limit:
            batch = self.waiting.popleft()
            effects += self._settle(batch, self._explain_timeout(batch))
        return effects

    def abort(self, error: HeadraceError, *, fences: bool = True) -> list[Effect]:
        """
        Give up everything: the producer ends, or its transaction, to which ``fences`` do not belong. Answers that come
        later are not for this lane.
        """
        effects: list[Effect] = []
        sent, waiting = self.sent, self.waiting
        self.sent = [] if fences else [batch for batch in sent if batch.fence]
        self.waiting = deque() if fences else deque(batch for batch in waiting if batch.fence)
        for batch in (*sent, *waiting):
            if fences or not batch.fence:
                if batch.outcome is None:
                    effects += self._settle(batch, error)
                batch.in_flight = False
        self.in_flight = sum(batch.in_flight for batch in self.sent)
        self.gap = self.retrying = False
        return effects

    def _explain_timeout(self, batch: Batch) -> HeadraceError:
        fate = "it may have been written" if batch.sent else "it was never sent"
        last = f"; the last failure was: {batch.last_error}" if batch.last_error is not None else ""
        where = f"{self.topic}-{self.partition}"
        what = f"{batch.count} records for {where} were"
        if batch.fence is not None:
            what = f"fencing token {batch.fence} of {where} was"
        return DeliveryTimedOut(f"{what} not acknowledged within {self._rules.delivery_timeout_ms:g} ms; {fate}{last}")

    def _settle(self, batch: Batch, error: Exception) -> list[Effect]:
        if not isinstance(error, HeadraceError):
            error = error_for(ErrorCode.INVALID_RECORD, f"the records cannot be written: {error}")
        if batch.fence is not None and self.fencing is not None:
            self.fencing.was_not_set(batch.fence, error)
        batch.outcome = Outcome(-1, -1, error)
        return self._report_outcome(batch)

    def _report_outcome(self, batch: Batch) -> list[Effect]:
        batch.release()
        return [Settle(batch, batch.size_bytes)]


_UNDER_WAY: Final = {
    ErrorCode.CREDENTIALS_REVOKED: RevokedUnderWay,
    ErrorCode.CREDENTIALS_EXPIRED: ExpiredUnderWay,
}
"""A stream ends with these at any moment; who is refused by the others has never had one."""


def _when_under_way(error: HeadraceError, *, uncertain: bool) -> HeadraceError:
    """What a batch without an answer fails with; ``uncertain``: an attempt before may have been written."""
    known = _UNDER_WAY.get(error.code)
    if known is not None:
        return known(f"{error}; the records were under way and may have been written")
    return UnknownOutcome(f"{error}; but an attempt before may have been written") if uncertain else error
