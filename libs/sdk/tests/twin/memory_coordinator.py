"""
The coordinator of transactions of the cluster in memory: states, epochs, prepared ones and units. Nothing is durable.

Every end writes its markers at once, unless a test holds them (``hold_markers``). What takes too long is aborted when
anybody asks for something; a test may say so earlier (``time_out``). Guarded by one lock, for clients may live on
several event loops.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

from libs.sdk.tests.twin.memory_units import MemoryUnits

from headrace._transport.port import Coordinator
from headrace.errors import (
    ConcurrentTransactions,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTransactionTimeout,
    InvalidTxnState,
    ProducerFenced,
    Rejected,
    TransactionAbortable,
    TxnVerdictUnknown,
)
from headrace_common.core.ids import NodeId
from headrace_common.runtime.clock import Clock, SystemClock
from headrace_proto.v1 import transaction_pb2 as pb

TRANSACTION_COORDINATOR: Final = Coordinator(NodeId(102), "memory:102")
TRANSACTION_TIMEOUT_MS_MAX: Final = 900_000
ID_LENGTH_MAX: Final = 249
EPOCH_MAX: Final = 2**15 - 1

Partition = tuple[bytes, int]


class Verdict(NamedTuple):
    """How a transaction ended."""

    producer_id: int
    epoch: int
    """It was written under."""
    commit: bool
    nonce: int | None
    """Of its token, if it was prepared."""
    by_client: bool


@dataclass(slots=True)
class Txn:
    """One transactional id."""

    producer_id: int
    epoch: int
    timeout_ms: int
    open: bool = False
    due_ms: float = 0
    """Open: when it has taken too long, on the monotonic clock."""
    partitions: set[Partition] = field(default_factory=set)
    ending: bool = False
    """Its markers are held."""
    token: pb.PreparedToken | None = None
    last: Verdict | None = None
    forgotten: bool = False
    """Once it has ended: it was of a unit, or of an owner before."""


class Ends(NamedTuple):
    """Markers to write."""

    transactional_id: str
    partitions: frozenset[Partition]
    producer_id: int
    epoch: int
    commit: bool


class MemoryTransactions:
    """
    All transactional ids.

    Args:
        new_producer_id: one that nobody has.
        write_markers: ends a transaction in logs and groups.
    """

    def __init__(self, new_producer_id: Callable[[], int], write_markers: Callable[[Ends], None]) -> None:
        self.txns: dict[str, Txn] = {}
        self.down = False
        """Nobody has the ids."""
        self.at = TRANSACTION_COORDINATOR
        """Who has them."""
        self.asked: list[str] = []
        """What was asked, in order: "init", "enrol", "end", "prepare", "decide"."""
        self.clock: Clock = SystemClock()
        self.lock = threading.RLock()
        self.units = MemoryUnits(self)
        self._new_producer_id = new_producer_id
        self._write_markers = write_markers
        self._held: list[Ends] | None = None
        self._nonces = 0
        self._due_ms = inf
        """Nothing has taken too long before."""

    # --- what tests do ------------------------------------------------------------------------------------------------

    def hold_markers(self) -> None:
        """Ends are decided, and not written until ``release_markers``."""
        self._held = []

    def release_markers(self) -> None:
        """Write what was held, and hold no more."""
        held, self._held = self._held or [], None
        with self.lock:
            for ends in held:
                self._complete(ends)

    def time_out(self, transactional_id: str) -> None:
        """The open transaction has taken too long, or an operator aborts it."""
        with self.lock:
            txn = self.txns[transactional_id]
            if txn.open and txn.token is None:
                self._end(transactional_id, txn, commit=False, by_client=False)

    def forget(self, transactional_id: str) -> None:
        """As after its expiry."""
        del self.txns[transactional_id]

    def expire(self) -> None:
        """Abort what has taken too long; called before anybody looks at a log."""
        if self.down or self.clock.monotonic_ms() < self._due_ms:
            return
        with self.lock:
            now_ms = self.clock.monotonic_ms()
            open_ones = [(key, txn) for key, txn in self.txns.items() if txn.open and txn.token is None]
            for key, txn in open_ones:
                if txn.due_ms <= now_ms:
                    self._end(key, txn, commit=False, by_client=False)
            self._due_ms = min((txn.due_ms for _, txn in open_ones if txn.open), default=inf)

    # --- what transports ask ------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises: ``CoordinatorNotAvailable`` while it is down."""
        if self.down:
            raise CoordinatorNotAvailable("nobody has the transactional id now")

    def find(self, key: str) -> Coordinator:
        """Who has the id."""
        if not 0 < len(key) <= ID_LENGTH_MAX:
            raise Rejected(f"a transactional id has 1 to {ID_LENGTH_MAX} characters")
        self.check()
        return self.at

    def init(self, request: pb.InitTransactionalIdRequest) -> pb.InitTransactionalIdResponse:
        """The caller is the only producer from now on."""
        with self.lock:
            self._asked("init")
            key = request.transactional_id
            if not 1 <= request.transaction_timeout_ms <= TRANSACTION_TIMEOUT_MS_MAX:
                raise InvalidTransactionTimeout(
                    f"transaction_timeout_ms takes 1 to {TRANSACTION_TIMEOUT_MS_MAX} (transaction.max.timeout.ms), not "
                    f"{request.transaction_timeout_ms}"
                )
            self.units.check(key, request.owner_epoch if request.HasField("owner_epoch") else None)
            txn = self.txns.get(key)
            if txn is None:
                txn = self.txns[key] = Txn(self._new_producer_id(), 0, request.transaction_timeout_ms)
                return pb.InitTransactionalIdResponse(producer_id=txn.producer_id, producer_epoch=0)
            if txn.token is not None:
                return pb.InitTransactionalIdResponse(
                    producer_id=txn.producer_id, producer_epoch=txn.epoch, prepared=txn.token
                )
            if txn.open:
                self._end(key, txn, commit=False, by_client=False)
            if txn.ending:
                raise ConcurrentTransactions("the end of the transaction before is being written")
            self._raise_epoch(txn)
            txn.last, txn.timeout_ms = None, request.transaction_timeout_ms
            return pb.InitTransactionalIdResponse(producer_id=txn.producer_id, producer_epoch=txn.epoch)

    def enrol(self, key: str, producer_id: int, epoch: int, partition: Partition | None) -> None:
        """
        A partition (None: positions of a group) becomes part of the open transaction.

        Raises:
            HeadraceError: it may not.
        """
        with self.lock:
            self._asked("enrol")
            txn = self._txn(key, producer_id)
            if epoch != txn.epoch:
                raise InvalidProducerEpoch(f"epoch {epoch}, where {txn.epoch} is current: the transaction has ended")
            if txn.token is not None:
                raise InvalidTxnState("the transaction is prepared")
            if txn.ending:
                raise ConcurrentTransactions("the end of the transaction before is being written")
            if not txn.open:
                txn.open, txn.due_ms = True, self.clock.monotonic_ms() + txn.timeout_ms
                self._due_ms = min(self._due_ms, txn.due_ms)
            if partition is not None:
                txn.partitions.add(partition)

    def end(self, request: pb.EndTxnRequest) -> pb.EndTxnResponse:
        """Commit or abort."""
        with self.lock:
            self._asked("end")
            key, commit = request.transactional_id, request.commit
            txn = self.txns.get(key)
            if txn is None:
                raise InvalidProducerIdMapping(f"{key!r} is not known; it may have expired")
            last, asked = txn.last, (request.producer_id, request.producer_epoch)
            if last is not None and last.nonce is None and asked == (last.producer_id, last.epoch):
                self._repeated(last, commit)
            elif asked == (txn.producer_id, txn.epoch):
                if txn.token is not None:
                    raise InvalidTxnState("the transaction is prepared; it is decided by its token")
                if txn.ending:
                    raise ConcurrentTransactions("the end of the transaction before is being written")
                self._end(key, txn, commit=commit, by_client=True)
            elif request.producer_id != txn.producer_id:
                raise InvalidProducerIdMapping(f"{key!r} has another producer id")
            elif request.producer_epoch > txn.epoch:
                raise InvalidProducerEpoch(f"epoch {request.producer_epoch} is not known")
            else:
                raise ProducerFenced(f"a newer producer has {key!r}")
            return pb.EndTxnResponse(producer_id=txn.producer_id, producer_epoch=txn.epoch)

    @staticmethod
    def _repeated(last: Verdict, commit: bool) -> None:
        if last.commit != commit and last.by_client:
            raise InvalidTxnState("the transaction was decided the other way")
        if last.commit != commit:
            raise TransactionAbortable("the transaction took too long and was aborted")

    def prepare(self, request: pb.PrepareTxnRequest) -> pb.PrepareTxnResponse:
        """Durable, undecided."""
        with self.lock:
            self._asked("prepare")
            key = request.transactional_id
            self.units.check(key, request.owner_epoch if request.HasField("owner_epoch") else None)
            txn = self._txn(key, request.producer_id)
            if request.producer_epoch != txn.epoch:
                last = txn.last
                if last is not None and last.epoch == request.producer_epoch and not last.by_client:
                    raise TransactionAbortable("the transaction took too long and was aborted")
                raise ProducerFenced(f"a newer producer has {key!r}")
            if txn.token is None:
                self._nonces += 1
                txn.token = pb.PreparedToken(
                    transactional_id=key,
                    producer_id=txn.producer_id,
                    producer_epoch=txn.epoch,
                    nonce=0xC0FFEE00 + self._nonces,
                )
            return pb.PrepareTxnResponse(token=txn.token)

    def decide(self, request: pb.DecidePreparedRequest) -> pb.DecidePreparedResponse:
        """Commit or abort what is prepared."""
        with self.lock:
            self._asked("decide")
            token = request.token
            txn = self.txns.get(token.transactional_id)
            if txn is None:
                raise TxnVerdictUnknown("nothing is known of this transaction")
            if txn.token == token:
                self._end(token.transactional_id, txn, commit=request.commit, by_client=True)
            last = txn.last
            if last is None or last.nonce != token.nonce:
                raise TxnVerdictUnknown("another transaction was decided since")
            current = txn.token is None and not txn.open
            return pb.DecidePreparedResponse(
                committed=last.commit,
                producer_id=txn.producer_id if current else -1,
                producer_epoch=txn.epoch if current else -1,
            )

    # --- ends ---------------------------------------------------------------------------------------------------------

    def decide_units(self, decided: Iterable[tuple[str, bool]]) -> None:
        """Ends of prepared ones that a unit decides together; they are forgotten."""
        for key, commit in decided:
            self.txns[key].forgotten = True
            self._end(key, self.txns[key], commit=commit, by_client=True)

    def abort_left(self, keys: Iterable[str]) -> None:
        """What an owner before has left; nobody goes on with it."""
        for key in keys:
            txn = self.txns[key]
            txn.forgotten = True
            if txn.open or txn.token is not None:
                self._end(key, txn, commit=False, by_client=False)
            elif not txn.ending:
                del self.txns[key]

    def _end(self, key: str, txn: Txn, *, commit: bool, by_client: bool) -> None:
        nonce = txn.token.nonce if txn.token is not None else None
        txn.last = Verdict(txn.producer_id, txn.epoch, commit, nonce, by_client)
        ends = Ends(key, frozenset(txn.partitions), txn.producer_id, txn.epoch + 1, commit)
        self._raise_epoch(txn)
        txn.ending, txn.open, txn.token = True, False, None
        txn.partitions = set()
        if self._held is None:
            self._complete(ends)
        else:
            self._held.append(ends)

    def _complete(self, ends: Ends) -> None:
        self._write_markers(ends)
        txn = self.txns[ends.transactional_id]
        txn.ending = False
        if txn.forgotten:
            del self.txns[ends.transactional_id]

    def _raise_epoch(self, txn: Txn) -> None:
        txn.epoch += 1
        if txn.epoch >= EPOCH_MAX:
            txn.producer_id, txn.epoch = self._new_producer_id(), 0

    def _txn(self, key: str, producer_id: int) -> Txn:
        txn = self.txns.get(key)
        if txn is None or txn.producer_id != producer_id:
            raise InvalidProducerIdMapping(f"{key!r} does not have producer id {producer_id}")
        return txn

    def _asked(self, what: str) -> None:
        self.check()
        self.expire()
        self.asked.append(what)
