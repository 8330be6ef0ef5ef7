"""
Snapshots of one worker: takes them of the tasks that it feeds, and has its disks begin with those that others took.

They only save time: what goes wrong with them is counted and logged, and state comes from the changelog.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from headrace_common.core.errors import HeadraceError, RequestTimedOut
from headrace_common.runtime.clock import limit_ms
from headrace_streams.config import StreamsConfig
from headrace_streams.core.snapshots import Log, Snapshot, SnapshotDamaged, obsolete, useful
from headrace_streams.ports import Snapshots, TaskStore
from headrace_streams.runtime.owned import Outside, Owned

_log = logging.getLogger(__name__)
_LOOK_MS: Final = 10_000
"""A place that does not say for so long what it has is as good as none: a task waits for it."""


class Snapshotting:
    """One at a time is taken; ``owned`` is the worker's, and changes while it works."""

    def __init__(self, config: StreamsConfig, outside: Outside, counts: Counter[str]) -> None:
        self._config = config
        self._outside = outside
        self._counts = counts
        self.owned: Mapping[str, Owned] = {}

    async def run(self) -> None:
        """Take snapshots until cancelled."""
        while self._outside.snapshots is not None:
            await self._outside.clock.sleep_ms(self._config.snapshot_interval_ms)
            for owned in list(self.owned.values()):
                if owned.store is not None:
                    await self._take_in_time(self._outside.snapshots, owned, owned.store)

    async def _take_in_time(self, snapshots: Snapshots, owned: Owned, store: TaskStore) -> None:
        try:
            async with limit_ms(self._config.snapshot_timeout_ms):
                await self._take(snapshots, owned, store)
        except (HeadraceError, TimeoutError) as error:
            if self.owned.get(owned.spec.label) is owned:
                self._fail(f"no snapshot of task {owned.spec.label} was taken", error)

    async def _take(self, snapshots: Snapshots, owned: Owned, store: TaskStore) -> None:
        label, oldest_ms = owned.spec.label, self._outside.clock.now_ms() - self._config.trusted_ms
        kept = await self._outside.look(store.checkpoint)
        if kept is None or kept.at_ms < oldest_ms:
            return
        snapshot = Snapshot(kept.next_offset, owned.epoch, kept.at_ms, kept.log_id)
        found = await _find(snapshots, label)
        newest = max((s.next_offset for s in found if s.complete and s.log_id == kept.log_id), default=0)
        if kept.next_offset > newest:
            with store.room() as directory:
                await self._outside.look(store.copy, directory)
                await snapshots.put(label, snapshot, directory)
            self._counts["snapshots"] += 1
            found.append(snapshot)
        for old in obsolete(found, kept.log_id, oldest_ms):
            await snapshots.delete(label, old)

    async def bring(self, owned: Owned) -> None:
        """
        Have the disk of a task begin with a snapshot, if that saves reading more than ``acceptable_recovery_lag``
        records. Nobody else uses the disk meanwhile.
        """
        try:
            async with limit_ms(self._config.snapshot_timeout_ms):
                await self._bring(owned)
        except (HeadraceError, TimeoutError) as error:
            self._fail(f"task {owned.spec.label} is restored from its changelog alone", error)

    async def _bring(self, owned: Owned) -> None:
        snapshots, store, changelog = self._outside.snapshots, owned.store, owned.spec.changelog
        if snapshots is None:
            return
        assert store is not None
        assert changelog is not None
        reader, now_ms = self._outside.changelogs, self._outside.clock.now_ms()
        start, end = (await reader.starts([changelog]))[changelog], (await reader.ends([changelog]))[changelog]
        log = Log(owned.spec.log_id, start, end, now_ms - self._config.trusted_ms, now_ms)
        kept = await self._outside.compute(store.checkpoint)
        known = kept is not None and log.continues(kept.log_id, kept.next_offset, kept.at_ms)
        begin, lag = kept.next_offset if known else start, self._config.acceptable_recovery_lag
        if end - begin <= lag:
            return
        for snapshot in useful(await _find(snapshots, owned.spec.label), log, begin, lag):
            try:
                with store.room() as directory:
                    await snapshots.get(owned.spec.label, snapshot, directory)
                    await self._outside.compute(_replace, store, snapshot, directory)
            except HeadraceError as error:
                self._fail(f"a snapshot of task {owned.spec.label} is left out", error)
            else:
                self._counts["snapshots_restored"] += 1
                _log.info("task %s begins with the snapshot %s", owned.spec.label, snapshot.name)
                return

    def _fail(self, what: str, error: Exception) -> None:
        self._counts["snapshots_failed"] += 1
        _log.warning("%s: %s", what, str(error) or f"it took longer than {self._config.snapshot_timeout_ms} ms")


async def _find(snapshots: Snapshots, task: str) -> list[Snapshot]:
    """
    Raises:
        RequestTimedOut: no answer has come.
    """
    try:
        async with limit_ms(_LOOK_MS):
            return await snapshots.find(task)
    except TimeoutError as error:
        raise RequestTimedOut(f"the place of snapshots has not answered for {_LOOK_MS} ms") from error


def _replace(store: TaskStore, snapshot: Snapshot, directory: Path) -> None:
    """
    Raises:
        HeadraceError: the copy is not what its name says; the disk is empty then.
    """
    try:
        store.replace(directory)
        held = store.checkpoint()
        if held is None or held.log_id != snapshot.log_id or held.next_offset < snapshot.next_offset:
            raise SnapshotDamaged(f"the snapshot {snapshot.name} holds {held}")
    except HeadraceError:
        store.wipe()
        raise
