"""Reads the state of a running app from outside: its workers are asked, each for the tasks that it has."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import grpc
import pyarrow as pa

from headrace import AdminClient
from headrace.errors import WaitTimedOut
from headrace.finding import bootstrap_addresses
from headrace.records import RecordMetadata
from headrace.securing import trust_in
from headrace.ticket_types import AccessQuestion, TicketAudience
from headrace_common.core.access.tickets import HeldTickets
from headrace_common.core.errors import (
    ErrorCode,
    GroupNotFound,
    HeadraceError,
    InvalidConfig,
    Kind,
    LeaderNotAvailable,
    NotFound,
    OffsetNotAvailable,
    Rejected,
    Unauthenticated,
    UnsupportedVersion,
)
from headrace_common.core.murmur2 import partitions_for
from headrace_common.core.worker_address import STREAMS_HOST, WorkerAddress
from headrace_common.rpc.channels import Security, SyncChannels
from headrace_common.rpc.status import error_from_rpc
from headrace_proto.v1 import streams_pb2 as pb
from headrace_proto.v1.streams_pb2_grpc import StreamsQueryStub
from headrace_streams.core.formats.lookup import key_of

T = TypeVar("T")
_PAUSE_S: Final = 0.1
_CALL_S: Final = 10.0
_ELSEWHERE: Final = (Kind.MOVED, Kind.BUSY, Kind.UNKNOWN)
"""Another worker, or the same one later, may do better."""
_EMPTY_S: Final = 3.0
"""So long a group without members may be between the workers of a restart."""

Place = tuple[str, int, int]
"""Of a record: topic, partition and offset."""


class NoWorkers(LeaderNotAvailable, code=ErrorCode.LEADER_NOT_AVAILABLE):
    """No worker of the app is a member of its group."""


@dataclass(frozen=True, slots=True)
class _Where:
    """Who has what, as the group said last."""

    owners: dict[str, str]
    followers: dict[str, str]


class NotListening(Rejected, code=ErrorCode.INVALID_REQUEST):
    """The workers of the app do not listen for questions."""


class Stores:
    """
    The stores of an app that runs: ``Stores("billing")["totals"].get("ann")``.

    What is told is committed. Workers answer if they run with ``query_listen``; in a closed cluster those who may READ
    the app's group. One thread at a time.
    """

    def __init__(
        self,
        app: str,
        bootstrap_servers: str | Sequence[str] | None = None,
        *,
        timeout_ms: int = 30_000,
        ca_file: str | Path | None = None,
    ) -> None:
        """
        Args:
            ca_file: the CAs of workers that speak TLS; None: those of the cluster's brokers.
            timeout_ms: how long tasks that move, and workers that do not answer, are waited for; for an app of which
                no worker runs 3 s at most.
        """
        self.app = app
        self._admin = AdminClient(bootstrap_servers)
        self._channels = SyncChannels[str]()
        self._servers, self._ca_file = bootstrap_servers, ca_file
        self._trust: Security | None = None
        """In workers that speak TLS, since the first was asked."""
        self._by_host, self._by_kind = SyncChannels[str](), SyncChannels[str]()
        """To them; ``WorkerAddress`` has the difference."""
        self._tickets = HeldTickets()
        self._timeout_s = timeout_ms / 1e3
        self._where: _Where | None = None
        self._known: dict[str, pb.StreamsStore] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        for channels in (self._channels, self._by_host, self._by_kind):
            channels.close()
        self._admin.close()

    def names(self) -> list[str]:
        """
        Of the app's stores.

        Raises:
            NoWorkers: none runs.
            NotListening: the workers that run do not.
            LeaderNotAvailable: no worker answers.
        """
        self._persist(self._describe)
        return list(self._known)

    def __getitem__(self, store: str) -> StoreView:
        """
        One store.

        Raises:
            NotFound: the app has no store of this name.
        """
        if store not in self._known and store not in self.names():
            raise NotFound(
                f"{self.app} has no store {store!r}; there are: {', '.join(self._known) or 'none'}, "
                f"as `headrace streams state {self.app}` shows"
            )
        return StoreView(self, self._known[store])

    def _describe(self) -> None:
        answer: pb.DescribeStoresResponse
        _, answer = self._call(
            self._anybody(),
            "",
            lambda stub, ticket: stub.DescribeStores(pb.DescribeStoresRequest(ticket=ticket), timeout=_CALL_S),
        )
        self._known = {one.name: one for one in answer.stores}

    def _anybody(self) -> list[str]:
        """Workers that have a task, and then those that follow one."""
        where = self._found()
        found = list(dict.fromkeys([*where.owners.values(), *where.followers.values()]))
        if not found:
            raise LeaderNotAvailable(
                f"no worker of {self.app} answers; `headrace group describe {self.app}` shows those there are"
            )
        return found

    def _found(self) -> _Where:
        if self._where is None:
            try:
                group = self._admin.describe_group(self.app)
            except GroupNotFound as error:
                raise self._no_workers() from error
            if not group.members:
                raise self._no_workers()
            at = {member.member_id: member.endpoint for member in group.members if member.endpoint}
            if not at:
                raise NotListening(
                    f"the workers of {self.app} answer no questions; start them with --query-listen HOST:PORT"
                )
            owners = {item.id: at[item.owner] for item in group.items if item.owner in at}
            followers = {
                item.id: at[one.member_id] for item in group.items for one in item.followers if one.member_id in at
            }
            self._where = _Where(owners, followers)
        return self._where

    def _no_workers(self) -> NoWorkers:
        return NoWorkers(
            f"no worker of {self.app} is a member of its group; start one with `headrace streams run`, or see with "
            "`headrace streams list` how the app is called"
        )

    def locate(self, store: str, texts: Sequence[str]) -> tuple[bytes, int]:
        """
        The key that texts stand for, one for each of its columns, and its partition.

        Raises:
            NotFound: the app has no store of this name.
            Rejected: its keys have other columns.
        """
        return self._persist(lambda: self._locate(pb.LocateKeyRequest(store=store, columns=texts)))

    def _locate(self, request: pb.LocateKeyRequest) -> tuple[bytes, int]:
        found: pb.LocateKeyResponse

        def locate(stub: Any, ticket: bytes) -> pb.LocateKeyResponse:
            request.ticket = ticket
            located: pb.LocateKeyResponse = stub.LocateKey(request, timeout=_CALL_S)
            return located

        _, found = self._call(self._anybody(), request.store, locate)
        return found.key, found.partition

    def _rows(self, request: pb.QueryStoreRequest, sub_topology: str) -> pa.Table | None:
        """
        Raises:
            WaitTimedOut: the record that is to be in it is not.
        """
        task = f"{sub_topology}/{request.partition}"
        try:
            return self._persist(lambda: self._ask(request, task))
        except OffsetNotAvailable as error:
            raise WaitTimedOut(f"{error}; {self._timeout_s:g} s were waited for it (timeout_ms)") from error

    def _ask(self, request: pb.QueryStoreRequest, task: str) -> pa.Table | None:
        where = self._found()
        at = [where.owners.get(task), where.followers.get(task) if request.stale else None]
        endpoints = [endpoint for endpoint in at if endpoint is not None]
        if not endpoints:
            raise LeaderNotAvailable(
                f"no worker that answers has the task {task}; `headrace group describe {self.app}` shows who has what"
            )

        def query(stub: Any, ticket: bytes) -> list[pb.QueryStoreResponse]:
            request.ticket = ticket
            return list(stub.QueryStore(request, timeout=_CALL_S))

        endpoint, parts = self._call(endpoints, request.store, query)
        if request.HasField("at_least") and not (parts and parts[0].contains):
            raise UnsupportedVersion(f"the worker at {endpoint} is of a version that cannot wait for records")
        ranged = request.HasField("first_key") or request.HasField("last_key")
        if ranged and not (parts and parts[0].ranged):
            raise UnsupportedVersion(f"the worker at {endpoint} is of a version that does not know ranges of keys")
        arrow = b"".join(part.arrow for part in parts)
        return pa.ipc.open_stream(pa.py_buffer(arrow)).read_all() if arrow else None

    def _call(self, endpoints: Sequence[str], store: str, call: Callable[[Any, bytes], T]) -> tuple[str, T]:
        """
        The first that answers, and what it says. The group takes a worker that has died for alive for some seconds.

        Raises:
            HeadraceError: what the last one said.
        """
        *others, last = endpoints
        for endpoint in others:
            try:
                return endpoint, self._call_one(endpoint, store, call)
            except HeadraceError as error:
                if error.kind not in _ELSEWHERE:
                    raise
        return last, self._call_one(last, store, call)

    def _call_one(self, endpoint: str, store: str, call: Callable[[Any, bytes], T]) -> T:
        """
        A worker that wants to know who asks is shown a ticket, and never a credential: whoever may join the group may
        say that it is asked at some address.
        """
        key, now_ms = (endpoint, store), time.monotonic() * 1e3
        ticket = self._tickets.find(key, now_ms)
        if not ticket and self._tickets.has(key):
            ticket = self._new_ticket(endpoint, store)
        try:
            return self._call_with(endpoint, ticket, call)
        except Unauthenticated:
            return self._call_with(endpoint, self._new_ticket(endpoint, store), call)

    def _call_with(self, endpoint: str, ticket: bytes, call: Callable[[Any, bytes], T]) -> T:
        try:
            return call(StreamsQueryStub(self._channel(endpoint)), ticket)
        except grpc.RpcError as error:
            raise error_from_rpc(error) from error

    def _channel(self, endpoint: str) -> grpc.Channel:
        """
        Raises:
            InvalidConfig: the worker speaks TLS, and no CA is known.
            LeaderNotAvailable: it says that it is asked at what is no address.
        """
        try:
            at = WorkerAddress.parse(endpoint)
        except ValueError as error:
            raise LeaderNotAvailable(f"a worker of {self.app} has no address that can be asked: {error}") from error
        if not at.tls:
            return self._channels.to(endpoint)
        if self._trust is None:
            self._read_trust(endpoint)
        return (self._by_kind if at.by_kind else self._by_host).to(str(at.endpoint))

    def _read_trust(self, endpoint: str) -> None:
        """
        From the file, which gets other CAs while programs run.

        Raises:
            InvalidConfig: no CA is known.
        """
        ca = self._ca_file or bootstrap_addresses(self._servers).ca
        if ca is None:
            raise InvalidConfig(
                f"the worker at {endpoint} speaks TLS, and the cluster does not: give the file of its CAs, as "
                "Stores(APP, ca_file=FILE)"
            )
        trust = trust_in(Path(ca))
        if trust != self._trust:
            self._trust = trust
            self._by_host.renew(trust)
            self._by_kind.renew(replace(trust, server_name=lambda _: STREAMS_HOST))

    def _new_ticket(self, endpoint: str, store: str) -> bytes:
        asked_ms = time.monotonic() * 1e3
        audience = TicketAudience(self.app, endpoint, store)
        made = self._admin.issue_ticket(audience, [AccessQuestion("READ", "GROUP", self.app)])
        self._tickets.keep((endpoint, store), made.text, made.life_ms, asked_ms)
        return made.text

    def _persist(self, call: Callable[[], T]) -> T:
        began = time.monotonic()
        empty_since: float | None = None
        while True:
            try:
                return call()
            except HeadraceError as error:
                now = time.monotonic()
                empty_since = (empty_since or now) if isinstance(error, NoWorkers) else None
                late = now - began >= self._timeout_s or (empty_since is not None and now - empty_since >= _EMPTY_S)
                if error.kind not in _ELSEWHERE or late:
                    raise
                self._where = None
                if self._trust is not None:
                    with suppress(InvalidConfig):  # half written: what was sound stays in use
                        self._read_trust(self.app)
            time.sleep(_PAUSE_S)


class StoreView:
    """One store of a running app."""

    def __init__(self, stores: Stores, info: pb.StreamsStore) -> None:
        self._stores = stores
        self._info = info

    def get(
        self, *key: object, stale: bool = False, at_least: RecordMetadata | Place | None = None
    ) -> dict[str, Any] | None:
        """
        The row of a key; None: there is none.

        Args:
            key: its columns, in their order; bytes are the record's key as it is.
            stale: a worker that only follows the state may answer, if it is the one at hand.
            at_least: a record, as a producer's ``send`` gives it, or its topic, partition and offset: the answer comes
                when the state contains what the app made of it.

        Raises:
            Rejected: the key has several rows, as of windows: use ``rows``; or the store has other keys; or its tasks
                do not read the record's topic themselves.
            LeaderNotAvailable: nobody answers for it within ``timeout_ms``.
            WaitTimedOut: the record is not in it within ``timeout_ms``.
        """
        rows = self.rows(*key, stale=stale, at_least=at_least)
        if len(rows) > 1:
            raise Rejected(f"{key} has {len(rows)} rows in {self._info.name!r}, one for each window; use rows()")
        return rows[0] if rows else None

    def rows(
        self, *key: object, stale: bool = False, at_least: RecordMetadata | Place | None = None
    ) -> list[dict[str, Any]]:
        """All rows of a key; see ``get``."""
        return self._rows(key_of(self._info.name, _keys(self._info), key), stale, at_least)

    def rows_of_texts(self, *texts: str) -> list[dict[str, Any]]:
        """All rows of a key whose columns are given as texts."""
        key, _ = self._stores.locate(self._info.name, texts)
        return self._rows(key, stale=False, at_least=None)

    def _rows(self, key: bytes, stale: bool, at_least: RecordMetadata | Place | None) -> list[dict[str, Any]]:
        (partition,) = partitions_for(pa.array([key], pa.binary()), self._info.partitions).tolist()
        if at_least is not None and at_least[1] != partition:
            raise Rejected(
                f"the record at_least is in partition {at_least[1]} of {at_least[0]}, and the key in partition "
                f"{partition}: its state does not depend on that record"
            )
        found = self._stores._rows(self._request(partition, key, stale, at_least), self._info.sub_topology)
        return [] if found is None else found.to_pylist()

    def range(
        self, first: str | bytes | None = None, last: str | bytes | None = None, *, stale: bool = False
    ) -> pa.Table:
        """
        Rows of the keys from ``first`` to ``last``, both among them, of all tasks: an Arrow table as of ``table``.
        Keys are in the order of their bytes, which is that of text; no bound is none.

        Raises:
            Rejected: the store's keys are neither text nor bytes, so their bytes have no order that means something.
        """
        keys = _keys(self._info)
        if keys and not (len(keys) == 1 and _is_text(keys[0].type)):
            listed = ", ".join(f"{field.name} {field.type}" for field in keys)
            raise Rejected(
                f"the keys of {self._info.name!r} are: {listed}; only keys of one text have ranges: take table(), and "
                "filter that"
            )
        if not (isinstance(first, str | bytes | None) and isinstance(last, str | bytes | None)):
            raise Rejected(f"range() takes text or bytes, not {first!r:.100} and {last!r:.100}")
        begin, end = (bound.encode() if isinstance(bound, str) else bound for bound in (first, last))
        return self._of_all([self._request(n, None, stale, None, begin, end) for n in range(self._info.partitions)])

    def table(self, *, stale: bool = False, at_least: RecordMetadata | Place | None = None) -> pa.Table:
        """
        All rows, of all tasks: an Arrow table, which Polars and DuckDB take as it is. Each task is as of one commit,
        not all as of the same; that of the record ``at_least`` contains it, as for ``get``.
        """
        if at_least is not None and not 0 <= at_least[1] < self._info.partitions:
            raise Rejected(f"the record at_least is in partition {at_least[1]}; there are {self._info.partitions}")
        return self._of_all(
            [
                self._request(n, None, stale, at_least if at_least is not None and at_least[1] == n else None)
                for n in range(self._info.partitions)
            ]
        )

    def _of_all(self, requests: list[pb.QueryStoreRequest]) -> pa.Table:
        found = [self._stores._rows(request, self._info.sub_topology) for request in requests]
        tables = [table for table in found if table is not None]
        return pa.concat_tables(tables) if tables else pa.table({})

    def _request(
        self,
        partition: int,
        key: bytes | None,
        stale: bool,
        at_least: RecordMetadata | Place | None,
        first: bytes | None = None,
        last: bytes | None = None,
    ) -> pb.QueryStoreRequest:
        request = pb.QueryStoreRequest(
            store=self._info.name, partition=partition, key=key, stale=stale, first_key=first, last_key=last
        )
        if at_least is not None:
            topic, of, offset = at_least[:3]
            if offset < 0:
                raise Rejected(
                    f"at_least has offset {offset}: a producer with acks=0 is not told where its records are"
                )
            request.at_least.CopyFrom(pb.StreamsPosition(topic=topic, partition=of, offset=offset))
            request.wait_ms = int(self._stores._timeout_s * 1e3)
        return request


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def _keys(info: pb.StreamsStore) -> list[pa.Field[Any]]:
    return list(pa.ipc.read_schema(pa.py_buffer(info.key_schema))) if info.key_schema else []
