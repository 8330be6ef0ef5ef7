"""A broker's disk: what was synced stays, what was not may go when the power does."""

from __future__ import annotations

from collections.abc import Coroutine
from random import Random

from headrace_broker.adapters.memory_log import MemoryLogs, _apply, _copy_logs, _Log, _recover
from headrace_broker.core.rows import LogId
from headrace_common.core.ids import Offset


class Disk(MemoryLogs):
    """``MemoryLogs`` without an event loop: a sync is begun, and done some time later."""

    _under_way: Coroutine[None, None, None] | None = None

    def begin_sync(self) -> bool:
        """Begin to sync what is written so far; False: one is under way, or there is nothing to do."""
        if self._under_way is not None or not self._unsynced:
            return False
        self._under_way = self.sync()
        self._under_way.send(None)
        return True

    def end_sync(self) -> None:
        """It is done."""
        assert self._under_way is not None
        try:
            self._under_way.send(None)
        except StopIteration:
            self._under_way = None
            return
        raise AssertionError("a sync waits for nothing but its end")

    def lower(self, log: LogId, end: Offset) -> None:
        """Lower the evidence before a truncation."""
        work = self.lower_evidence([(log, end, -1)])
        try:
            while True:
                work.send(None)
        except StopIteration:
            return

    def after_crash(self, rng: Random | None) -> Disk:
        """
        What the next start finds: everything (the process died), or with ``rng`` what a loss of power left.

        That is what was synced, and of the rest as many write groups as happened to get to the disk.
        """
        if self._under_way is not None:
            self._under_way.close()
            self._under_way = None
        logs = self._live
        if rng is not None:
            logs = self._durable
            for group in self._unsynced[: rng.randint(0, len(self._unsynced))]:
                _apply(logs, group)
        return self._next(logs)

    def cut_short(self, log: LogId, end: Offset) -> Disk:
        """What the next start finds when the log's bytes are damaged from ``end`` on."""
        found = self._next(self._live)
        found._live[log].drop_suffix(end)
        found._durable[log].drop_suffix(end)
        found._recovered = [_recover(number, kept) for number, kept in sorted(found._live.items()) if kept.state]
        found._evidence[log] = Offset(0)
        return found

    def left_token(self, epoch: int) -> None:
        """Everything is flushed, and the broker epoch of a clean shutdown left."""
        while self._unsynced:
            if self._under_way is None:
                self.begin_sync()
            self.end_sync()
        self._left_token = epoch

    def _next(self, logs: dict[LogId, _Log]) -> Disk:
        other = Disk(self._left_token)
        other._live, other._durable = _copy_logs(logs), _copy_logs(logs)
        other._evidence = dict(self._evidence)
        other._next_log_id = self._next_log_id
        other._recovered = [_recover(number, kept) for number, kept in sorted(logs.items()) if kept.state is not None]
        return other
