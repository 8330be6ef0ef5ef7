"""What goes wrong among workers and coordinators of a cluster of the lab, and how it is mended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.lab.work.workers import GROUP, Worker

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from tests.lab.work.world import World


class Faults:
    """Of one world: one method after the other is called, drawn from its profile; each says whether it happened."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._cluster = world.cluster
        self._rng = world.rng
        self._on = True
        self._paused: set[int] = set()
        """Coordinators."""

    async def run(self) -> None:
        """Until the profile's time is over; ``heal`` mends what is left."""
        profile, loop = self._world.profile, asyncio.get_running_loop()
        end = loop.time() + profile.lasts_s
        while loop.time() < end:
            name = self._rng.choice(profile.faults)
            if getattr(self, name)():
                self._world.counts[f"fault {name}"] += 1
            await asyncio.sleep(profile.fault_every_s * (0.3 + 1.4 * self._rng.random()))
        self._on = False

    def heal(self) -> None:
        """All goes on, and all places that are not gone have a process."""
        for number in self._world.coordinators:
            self._start_coordinator(number)
            self._resume_coordinator(number)
        for connection in list(self._cluster.lab.network.connections):
            connection.go_on()
        for worker in self._world.workers:
            self._mend_worker(worker)
            self._resume_worker(worker)
            self._start_worker(worker)

    def _later(self, after_s: float, undo: Callable[[], object]) -> None:
        asyncio.get_running_loop().call_later(after_s, lambda: undo() if self._on else None)

    # --- coordinators ---------------------------------------------------------------------------------------------

    def _coordinator(self) -> int | None:
        up = [n for n in self._world.coordinators if self._cluster.runs(coordinator=n) and n not in self._paused]
        return self._rng.choice(up) if up else None

    def kill_coordinator(self) -> bool:
        """Its process dies."""
        number = self._coordinator()
        if number is None:
            return False
        self._world.say(f"coordinator {number} dies")
        self._cluster.kill(coordinator=number)
        self._later(0.2 + self._rng.random() * 6, lambda: self._start_coordinator(number))
        return True

    def pause_coordinator(self) -> bool:
        """It stands still, and goes on believing what it believed."""
        number = self._coordinator()
        if number is None:
            return False
        wait_s = self._rng.choice((0.3, 2.0, 6.0, 15.0))
        self._world.say(f"coordinator {number} is paused for {wait_s} s")
        self._cluster.pause(coordinator=number)
        self._paused.add(number)
        self._later(wait_s, lambda: self._resume_coordinator(number))
        return True

    def _start_coordinator(self, number: int) -> None:
        if not self._cluster.runs(coordinator=number):
            self._paused.discard(number)
            self._cluster.restart(coordinator=number)

    def _resume_coordinator(self, number: int) -> None:
        if number in self._paused and self._cluster.runs(coordinator=number):
            self._cluster.resume(coordinator=number)
        self._paused.discard(number)

    # --- workers --------------------------------------------------------------------------------------------------

    def _worker(self) -> Worker | None:
        up = [w for w in self._world.workers if w.node is not None and not w.paused and not w.closing]
        return self._rng.choice(up) if up else None

    def _start_worker(self, worker: Worker) -> None:
        if worker.node is None and not worker.gone:
            worker.start()

    def _resume_worker(self, worker: Worker) -> None:
        if worker.paused and worker.node is not None:
            worker.paused = False
            self._cluster.lab.loop.resume(worker.node)

    def _mend_worker(self, worker: Worker) -> None:
        network = self._cluster.lab.network
        for number in self._world.coordinators:
            network.between(worker.name, f"coordinator-{number}").cut = False
            network.between(f"coordinator-{number}", worker.name).cut = False
        for connection in list(network.connections):
            connection.go_on()

    def kill_worker(self) -> bool:
        """It dies, and is started again, within the grace or after it."""
        worker = self._worker()
        if worker is None:
            return False
        self._world.say(f"{worker.name} dies, does {sorted(worker.doing)}")
        worker.die()
        self._later(self._rng.choice((0.3, 2.0, 6.0)), lambda: self._start_worker(worker))
        return True

    def pause_worker(self) -> bool:
        """It stands still, up to twice a session."""
        worker = self._worker()
        if worker is None or worker.node is None:
            return False
        wait_s, node = self._rng.choice((1.0, 4.0, 12.0)), worker.node
        self._world.say(f"{worker.name} is paused for {wait_s} s")
        worker.paused = True
        self._cluster.lab.loop.pause(node)
        self._later(wait_s, lambda: self._resume_worker(worker) if worker.node is node else None)
        return True

    def close_worker(self) -> bool:
        """It ends in good order, and is started again."""
        worker = self._worker()
        if worker is None:
            return False
        self._world.say(f"{worker.name} closes")
        worker.closing = True
        self._later(3.0, lambda: self._start_worker(worker))
        return True

    def cut_worker(self) -> bool:
        """It and a coordinator do not reach each other, or one way only."""
        worker, number = self._worker(), self._coordinator()
        if worker is None or number is None:
            return False
        network, other = self._cluster.lab.network, f"coordinator-{number}"
        network.cut(worker.name, other)
        if self._rng.random() < 0.5:
            network.cut(other, worker.name)
        wait_s = self._rng.choice((0.5, 4.0, 12.0))
        self._world.say(f"{worker.name} and {other} are cut off for {wait_s} s")
        self._later(wait_s, lambda: self._mend_worker(worker))
        return True

    def lose_connections(self) -> bool:
        """All of a worker break; it connects again at once."""
        worker = self._worker()
        if worker is None or worker.group is None:
            return False
        self._world.say(f"{worker.name} loses its stream")
        stream = worker.group._work._stream
        if stream is not None:
            stream._call.cancel()  # type: ignore[attr-defined]  # it is gRPC's
        return stream is not None

    def join(self) -> bool:
        """One more worker."""
        if len([w for w in self._world.workers if not w.gone]) >= self._world.profile.workers_max:
            return False
        self._world.say(f"{self._world.add_worker().name} joins")
        return True

    def replace(self) -> bool:
        """A second process takes the place of one that runs, under its name."""
        worker = self._worker()
        if worker is None or len(self._world.workers) > 12:
            return False
        new = Worker(len(self._world.workers) + 1, self._world)
        new.version = worker.version
        self._world.workers.append(new)
        self._world.say(f"{new.name} takes the place of {worker.name}")
        worker.gone = True
        new.start(worker.instance_id)
        return True

    def upgrade(self) -> bool:
        """The next process of a place runs another version of the program."""
        worker = self._worker()
        if worker is None:
            return False
        worker.version = self._rng.randrange(len(self._world.profile.declarations))
        self._world.say(f"{worker.name} is started again with version {worker.version}")
        worker.die()
        self._start_worker(worker)
        return True

    def raise_tokens(self) -> bool:
        """What a worker writes to has a higher token: somebody had a clock that was ahead."""
        worker = self._worker()
        if worker is None or worker.group is None or not worker.doing:
            return False
        item, epoch = self._rng.choice(sorted(worker.doing.items()))
        worker.group.report(refused={item: epoch + 100_000})
        return True

    def delete_group(self) -> bool:
        """Somebody tries; it happens only where nobody is a member."""

        async def delete() -> None:
            admin = self._cluster.admin()
            try:
                await admin.delete_groups([GROUP])
            except HeadraceError:
                pass
            finally:
                await admin.close()

        self._deleting = asyncio.ensure_future(delete())
        return True
