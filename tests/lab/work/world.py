"""
Work groups in one process, from one seed: real coordinators, brokers, a controller and members, and what goes wrong.

A quiet start, faults, healing; then everything that somebody can do is done, by one worker each. All the time: of the
committed records none has an item with two owners, and epochs of items never fall; nobody writes under another's
epoch; who gets an item is told what its earlier owners left open.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final

from tests.lab.kind import Outcome
from tests.lab.opening import measure, open_cluster
from tests.lab.shards import CommittedShards, Entry
from tests.lab.work.faults import Faults
from tests.lab.work.profile import Profile, draw
from tests.lab.work.target import Target
from tests.lab.work.workers import GROUP, Worker

from headrace_common.core.image import ShardKey, ShardKind
from headrace_coordinator.core.events import Loaded, TopicsChanged
from headrace_coordinator.core.records import group_key
from headrace_coordinator.core.settings import GroupSettings
from headrace_coordinator.core.shard import Shard
from headrace_coordinator.core.values import Moment
from headrace_coordinator.core.work_group import WorkGroup
from headrace_lab.cluster import Cluster

CALM_S_MAX: Final = 120.0
LOOK_S: Final = 0.1
FOUND_MAX: Final = 10


class World:
    """Everything of one seed."""

    def __init__(self, cluster: Cluster, rng: Random, profile: Profile, watch: Watch) -> None:
        self.cluster = cluster
        self.rng = rng
        self.profile = profile
        self.watch = watch
        self.tell = watch.tell
        self.target = Target(watch.tell)
        watch.deleted = self.target.forget
        self.counts: Counter[str] = Counter()
        self.story: list[str] = [str(profile)]
        self.coordinators = list(range(1, profile.coordinators + 1))
        self.workers: list[Worker] = []

    def say(self, text: str) -> None:
        """For the story."""
        self.story.append(f"{asyncio.get_running_loop().time():.3f} {text}")

    def add_worker(self) -> Worker:
        """One more place, with a process."""
        worker = Worker(len(self.workers) + 1, self)
        self.workers.append(worker)
        worker.start()
        return worker

    async def run(self) -> None:
        """All of it; what does not hold is told."""
        for _ in range(self.profile.workers):
            self.add_worker()
        if not await self._until("start"):
            return
        faults = Faults(self)
        self.say("faults begin")
        await faults.run()
        faults.heal()
        self.say("all is healed")
        await self._until("liveness")

    async def _until(self, name: str) -> bool:
        loop = asyncio.get_running_loop()
        end = loop.time() + CALM_S_MAX
        while text := self._missing():
            for worker in self.workers:
                if worker.node is None and not worker.gone:
                    worker.start()
            if loop.time() > end:
                self.tell(f"{name}: not within {CALM_S_MAX:.0f} s: {text}")
                return False
            await asyncio.sleep(LOOK_S)
        return True

    def _missing(self) -> str:
        """What is still missing; empty: the log and the workers agree, and everything is done."""
        group, living = self.watch.group, [w for w in self.workers if w.node is not None]
        if any(w.closing for w in living) or len(living) < len([w for w in self.workers if not w.gone]):
            return "somebody is about to end, or to start"
        if group is None:
            return "there is no group"
        ids = {w.group.member_id for w in living if w.group is not None}
        if set(group.members) != ids:
            return f"the log has {sorted(group.members)}, there are {sorted(ids)}"
        current = group.declarations[group.current]
        can = {i for m in group.members.values() for i in group.declarations[m.declaration].items if i in current.items}
        done = [item for w in living for item in w.doing]
        if sorted(done) != sorted(can) or group.awaited:
            return f"done are {sorted(done)} of {sorted(can)}, awaited {group.awaited}"
        return ""


class Watch:
    """What the committed log says of the group."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell = tell
        self.group: WorkGroup | None = None
        self.deleted: Callable[[], object] = lambda: None
        """Called when the group was deleted; what was left open ends by its timeout then."""
        self.log = CommittedShards(self._committed)
        self._rows: dict[bytes, bytes | None] = {}
        self._owners: dict[str, tuple[str, int]] = {}

    def _committed(self, shard: ShardKey, entry: Entry) -> None:
        if shard.kind is not ShardKind.GROUPS or entry.fence:
            return
        self._rows.update(entry.rows)
        if any(key == group_key(GROUP) for key, _ in entry.rows):
            self.group = self._load()
            if self.group is None:
                self.deleted()
            self._check()

    def _load(self) -> WorkGroup | None:
        shard = Shard(0, GroupSettings())
        shard.replay(self._rows.items())
        at = Moment(0.0, 0)
        shard.handle(TopicsChanged(at, {}, {}))
        shard.handle(Loaded(at))
        found = shard._groups.get(GROUP)
        group = None if found is None else found.membership
        assert group is None or isinstance(group, WorkGroup)
        return group

    def _check(self) -> None:
        owners: dict[str, tuple[str, int]] = {}
        for member in () if self.group is None else self.group.members.values():
            for item in sorted(member.held):
                if item in owners:
                    self.tell(f"two-owners: {item}: {owners[item]} and {member.member_id}")
                owners[item] = member.member_id, member.epochs[item]
        for item, (member_id, epoch) in owners.items():
            before = self._owners.get(item, ("", 0))
            if epoch < before[1] or (epoch == before[1] and member_id != before[0]):
                self.tell(f"epoch-fell: {item}: {member_id} has {epoch} after {before}")
        self._owners.update(owners)


async def play(seed: int) -> Outcome:
    """One run; it ends early where something does not hold."""
    rng = Random(seed)
    profile = draw(rng)
    found: list[str] = []
    changed = asyncio.Event()

    def tell(text: str) -> None:
        found.append(text)
        changed.set()

    watch = Watch(tell)
    with watch.log.watching():
        brokers, coordinators = profile.brokers, profile.coordinators
        async with open_cluster(seed, profile.configs(), brokers=brokers, coordinators=coordinators) as cluster:
            world = World(cluster, rng, profile, watch)
            running = asyncio.create_task(world.run())
            running.add_done_callback(lambda _: changed.set())
            await changed.wait()
            if not found:
                running.result()
            for worker in world.workers:
                worker.die()
            steps, seconds = measure(cluster)
            world.counts["writes"] = world.target.writes
            return Outcome(found[:FOUND_MAX], world.story, steps, seconds, world.counts)
