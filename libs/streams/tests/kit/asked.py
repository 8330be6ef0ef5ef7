"""A worker that answers questions about state, without a cluster: over gRPC, in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_common.core.ids import Endpoint
from headrace_streams import App, stores
from headrace_streams.adapters.grpc_queries import open_queries
from headrace_streams.adapters.memory_store import MemoryStores
from headrace_streams.core.state import changelog
from headrace_streams.core.state.changelog import Progress
from headrace_streams.plan.cut import Assembly
from headrace_streams.ports import Checkpoint
from headrace_streams.runtime.assembling import Assembled
from headrace_streams.runtime.owned import Owned, Spec
from headrace_streams.runtime.queries import Queries
from headrace_streams.testing import Driver


class Running:
    """One worker with all tasks of an app that reads one topic; its rows were committed up to ``position``."""

    def __init__(self, app: App, topic: str, partitions: int = 1) -> None:
        self.app = app
        self._topic = topic
        self.disks = MemoryStores()
        self.queries = Queries(self._read)
        assembly = Assembly(app.name, app.graph, {topic: partitions})
        self.specs = {
            f"{part.name}/{n}": Spec(
                part, n, (*part.topics, *(f"{app.name}.{hop.name}.repartition" for hop in part.hops)), {}
            )
            for part in assembly.parts
            for n in range(partitions)
        }
        self.queries.assembled = Assembled(assembly, self.specs, frozenset())
        self.queries.owned = {
            label: Owned(spec, None, self.disks.open(spec.part.name, spec.partition))  # type: ignore[arg-type]
            for label, spec in self.specs.items()
        }
        self.put(0, [])
        self.reads = 0

    async def _read(self, call: Callable[..., Any], *args: Any) -> Any:
        self.reads += 1
        return call(*args)

    def put(self, position: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """State is what these rows make of it."""
        with Driver(self.app) as driver:
            driver.pipe(self._topic, rows)
            driver.commit()
            kept = {at[0]: committed.stores for at, committed in driver._committed.items()}
        for spec in self.specs.values():
            changes = {name: list(cold.scan()) for name, cold in kept[spec.part.name].items()}
            progress = Progress(dict.fromkeys(spec.part.topics, position))
            disk = self.disks.open(spec.part.name, spec.partition)
            disk.write(changelog.rows(changes, progress), Checkpoint("log", position, 0))
        self.queries.notify()


@asynccontextmanager
async def answering(running: Running, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """``Stores`` of any address asks this worker. They are to be used in a thread."""
    async with open_queries(running.queries, Endpoint("127.0.0.1", 0), None) as at:
        items = [SimpleNamespace(id=label, owner="m", followers=()) for label in running.specs]
        group = SimpleNamespace(members=[SimpleNamespace(member_id="m", endpoint=str(at))], items=items)
        admin = SimpleNamespace(describe_group=lambda app: group, close=lambda: None)
        monkeypatch.setattr(stores, "AdminClient", lambda servers: admin)
        yield
