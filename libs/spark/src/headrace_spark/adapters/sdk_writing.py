"""
Writes with the SDK: a producer for each attempt of a task, and clients that claim owners and commit their units.

Clients are opened where they are needed and closed again: an object of this module travels nowhere. Called through
``ports.Sink`` by ``sink``.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from headrace import Producer, UnitOwner
from headrace.errors import HeadraceError, Unauthenticated
from headrace.finding import ClusterAddress
from headrace.settings import DecidingSettings
from headrace_common.runtime.entropy import new_incarnation
from headrace_common.runtime.failpoints import failpoint
from headrace_spark.adapters.clients import LOOK_AGAIN_MS, LOOKS_MAX, is_unknown_yet, pause, settings_key, share_client
from headrace_spark.core.units import CommitUnit, Owned

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.delivery import DeliveredBatch

TRANSACTION_TIMEOUT_MS: Final = 600_000
"""Unless ``kafka.transaction.timeout.ms`` says otherwise: tasks of Spark are long, and what a dead one left open is
aborted by the next batch."""
ABORT_S: Final = 5.0
"""How long a task that has failed waits for its abort."""
CLIENT_ID: Final = "headrace-spark"

_DECIDING: Final = frozenset(each.name for each in fields(DecidingSettings))
_log: Final = logging.getLogger("headrace.spark")


class SdkWriter:
    """See ``ports.RecordWriter``."""

    def __init__(self, bootstrap: Sequence[str], settings: Mapping[str, Any]) -> None:
        self._failure: Exception | None = None
        self._token: str | None = None
        self._closed = False
        self._producer = Producer(bootstrap, on_delivery=self._delivered, **settings)
        if "transactional_id" in settings:
            try:
                self._producer.begin_transaction()
            except BaseException:
                self.abort()
                raise

    def _delivered(self, batch: DeliveredBatch) -> None:
        if batch.error is not None and self._failure is None:
            self._failure = batch.error

    def write(self, topic: str, table: pa.Table) -> None:
        self._check()
        self._producer.send_table(topic, table)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def flush(self) -> None:
        """Wait until all is acknowledged."""
        self._producer.flush()
        self._check()

    def prepare(self) -> str:
        """Deliver all, and prepare."""
        self._token = str(self._producer.prepare_transaction())
        failpoint("spark.prepare.after")
        return self._token

    def abort(self) -> None:
        """Give up what was written, and close: that aborts a transaction that is open."""
        with contextlib.suppress(HeadraceError):
            if self._token is not None and not self._closed:
                self._producer.abort_prepared(self._token)
        self._close(ABORT_S)

    def close(self) -> None:
        """Let go of connections."""
        self._close(None)

    def _close(self, timeout_s: float | None) -> None:
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(HeadraceError):  # what was not delivered has been told, or is given up
            self._producer.close(timeout_s)


class SdkSink:
    """
    See ``ports.Sink``.

    Args:
        client: settings of producers, by the SDK's names; other clients get those that they know.
    """

    def __init__(self, bootstrap: ClusterAddress, client: Mapping[str, Any]) -> None:
        self._bootstrap = bootstrap
        self._producing = {"client_id": CLIENT_ID, **client}
        self._deciding = {name: value for name, value in self._producing.items() if name in _DECIDING}
        if "max_block_ms" in client:
            self._deciding["default_api_timeout_ms"] = max(1, client["max_block_ms"])

    def fresh(self) -> bytes:
        """16 random bytes."""
        return new_incarnation()

    def claim(self, owner: str, claim: int) -> Owned:
        failpoint("spark.claim.before")
        key = ("owner", self._bootstrap, owner, settings_key(self._deciding))
        client = share_client(key, lambda: UnitOwner(self._bootstrap, owner, **self._deciding))
        for left in reversed(range(LOOKS_MAX)):
            try:
                epoch, last_sequence = client.init(claim=claim)
                return Owned(owner, epoch, last_sequence)
            except Unauthenticated as error:
                if not left or self._bootstrap.api_key is None or not is_unknown_yet(error):
                    raise
            pause(LOOK_AGAIN_MS)
        raise AssertionError("the last look answers or raises")

    def open(self, transactional_id: str | None, owner_epoch: int | None) -> SdkWriter:
        """A writer, in a transaction if it has an id."""
        settings = dict(self._producing)
        if transactional_id is not None:
            settings.setdefault("transaction_timeout_ms", TRANSACTION_TIMEOUT_MS)
            settings |= {"transactional_id": transactional_id, "owner_epoch": owner_epoch}
        else:
            settings.pop("transaction_timeout_ms", None)
        return SdkWriter(self._bootstrap, settings)

    def commit(self, unit: CommitUnit) -> bool:
        failpoint("spark.unit.before")
        with self._owner(unit.owner, unit.epoch) as client:
            now = client.commit(unit.sequence, unit.tokens)
        failpoint("spark.unit.after")
        return now

    def sweep(self, owner: str, claim: int) -> None:
        """Claim an owner, to abort what is open or prepared of it."""
        try:
            with self._owner(owner) as client:
                client.init(claim=claim)
        except HeadraceError as error:
            _log.warning(
                "what tasks left behind may hold readers up until the next batch, or until it times out: %s", error
            )

    @contextmanager
    def _owner(self, owner: str, epoch: int | None = None) -> Iterator[UnitOwner]:
        with UnitOwner(self._bootstrap, owner, epoch=epoch, **self._deciding) as client:
            yield client
