"""
The metadata store on etcd 3.5 or later.

Speaks etcd's gRPC API through the generated stubs of ``aetcd`` (``aetcd.rpc``) and not through its client, which
cannot do what the port promises: its watcher drops the revision of answers (so a revision cannot be kept whole),
ignores watches that the server cancelled, hangs when a watch is created below the compaction revision, ends silently
with its stream, and takes a single endpoint; its calls do not tell "never sent" from "outcome unknown".

One channel per endpoint; the next one is taken when the present one does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NoReturn

import grpc
import grpc.aio
from aetcd import rpc

from headrace_common.core.ids import Endpoint
from headrace_common.rpc.calls import name_unknown
from headrace_common.rpc.credentials import Pem
from headrace_common.runtime.clock import limit_s
from headrace_controller.adapters.etcd_channels import open_channel
from headrace_controller.core.store import (
    OPERATIONS_MAX,
    TRANSACTION_BYTES_MAX,
    Change,
    Changes,
    Committed,
    Compare,
    Conflicted,
    CreatedAt,
    Delete,
    DeleteUnder,
    KeyValue,
    Listing,
    Operation,
    Outcome,
    Put,
    Transaction,
    Unchanged,
)
from headrace_controller.ports import (
    HistoryCompacted,
    HistoryRewound,
    LeaseLost,
    StoreOutcomeUnknown,
    StoreUnavailable,
    TransactionTooLarge,
)

_PAGE: Final = 5_000
_NEEDS_LEADER: Final = (("hasleader", "true"),)
_NEVER_APPLIED: Final = (
    "failed to connect",
    "errors resolving",
    "dns resolution failed",
    "lookup failed",
    "no leader",
    "too many requests",
    "database space exceeded",
    "too many op",
)


class EtcdStore:
    """One cluster's prefix in etcd. Made by ``open``."""

    def __init__(self, targets: Sequence[str], prefix: str, timeout_ms: int, tls: Pem | None) -> None:
        self._targets = targets
        self._tls = tls
        self._channels = [open_channel(target, tls) for target in targets]
        self._present = 0
        self._prefix = prefix.encode()
        self._timeout_s = timeout_ms / 1_000

    @staticmethod
    @asynccontextmanager
    async def open(
        endpoints: Sequence[Endpoint],
        prefix: str,
        *,
        request_timeout_ms: int = 3_000,
        tls: Pem | None = None,
    ) -> AsyncIterator[EtcdStore]:
        """
        A store under ``prefix`` (it ends in ``/``); connects with the first call and needs no etcd to be there.

        Args:
            endpoints: etcd's client addresses, at least one.
            request_timeout_ms: the longest that one request may take.
            tls: how etcd is verified and what it is shown; None: plain text.
        """
        assert endpoints, "there is at least one endpoint"
        assert prefix.endswith("/"), "keys of two clusters must not mix"
        store = EtcdStore([str(endpoint) for endpoint in endpoints], prefix, request_timeout_ms, tls)
        try:
            yield store
        finally:
            for channel in store._channels:
                await channel.close()

    def renew(self, tls: Pem) -> None:
        """Connect with ``tls`` from now on. Connections of before are let go: they close with their last call."""
        self._tls = tls
        self._channels = [open_channel(target, tls) for target in self._targets]

    async def list_all(self) -> Listing:
        """See the port. Read in pages, all at the first page's revision."""
        items: list[KeyValue] = []
        start, end, revision = self._prefix, _after(self._prefix), 0
        while True:
            request = rpc.RangeRequest(key=start, range_end=end, limit=_PAGE, revision=revision)
            answer = await self._read(rpc.KVStub(self._channel()).Range(request, timeout=self._timeout_s))
            revision = revision or answer.header.revision
            items += [self._key_value(kv) for kv in answer.kvs]
            if not answer.more:
                return Listing(revision, tuple(items))
            start = answer.kvs[-1].key + b"\0"

    async def get(self, key: str) -> KeyValue | None:
        request = rpc.RangeRequest(key=self._key(key))
        answer = await self._read(rpc.KVStub(self._channel()).Range(request, timeout=self._timeout_s))
        return self._key_value(answer.kvs[0]) if answer.kvs else None

    async def commit(self, transaction: Transaction) -> Outcome:
        operations, compares = len(transaction.operations), len(transaction.compares)
        if max(operations, compares) > OPERATIONS_MAX or transaction.size > TRANSACTION_BYTES_MAX:
            raise TransactionTooLarge(
                f"{operations} operations, {compares} comparisons and {transaction.size} bytes are more than etcd "
                f"takes at once ({OPERATIONS_MAX}, {TRANSACTION_BYTES_MAX})"
            )
        request = rpc.TxnRequest(
            compare=[self._compare(c) for c in transaction.compares],
            success=[self._operation(o) for o in transaction.operations],
            failure=[self._look(key) for key in dict.fromkeys(c.key for c in transaction.compares)],
        )
        try:
            answer = await rpc.KVStub(self._channel()).Txn(request, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            self._raise_for_write(error)
        if answer.succeeded:
            return Committed(answer.header.revision)
        found = [self._key_value(kv) for part in answer.responses for kv in part.response_range.kvs]
        return Conflicted(answer.header.revision, {kv.key: kv for kv in found})

    @asynccontextmanager
    async def watch(self, from_revision: int) -> AsyncIterator[AsyncIterator[Changes]]:
        create = rpc.WatchCreateRequest(
            key=self._prefix, range_end=_after(self._prefix), start_revision=from_revision, fragment=True
        )
        call = rpc.WatchStub(self._channel()).Watch(metadata=_NEEDS_LEADER)
        try:
            try:
                async with limit_s(self._timeout_s):
                    await call.write(rpc.WatchRequest(create_request=create))
                async with limit_s(self._timeout_s):
                    first = await call.read()
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError) as error:
                self._next_channel()
                raise StoreUnavailable(f"etcd did not accept a watch ({_say(error)}); it is tried again") from error
            self._check_watch(first)
            if first.header.revision < from_revision - 1:
                raise HistoryRewound(f"etcd is at revision {first.header.revision}, {from_revision - 1} was seen")
            yield self._changes(call, first)
        finally:
            call.cancel()

    async def grant_lease(self, ttl_s: int) -> int:
        request = rpc.LeaseGrantRequest(TTL=ttl_s)
        answer = await self._read(rpc.LeaseStub(self._channel()).LeaseGrant(request, timeout=self._timeout_s))
        lease: int = answer.ID
        return lease

    async def keep_lease(self, lease: int) -> None:
        """See the port. A stream per renewal: one message a second does not need one kept open and watched."""
        call = rpc.LeaseStub(self._channel()).LeaseKeepAlive(timeout=self._timeout_s, metadata=_NEEDS_LEADER)
        try:
            await call.write(rpc.LeaseKeepAliveRequest(ID=lease))
            answer = await call.read()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            self._next_channel()
            raise StoreUnavailable(f"etcd did not renew the lease ({_say(error)})") from error
        finally:
            call.cancel()
        if answer is grpc.aio.EOF:
            self._next_channel()
            raise StoreUnavailable("etcd closed the stream instead of renewing the lease")
        if answer.TTL <= 0:
            raise LeaseLost(f"lease {lease:x} has expired")

    async def revoke_lease(self, lease: int) -> None:
        request = rpc.LeaseRevokeRequest(ID=lease)
        try:
            await rpc.LeaseStub(self._channel()).LeaseRevoke(request, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                self._next_channel()
                raise StoreUnavailable(f"etcd did not revoke the lease ({_say(error)})") from error

    def _channel(self) -> grpc.aio.Channel:
        return self._channels[self._present]

    def _next_channel(self) -> None:
        self._present = (self._present + 1) % len(self._channels)

    def _renew(self) -> None:
        """
        A channel that asks for the name at once; see ``name_unknown``. The one before is let go, not closed, which
        would cancel calls of others that are about to fail in the same way: it closes itself with the last of them.
        """
        self._channels[self._present] = open_channel(self._targets[self._present], self._tls)

    async def _read(self, call: Any) -> Any:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            if name_unknown(error):
                self._renew()
            self._next_channel()
            raise StoreUnavailable(
                f"etcd cannot be reached ({_say(error)}); nothing was changed, try again when it is back"
            ) from error

    def _raise_for_write(self, error: grpc.aio.AioRpcError) -> NoReturn:
        text = _say(error)
        if error.code() is grpc.StatusCode.NOT_FOUND and "lease not found" in text:
            raise LeaseLost(text) from error
        if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
            raise TransactionTooLarge(f"etcd refused a transaction: {text}") from error
        self._next_channel()
        if any(sign in text for sign in _NEVER_APPLIED):
            raise StoreUnavailable(f"etcd took no change ({text}); nothing was changed, try again later") from error
        raise StoreOutcomeUnknown(
            f"etcd did not answer in time ({text}); the change may have happened, look before repeating it"
        ) from error

    async def _changes(self, call: Any, first: Any) -> AsyncIterator[Changes]:
        parts: list[Change] = []
        answer = first
        while True:
            parts += [self._change(event) for event in answer.events]
            if parts and not answer.fragment:
                yield Changes(parts[-1].revision, tuple(parts))
                parts = []
            try:
                answer = await call.read()
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                self._next_channel()
                raise StoreUnavailable(f"the watch on etcd broke ({_say(error)}); it is resumed") from error
            self._check_watch(answer)

    def _check_watch(self, answer: Any) -> None:
        if answer is grpc.aio.EOF:
            self._next_channel()
            raise StoreUnavailable("etcd closed the watch; it is resumed")
        if answer.compact_revision:
            raise HistoryCompacted(f"etcd has no changes before revision {answer.compact_revision} any more")
        if answer.canceled:
            self._next_channel()
            raise StoreUnavailable(f"etcd cancelled the watch ({answer.cancel_reason}); it is resumed")

    def _change(self, event: Any) -> Change:
        current = None if event.type == _DELETED else self._key_value(event.kv)
        return Change(self._name(event.kv.key), current, event.kv.mod_revision)

    def _key(self, key: str) -> bytes:
        return self._prefix + key.encode()

    def _name(self, key: bytes) -> str:
        return key[len(self._prefix) :].decode()

    def _key_value(self, kv: Any) -> KeyValue:
        return KeyValue(self._name(kv.key), kv.value, kv.create_revision, kv.mod_revision)

    def _compare(self, compare: Compare) -> Any:
        match compare:
            case Unchanged(key, revision):
                target = {"target": rpc.Compare.MOD, "mod_revision": revision}
            case CreatedAt(key, revision):
                target = {"target": rpc.Compare.CREATE, "create_revision": revision}
        return rpc.Compare(key=self._key(key), result=rpc.Compare.EQUAL, **target)

    def _operation(self, operation: Operation) -> Any:
        match operation:
            case Put(key, value, lease):
                return rpc.RequestOp(request_put=rpc.PutRequest(key=self._key(key), value=value, lease=lease))
            case Delete(key):
                return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=self._key(key)))
            case DeleteUnder(prefix):
                assert prefix, "never everything"
                start = self._key(prefix)
                under = rpc.DeleteRangeRequest(key=start, range_end=_after(start))
                return rpc.RequestOp(request_delete_range=under)

    def _look(self, key: str) -> Any:
        return rpc.RequestOp(request_range=rpc.RangeRequest(key=self._key(key)))


_DELETED: Final = rpc.Event.EventType.Value("DELETE")


def _after(prefix: bytes) -> bytes:
    """The first key that does not start with ``prefix``; ours never end in 0xff."""
    assert prefix[-1] < 0xFF, "text ends in no such byte"
    return prefix[:-1] + bytes([prefix[-1] + 1])


def _say(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name.lower()}: {(error.details() or '')[:300]}"
    return type(error).__name__
