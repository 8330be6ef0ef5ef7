"""
Makes the keys that a query's tasks show, with what its driver shows. Used on the driver alone.

Where none can be made, tasks are given what the driver shows, and the log says so once. That is a matter of what the
cluster is and what its rules say, never of a node that does not answer: else whoever holds one up would have the
driver's credential sent around.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from datetime import timedelta
from typing import Any, Final

from headrace import AdminClient
from headrace.errors import Denied, ErrorCode, HeadraceError, NotFound, Rejected, UnsupportedVersion
from headrace.finding import ClusterAddress
from headrace_common.core.secret import Secret
from headrace_common.runtime.clock import SystemClock
from headrace_spark.adapters.clients import settings_key, share_client, warn_once
from headrace_spark.adapters.sdk_address import cluster_of
from headrace_spark.core.options import ConnectorOptions
from headrace_spark.core.task_keys import (
    AS_BEFORE_MS,
    NOTE,
    OPEN,
    OWNED_MAX,
    Lives,
    Owned,
    Scope,
    TaskKey,
    keys_over,
)

SETTINGS: Final[dict[str, Any]] = {"default_api_timeout_ms": 15_000, "request_timeout_ms": 5_000}
CLOSE_TIMEOUT_MS: Final = 3_000
"""A query that ends waits no longer for its key to be deleted: it ends by itself."""
SHARED_MAX: Final = 64
HELD_MAX: Final = 64

_log: Final = logging.getLogger("headrace.spark")
_lock: Final = threading.Lock()
_shared: OrderedDict[object, SdkTaskKeys] = OrderedDict()


class SdkTaskKeys:
    """See ``ports.TaskKeys``. For one thread at a time."""

    def __init__(self, cluster: ClusterAddress, lives: Lives) -> None:
        assert cluster.api_key is not None, "without a secret that would travel nobody needs a key"
        self._cluster = cluster
        self._own = cluster.api_key
        self._lives = lives
        self._clock = SystemClock()
        self._held: list[TaskKey] = []

    def key(self, scope: Scope | None) -> Secret:
        now_ms = self._clock.monotonic_ms()
        self._held = [one for one in self._held if now_ms < one.end_ms][-HELD_MAX:]
        if scope is None:
            return self._as_before(frozenset(), "no key can name what it writes").shown
        held = next((one for one in self._held if one.serves(scope, now_ms)), None)
        if held is None:
            held = self._make(scope)
            self._held.append(held)
        return held.shown

    def close(self) -> None:
        ids = [one.id for one in self._held if one.id is not None]
        self._held.clear()
        if not ids:
            return
        try:
            with AdminClient(self._cluster, default_api_timeout_ms=CLOSE_TIMEOUT_MS) as admin:
                admin.delete_keys(ids)
        except HeadraceError as error:
            _log.warning("the key of this query's tasks was not deleted, and ends by itself: %s", error)

    def _make(self, scope: Scope) -> TaskKey:
        client = ("keys", self._cluster, settings_key(SETTINGS))
        admin = share_client(client, lambda: AdminClient(self._cluster, **SETTINGS))
        try:
            return self._ask(admin, scope)
        except (Denied, UnsupportedVersion) as error:
            return self._as_before(scope, str(error))
        except Rejected as error:
            if error.code is not ErrorCode.POLICY_VIOLATION:
                raise
            return self._as_before(scope, str(error))

    def _ask(self, admin: AdminClient, scope: Scope) -> TaskKey:
        who = admin.who_am_i()
        if who.mode == OPEN:
            return self._as_before(scope, "the cluster is open, and asks for no key")
        if who.key_id is None:
            return self._as_before(scope, "it is no API key: one that was made with it would have none of its groups")
        lives = self._lives.until(who.expires_ms, self._clock.now_ms())
        if lives.life_ms <= 0:
            return self._as_before(scope, "it ends within a minute")
        owned = self._owned(admin, who.principal)
        if len(owned) >= OWNED_MAX:
            return self._as_before(scope, f"{who.principal} has {len(owned)} keys; delete some")
        made_ms = self._clock.monotonic_ms()
        made = admin.create_key(lifetime=timedelta(milliseconds=lives.life_ms), scope=scope, note=NOTE)
        return TaskKey(made.key, scope, made_ms + lives.shared_ms, made_ms + lives.life_ms, made.description.id)

    def _owned(self, admin: AdminClient, principal: str) -> list[Owned]:
        """Its keys, without those that are deleted now."""
        owned = [Owned(key.id, key.note, key.expires_ms) for key in admin.list_keys(principal)]
        over = keys_over(owned, self._clock.now_ms())
        if over:
            try:
                admin.delete_keys(over)
            except NotFound:  # somebody else deletes them
                return owned
        return [key for key in owned if key.id not in set(over)]

    def _as_before(self, scope: Scope, why: str) -> TaskKey:
        warn_once(f"tasks are given what headrace.token says, and no key of their own: {why}")
        until_ms = self._clock.monotonic_ms() + min(AS_BEFORE_MS, self._lives.shared_ms)
        return TaskKey(self._own, scope, until_ms, until_ms)


def query_keys(options: ConnectorOptions) -> SdkTaskKeys | None:
    """Keys of one query, which deletes them when it ends; None: what it shows does not travel with it."""
    return None if options.token is None else SdkTaskKeys(cluster_of(options), Lives.of(options))


def shared_keys(options: ConnectorOptions) -> SdkTaskKeys | None:
    """
    As ``query_keys``, for processes of Spark that plan one query, job or micro-batch after another: those with the same
    credential that need the same get the same key, for a while. They end by themselves.
    """
    if options.token is None:
        return None
    name = (cluster_of(options), Lives.of(options))
    with _lock:
        found = _shared.pop(name, None) or SdkTaskKeys(*name)
        _shared[name] = found
        while len(_shared) > SHARED_MAX:
            _shared.popitem(last=False)
    return found
