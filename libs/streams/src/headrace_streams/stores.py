"""Reads the state of a running app from outside: its workers are asked, each for the tasks that it has."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar

import grpc
import pyarrow as pa

from headrace import AdminClient
from headrace_common.core.errors import (
    HeadraceError,
    Kind,
    LeaderNotAvailable,
    NotFound,
    Rejected,
)
from headrace_common.core.murmur2 import partitions_for
from headrace_common.rpc.channels import SyncChannels
from headrace_common.rpc.status import error_from_rpc
from headrace_proto.v1 import streams_pb2 as pb
from headrace_proto.v1.streams_pb2_grpc import StreamsQueryStub
from headrace_streams.core.formats.keys import encode_keys

T = TypeVar("T")
_PAUSE_S: Final = 0.1
_CALL_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class _Where:
    """Who has what, as the group said last."""

    owners: dict[str, str]
    followers: dict[str, str]


class Stores:
    """
    The stores of an app that runs: ``Stores("billing")["totals"].get("ann")``.

    What is told is committed. Workers answer if they run with ``query_listen``. One thread at a time.
    """

    def __init__(self, app: str, bootstrap_servers: str | None = None, *, timeout_ms: int = 30_000) -> None:
        """
        Args:
            timeout_ms: how long tasks that move, and workers that do not answer, are waited for.
        """
        self.app = app
        self._admin = AdminClient(bootstrap_servers)
        self._channels = SyncChannels[str]()
        self._timeout_s = timeout_ms / 1e3
        self._where: _Where | None = None
        self._known: dict[str, pb.StreamsStore] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._channels.close()
        self._admin.close()

    def names(self) -> list[str]:
        """
        Of the app's stores.

        Raises:
            GroupNotFound: no worker of the app has ever run.
            Rejected: the workers that run do not listen for questions.
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
        for endpoint in dict.fromkeys(self._found().owners.values()):
            answer: pb.DescribeStoresResponse = self._call(
                endpoint, lambda stub: stub.DescribeStores(pb.DescribeStoresRequest(), timeout=_CALL_S)
            )
            self._known = {one.name: one for one in answer.stores}
            return
        raise LeaderNotAvailable(
            f"no worker of {self.app} answers; `headrace group describe {self.app}` shows those there are"
        )

    def _found(self) -> _Where:
        if self._where is None:
            group = self._admin.describe_group(self.app)
            at = {member.member_id: member.endpoint for member in group.members if member.endpoint}
            if group.members and not at:
                raise Rejected(
                    f"the workers of {self.app} answer no questions; start them with --query-listen HOST:PORT"
                )
            owners = {item.id: at[item.owner] for item in group.items if item.owner in at}
            followers = {
                item.id: at[one.member_id] for item in group.items for one in item.followers if one.member_id in at
            }
            self._where = _Where(owners, followers)
        return self._where

    def _rows(self, store: pb.StreamsStore, partition: int, key: bytes | None, stale: bool) -> pa.Table | None:
        return self._persist(lambda: self._ask(store, partition, key, stale))

    def _ask(self, store: pb.StreamsStore, partition: int, key: bytes | None, stale: bool) -> pa.Table | None:
        task = f"{store.sub_topology}/{partition}"
        where = self._found()
        endpoint = where.owners.get(task) or (where.followers.get(task) if stale else None)
        if endpoint is None:
            raise LeaderNotAvailable(
                f"no worker that answers has the task {task}; `headrace group describe {self.app}` shows who has what"
            )
        request = pb.QueryStoreRequest(store=store.name, partition=partition, key=key, stale=stale)
        parts = self._call(endpoint, lambda stub: [p.arrow for p in stub.QueryStore(request, timeout=_CALL_S)])
        return pa.ipc.open_stream(pa.py_buffer(b"".join(parts))).read_all() if parts else None

    def _call(self, endpoint: str, call: Callable[[Any], T]) -> T:
        try:
            return call(StreamsQueryStub(self._channels.to(endpoint)))
        except grpc.RpcError as error:
            raise error_from_rpc(error) from error

    def _persist(self, call: Callable[[], T]) -> T:
        until = time.monotonic() + self._timeout_s
        while True:
            try:
                return call()
            except HeadraceError as error:
                if error.kind not in (Kind.MOVED, Kind.BUSY, Kind.UNKNOWN) or time.monotonic() >= until:
                    raise
                self._where = None
            time.sleep(_PAUSE_S)


class StoreView:
    """One store of a running app."""

    def __init__(self, stores: Stores, info: pb.StreamsStore) -> None:
        self._stores = stores
        self._info = info

    def get(self, *key: object, stale: bool = False) -> dict[str, Any] | None:
        """
        The row of a key; None: there is none.

        Args:
            key: its columns, in their order; bytes are the record's key as it is.
            stale: a worker that only follows the state may answer, if it is the one at hand.

        Raises:
            Rejected: the key has several rows, as of windows: use ``rows``.
            LeaderNotAvailable: nobody answers for it within ``timeout_ms``.
        """
        rows = self.rows(*key, stale=stale)
        if len(rows) > 1:
            raise Rejected(f"{key} has {len(rows)} rows in {self._info.name!r}, one for each window; use rows()")
        return rows[0] if rows else None

    def rows(self, *key: object, stale: bool = False) -> list[dict[str, Any]]:
        """All rows of a key; see ``get``."""
        encoded = _key(key)
        (partition,) = partitions_for(pa.array([encoded], pa.binary()), self._info.partitions).tolist()
        found = self._stores._rows(self._info, partition, encoded, stale)
        return [] if found is None else found.to_pylist()

    def table(self, *, stale: bool = False) -> pa.Table:
        """
        All rows, of all tasks: an Arrow table, which Polars and DuckDB take as it is. Each task is as of one commit,
        not all as of the same.
        """
        found = [self._stores._rows(self._info, n, None, stale) for n in range(self._info.partitions)]
        tables = [table for table in found if table is not None]
        return pa.concat_tables(tables) if tables else pa.table({})


def _key(columns: Sequence[object]) -> bytes:
    if not columns:
        raise Rejected("say which key: get('ann'), or get('ann', 12) for a key of two columns")
    if len(columns) == 1 and isinstance(columns[0], bytes):
        return columns[0]
    encoded = encode_keys([pa.array([column]) for column in columns])
    key = encoded[0].as_py()
    if key is None:
        raise Rejected("there is no state of the null key")
    return bytes(key)
