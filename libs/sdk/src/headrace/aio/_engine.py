"""
The shell around the producing core: one task that takes closed chunks, answers and timers to it, and does what it says.

Both producers own an engine; it runs on one event loop. Everything reaches it as a note and a wake-up, so that all
that came in during one turn of the loop is handled together. Nothing here is done per record.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Any, Final

from headrace._callbacks import call_back
from headrace._core.batch import Batch, Identity
from headrace._core.chunk import Chunk, Home
from headrace._core.effects import AskIdentity, Divided, DoubtLeader, Effect, RefreshMetadata, SendBatches, Settle
from headrace._core.fencing import check_fence
from headrace._core.lane import NEVER, LaneRules
from headrace._core.producing import BatchSizes, ProducerCore
from headrace._core.remedies import is_refusal
from headrace._descriptors import needing_descriptors
from headrace._intake import Intake
from headrace._record_rules import check_partition
from headrace._runtime import Tasks, in_thread
from headrace._transport.port import Transport
from headrace.aio._client import ClusterClient, TopicView
from headrace.aio._requests import Requests
from headrace.aio._transactions import Transactions
from headrace.delivery import DeliveredBatch, call_when_all_told, call_when_told, finish, moved, tell
from headrace.errors import (
    ClientClosed,
    ErrorCode,
    HeadraceError,
    Internal,
    InvalidTxnState,
    Overloaded,
    Then,
    WaitTimedOut,
)
from headrace.records import RecordMetadata, TopicPartition
from headrace.serializers import takes_many
from headrace.settings import ProducerSettings
from headrace_common.core.batch import Codec, RecordColumns, build_batch
from headrace_common.core.features import REPEATED_PARTITIONS
from headrace_common.runtime.clock import Clock, SystemClock, call_later_ms, limit_ms, limit_s
from headrace_common.runtime.entropy import backoff_ms, jitter
from headrace_proto.v1 import broker_pb2 as pb

EXPIRY_CHECKS: Final = 20
"""How often within a delivery timeout old batches are looked for; at least once a second."""

EXPIRY_MS_MAX: Final = 1_000

_log = logging.getLogger("headrace")


class ProducerEngine:
    """
    The background half of a producer. Methods run on its loop, unless they say otherwise.

    Args:
        transport: owned from here on: ``close`` closes it.
    """

    def __init__(self, transport: Transport, settings: ProducerSettings, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock: Clock = clock or SystemClock()
        self._transport = transport
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake_up: asyncio.Event = asyncio.Event()
        self._noted: deque[tuple[Callable[..., list[Effect]], tuple[Any, ...]]] = deque()
        self._writes = False
        """Whether what writes batches is loaded."""
        self._cold: HeadraceError | None = None
        """Why something could not be loaded just now."""
        self._in_hand: Chunk | None = None
        """It has left the intake and is not spread over batches yet."""
        bulk = settings.partitioner if settings.partitioner is not None and takes_many(settings.partitioner) else None
        self._core = ProducerCore(
            _rules(settings),
            BatchSizes(settings.batch_size, settings.batch_size_max, settings.buffer_memory),
            request_bytes=settings.max_request_size,
            seed=int(jitter(1 << 20)),
            bulk=bulk,
        )
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = NEVER
        self._expiry: asyncio.TimerHandle | None = None
        self._tasks = Tasks(self._crashed)
        self.intake = Intake(settings, self._clock, on_open=self._opened, on_close=self._call)
        self.cluster = ClusterClient(transport, settings, clock=self._clock, on_change=self._metadata_changed)
        self._requests = Requests(transport, self.cluster, self._core, settings, self._clock, self._note, self._tasks)
        self._transactions: Transactions | None = None
        if settings.transactional_id is not None:
            self._transactions = Transactions(transport, settings, self._clock, self)
            self.intake.gate = self._transactions.core.gate()

    @property
    def transactions(self) -> Transactions:
        """Raises: ``InvalidTxnState``: the producer has no transactional id."""
        if self._transactions is None:
            raise InvalidTxnState("this producer has no transactions; give it a transactional_id")
        return self._transactions

    @property
    def feature_level(self) -> int:
        """The cluster's, as far as is known."""
        return self.cluster.feature_level

    def start(self) -> None:
        """Run on the current loop."""
        self._loop = asyncio.get_running_loop()
        self.intake.home = Home(threading.get_ident(), os.getpid())
        self._running = self._tasks.start(self._run(), "producer")

    # --- notes from other threads, with the intake's token held -----------------------------------------------

    def _opened(self, chunk: Chunk) -> None:
        assert self._loop is not None, "chunks are opened after the start"
        self._call_soon(self._linger, chunk)

    def _call(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._call_soon(self._wake_up.set)

    def _call_soon(self, call: Callable[..., object], *args: Any) -> None:
        """Have the loop call it; another thread has to wake the loop for that, which costs it two system calls."""
        assert self._loop is not None, "started"
        if threading.get_ident() == self.intake.home.thread:
            self._loop.call_soon(call, *args)
        else:
            self._loop.call_soon_threadsafe(call, *args)

    def _linger(self, chunk: Chunk) -> None:
        if self._settings.linger_ms > 0:
            assert self._loop is not None, "started"
            call_later_ms(self._settings.linger_ms, self._lingered, chunk)
        else:
            self._lingered(chunk)

    def _lingered(self, chunk: Chunk) -> None:
        self.intake.within(partial(self.intake.retire_if_open, chunk))
        self._wake_up.set()

    # --- the one task -----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        self._cold = await self._load()
        while True:
            await self._wake_up.wait()
            self._wake_up.clear()
            self.intake.within(self.intake.look)
            self._cold = await self._load()
            self._pump()

    async def _load(self) -> HeadraceError | None:
        """Load what writing needs and is not loaded; else why it could not be, which whoever sends now is told."""
        try:
            with needing_descriptors():
                if not self._writes:
                    await in_thread(partial(_load_writer, Codec.parse(self._settings.compression_type)))
                    self._writes = True
        except Overloaded as error:
            return error
        return None

    def _pump(self) -> None:
        """Let the core see all that is new, and do all that it asks for."""
        core = self._core
        effects: list[Effect] = []
        while self._noted:
            handle, args = self._noted.popleft()
            effects += handle(*args)
        while (chunk := self.intake.within(self.intake.pop_closed)) is not None:
            self._in_hand = chunk
            self._take(chunk)
            self._in_hand = None
        effects += core.drain(self._clock.monotonic_ms(), self._requests.leader_of)
        self._carry_out(effects)
        self._set_timers()

    def _take(self, chunk: Chunk) -> None:
        if not chunk.rows:  # the call that opened it was interrupted before it could add anything
            self._drop(chunk, ClientClosed("nothing was added"))
            return
        view = self.cluster.find_view(chunk.topic) or self.intake.topics[chunk.topic]
        try:
            if self._cold is not None:
                raise self._cold
            self._core.take(chunk, view.partitions, view.max_message_bytes)
        except HeadraceError as error:
            self._drop(chunk, error)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # the application's own partitioner
            self._drop(chunk, Internal(f"the partitioner raised {error!r}"))
        if chunk.error is not None and self._transactions is not None:
            self._failed(self._transactions, chunk.error)
        if chunk.error is None:
            moved(chunk)
        else:  # in its turn: behind what was sent to the topic before
            call_when_all_told(self._core.find_unreported(chunk.topic), partial(tell, chunk))

    def _drop(self, chunk: Chunk, error: HeadraceError) -> None:
        chunk.error = error
        chunk.values = chunk.keys = ()
        self.intake.within(partial(self.intake.give_back, chunk.used_bytes))

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        given_back = 0
        settled: list[Batch] = []
        transactions = self._transactions
        for effect in effects:
            match effect:
                case Settle(batch, size_bytes):
                    given_back += size_bytes
                    settled.append(batch)
                case SendBatches(broker, batches):
                    if transactions is not None and batches[0].fence is None:
                        transactions.core.wrote = True
                    self._requests.send(broker, batches)
                case DoubtLeader(topic, partition, epoch, reason):
                    self.cluster.doubt(TopicPartition(topic, partition), epoch, reason)
                case RefreshMetadata(reason):
                    self.cluster.refresh(reason)
                case Divided(batch):
                    moved(batch)
                case AskIdentity(previous):
                    self._tasks.start(self._identify(previous), "producer id")
        if given_back:
            self.intake.within(partial(self.intake.give_back, given_back))
        if transactions is not None:
            self._look_for_failures(transactions, settled)
        for batch in settled:
            for each in self._core.reports(batch):
                tell(each)
                if self._settings.on_delivery is not None and each.fence is None:
                    self._report(self._settings.on_delivery, each)

    # --- transactions -----------------------------------------------------------------------------------------

    def _look_for_failures(self, transactions: Transactions, settled: Sequence[Batch]) -> None:
        """A batch that was given up is the end of its transaction: nothing more of it is sent."""
        for batch in settled:
            if batch.outcome is not None and batch.outcome.error is not None and batch.fence is None:
                self._failed(transactions, batch.outcome.error)

    def _failed(self, transactions: Transactions, error: Exception) -> None:
        assert isinstance(error, HeadraceError), "outcomes are ours"
        rest = transactions.core.delivery_failed(error)
        if error.then is Then.RETRY:
            error.then = Then.ABORT
        if rest is not None:
            self.shut_gate(rest)
            self.drop_all(rest)

    def open_gate(self, identity: Identity) -> None:
        """Take records from now on, for a transaction under ``identity``. On any thread."""
        self._core.identified(identity)
        self.intake.gate = None

    def shut_gate(self, why: HeadraceError) -> None:
        """Take no more; what was taken is on its way at once."""
        self.intake.within(partial(self.intake.shut, why))

    def drop_all(self, error: HeadraceError) -> None:
        """What has no outcome, but for fences, fails with ``error`` now; answers that come later count for nothing."""
        self._give_all_up(error, fences=False)
        self._wake_up.set()

    def _give_all_up(self, error: HeadraceError, *, fences: bool) -> None:
        self._carry_out(self._core.abort(error, fences=fences))
        while (chunk := self.intake.within(self.intake.pop_closed)) is not None:
            self._drop(chunk, error)
            tell(chunk)

    # --- fencing tokens ---------------------------------------------------------------------------------------

    async def fence(self, topic: str, partition: int, token: int) -> RecordMetadata:
        """
        Set a fencing token, behind all that was accepted before this call.

        Raises:
            HeadraceError: see ``Producer.fence``.
        """
        check_fence(topic, token, self._settings.acks_number)
        whole = isinstance(partition, int) and not isinstance(partition, bool)
        view = await self.topic(topic, self._settings.max_block_ms, partition + 1 if whole else 0)
        check_partition(view, partition)
        self.intake.within(self.intake.close_all)
        await self._next_pump()
        self.intake.check_alive()
        if self._cold is not None:
            raise self._cold
        now_ms = self._clock.monotonic_ms()
        batch = Batch.of_fence(topic, partition, token, created_ms=now_ms, timestamp_ms=self._clock.now_ms())
        self._core.fence(batch, view.max_message_bytes)
        self._wake_up.set()
        assert self._loop is not None, "started"
        done = self._loop.create_future()
        call_when_told(batch, partial(finish, done))
        await done
        outcome = batch.outcome
        assert outcome is not None, "it was told"
        if outcome.error is not None:
            raise copy(outcome.error)
        return RecordMetadata(topic, partition, outcome.base_offset, batch.timestamp(0))

    # --- requests ---------------------------------------------------------------------------------------------

    def _report(self, on_delivery: Callable[[DeliveredBatch], object], batch: Batch) -> None:
        outcome = batch.outcome
        assert outcome is not None, "settled"
        stamp = -1 if batch.timestamps is None else batch.timestamp(0)
        report = DeliveredBatch(batch.topic, batch.partition, outcome.base_offset, batch.count, stamp, outcome.error)
        call_back(on_delivery, report, batch.topic, batch.partition)

    def _note(self, handle: Callable[..., list[Effect]], *args: Any) -> None:
        self._noted.append((handle, args))
        self._wake_up.set()

    async def _identify(self, previous: Identity | None) -> None:
        request = pb.InitProducerIdRequest()
        if previous is not None:
            request.producer_id, request.producer_epoch = previous
        attempt = 0
        while not self._core.idle:
            try:
                answer = await self._transport.init_producer_id(request)
            except HeadraceError as error:
                if is_refusal(error):
                    self._note(self._core.refused, error)
                    return
                attempt += 1
                if error.code is ErrorCode.INVALID_PRODUCER_EPOCH:
                    request = pb.InitProducerIdRequest()
                _log.info("no producer id yet: %s", error)
                self._note(self._core.asks_again, error)
                settings = self._settings
                await self._clock.sleep_ms(
                    backoff_ms(attempt, first_ms=settings.retry_backoff_ms, ms_max=settings.retry_backoff_max_ms)
                )
                continue
            self._core.identified(Identity(answer.producer_id, answer.producer_epoch))
            self._wake_up.set()
            return
        self._core.unidentified()

    # --- metadata ---------------------------------------------------------------------------------------------

    async def topic(self, name: str, timeout_ms: float, at_least: int = 0) -> TopicView:
        """
        The topic, with ``at_least`` so many partitions if a fresh look shows them.

        Raises:
            UnknownTopicOrPartition, NetworkFailed, WaitTimedOut: see ``ClusterClient.topic``.
        """
        view = await self.cluster.topic(name, timeout_ms)
        if view.partitions < at_least:
            try:
                async with limit_ms(timeout_ms):
                    await self.cluster.await_refresh(f"{name} may have grown")
            except TimeoutError:
                raise WaitTimedOut(f"no metadata of topic {name!r} within {timeout_ms:g} ms") from None
            view = self.cluster.find_view(name) or view
        self.intake.topics[name] = view
        return view

    def _metadata_changed(self) -> None:
        self.intake.within(partial(self.intake.review, self.cluster.find_view))
        self._core.repeats_partitions = self.cluster.feature_level >= REPEATED_PARTITIONS.level
        self._core.leaders_changed()
        self._note(self._requests.look_at_silence)
        if self.cluster.refusal is not None:
            self._note(self._core.refused, self.cluster.refusal)

    # --- timers -----------------------------------------------------------------------------------------------

    def _set_timers(self) -> None:
        assert self._loop is not None, "started"
        retry_ms = self._core.retry_ms()
        if retry_ms != self._timer_ms:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_ms = retry_ms
            if retry_ms != NEVER:
                wait = max(0.0, retry_ms - self._clock.monotonic_ms()) + 0.5
                self._timer = call_later_ms(wait, self._retry)
        if self._expiry is None and not self._core.idle:
            period = min(EXPIRY_MS_MAX, self._settings.delivery_timeout_ms / EXPIRY_CHECKS)
            self._expiry = call_later_ms(period, self._expire)

    def _retry(self) -> None:
        self._timer, self._timer_ms = None, NEVER
        self._wake_up.set()

    def _expire(self) -> None:
        self._expiry = None
        self._note(self._requests.look_at_silence)
        self._note(lambda: self._core.expire(self._clock.monotonic_ms()))

    async def _next_pump(self) -> None:
        assert self._loop is not None, "started"
        pumped: asyncio.Future[None] = self._loop.create_future()
        self._note(_finish_pump, pumped)
        await asyncio.wait({pumped, self._running}, return_when=asyncio.FIRST_COMPLETED)

    # --- flush and close --------------------------------------------------------------------------------------

    async def flush(self, timeout: float | None) -> None:
        """
        Send all that was accepted before this call, and wait until each record has its outcome.

        Raises:
            WaitTimedOut: after ``timeout`` seconds; the work goes on.
        """
        self.intake.within(self.intake.close_all)
        await self._next_pump()
        batches = self._core.list_unsettled()
        if not batches:
            return
        assert self._loop is not None, "started"
        done = self._loop.create_future()
        call_when_all_told(batches, partial(finish, done))
        try:
            async with limit_s(timeout):
                await done
        except TimeoutError:
            raise WaitTimedOut(f"not all was acknowledged within {timeout:g} s; it goes on") from None

    async def close(self, timeout: float | None, error: HeadraceError) -> None:
        """
        Accept nothing more, flush within ``timeout`` seconds, fail the rest with ``error``, and let all go. An open
        transaction is aborted.
        """
        if self._transactions is not None:
            await self._transactions.leave(timeout)
        self.intake.within(partial(self.intake.fail, error))
        try:
            await self.flush(timeout)
        except WaitTimedOut:
            told = f"not all was acknowledged within {timeout:g} s; the rest failed with the close, and may be written"
            raise WaitTimedOut(told) from None
        finally:
            self._end(error)
            await self._tasks.close()
            await self.cluster.close()
            await self._transport.close()

    def abandon(self) -> None:
        """The producer was forgotten: deliver what it accepted, then close; nobody waits for it."""
        error = ClientClosed("the producer was collected without having been closed")
        self._last = asyncio.ensure_future(self._finish(error))

    async def _finish(self, error: HeadraceError) -> None:
        with contextlib.suppress(WaitTimedOut):
            await self.close(self._settings.delivery_timeout_ms / 1_000, error)

    def _end(self, error: HeadraceError) -> None:
        for timer in (self._timer, self._expiry):
            if timer is not None:
                timer.cancel()
        self._give_all_up(error, fences=True)

    def _crashed(self, error: BaseException) -> None:
        broken = Internal(f"the producer met a bug and has stopped: {error!r}")
        self.intake.within(partial(self.intake.fail, broken))
        chunk = self._in_hand
        if chunk is not None and chunk.route is None and chunk.error is None:  # nobody else knows of its records
            self._drop(chunk, broken)
            tell(chunk)
        self._end(broken)


def _load_writer(codec: Codec) -> None:
    """
    Load what writing a batch needs, before the first record needs it. At the end of the process it would come late:
    modules that are loaded while Ctrl+C ends it change its exit code.
    """
    build_batch(RecordColumns([b""], None, 0, None), codec=codec, producer_id=-1, producer_epoch=-1, base_sequence=-1)


def _finish_pump(pumped: asyncio.Future[None]) -> list[Effect]:
    finish(pumped)
    return []


def _rules(settings: ProducerSettings) -> LaneRules:
    return LaneRules(
        idempotent=settings.enable_idempotence,
        in_flight_max=settings.max_in_flight_requests_per_connection,
        retries=settings.retries,
        delivery_timeout_ms=settings.delivery_timeout_ms,
        backoff_ms=settings.retry_backoff_ms,
        backoff_max_ms=settings.retry_backoff_max_ms,
        codec=Codec.parse(settings.compression_type),
        transactional=settings.transactional_id is not None,
    )
