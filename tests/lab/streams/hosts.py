"""Machines that run workers of a program, each with a disk: one process at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.lab.streams.disks import Disk

from headrace.errors import HeadraceError
from headrace_common.core.errors import Internal, NotFound, Rejected
from headrace_lab.loop import Node
from headrace_streams.config import StreamsConfig
from headrace_streams.main import work

if TYPE_CHECKING:
    from tests.lab.streams.world import World

BUGS: Final = (Rejected, Internal, NotFound)
"""Errors that no fault explains: a worker that ends with one has found something."""


class Host:
    """One machine."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.name = f"worker-{number}"
        self.disk = Disk()
        self.node: Node | None = None
        self.stop = asyncio.Event()
        self.doomed: tuple[str, Callable[[Host], object]] | None = None
        """At which step of its work something happens to it, and what."""

    @property
    def lives(self) -> bool:
        """Also while it is paused."""
        return self.node is not None

    @property
    def works(self) -> bool:
        return self.node is not None and not self.node.paused

    def start(self) -> None:
        """A new process on the disk that is there."""
        lab = self.world.cluster.lab
        self.world.tell(f"{self.name} starts")
        self.world.counts["workers"] += 1
        self.node, self.stop, self.doomed = lab.node(self.name), asyncio.Event(), None
        lab.loop.create_task(self._run(self.node), name=self.name, context=self.node.context.copy())

    def kill(self) -> None:
        """kill -9."""
        if self.node is not None:
            self.world.tell(f"{self.name} is killed")
            self._end()
            self.disk.crash(self.world.random)

    def _end(self) -> None:
        node, self.node = self.node, None
        assert node is not None, "it lives"
        self.world.cluster.lab.network.kill(node)

    def pause(self, seconds: float) -> None:
        """It stands still, and goes on believing."""
        node, loop = self.node, self.world.cluster.lab.loop
        if node is not None:
            self.world.tell(f"{self.name} is paused for {seconds:.1f} s")
            loop.pause(node)
            loop.call_later(seconds, lambda: loop.resume(node) if node.alive else None, context=loop.test.context)

    async def _run(self, node: Node) -> None:
        world = self.world
        try:
            await work(world.program.app(), self._config(), self.stop, self.disk, self._compute, instance_id=self.name)
            world.tell(f"{self.name} has stopped")
        except HeadraceError as error:
            world.counts[f"workers ended by {type(error).__name__}"] += 1
            world.tell(f"{self.name} ends: {type(error).__name__}: {error}")
            if isinstance(error, BUGS):
                world.wrong(f"{type(error).__name__}: {self.name}: {error}")
        except Exception as error:  # noqa: BLE001 - whatever a worker breaks with is a find
            world.wrong(f"{type(error).__name__}: {self.name}: {error}")
        if self.node is node:
            self._end()

    def _config(self) -> StreamsConfig:
        profile = self.world.profile
        return StreamsConfig(
            bootstrap_servers=",".join(self.world.cluster.bootstrap_servers),
            state_dir=Path("nowhere"),
            processing_guarantee=profile.guarantee,
            commit_interval_ms=profile.commit_interval_ms,
            commit_rows=profile.commit_rows,
            max_batch_rows=profile.batch_rows,
            idle_after_ms=profile.idle_after_ms,
            transaction_timeout_ms=profile.transaction_timeout_ms,
            default_api_timeout_ms=20_000,
            trim_interval_ms=1_000,
            standbys=profile.standbys,
            acceptable_recovery_lag=profile.acceptable_lag,
            state_cache_bytes=profile.state_cache_bytes,
        )

    async def _compute(self, call: Callable[..., Any], *args: Any) -> Any:
        """Takes a moment, so that something can happen before."""
        await asyncio.sleep(self.world.random.random() * self.world.profile.compute_s)
        return call(*args)
