"""
The controller: who has which shard by ``headrace_controller.core.shards``, which topics there are, and who lives.

Everybody hears of its images late, in order, and may miss some; brokers answer clients from any of the last ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.simulation.transactions.processes import Process, Promise

from headrace_common.core.errors import CoordinatorNotAvailable
from headrace_common.core.ids import NO_NODE, NodeId, TopicId
from headrace_common.core.image import Shard, ShardKey, ShardKind
from headrace_common.core.murmur2 import partition_for
from headrace_controller.core.shards import reassign
from headrace_coordinator.core.values import TopicInfo, Topics

if TYPE_CHECKING:
    from tests.simulation.transactions.shard_life import Node as CoordinatorNode
    from tests.simulation.transactions.world import World

OLD_IMAGES = 4
"""So many changes a broker may be behind."""


@dataclass(frozen=True)
class Image:
    """What is known of the cluster at one revision."""

    revision: int
    made: float
    shards: dict[int, Shard]
    topics: Topics


class Controller(Process):
    """The active controller and its store in one; it is always there, but not always reached."""

    def __init__(self, number: int, world: World) -> None:
        super().__init__(number, world)
        self.up = True
        topics = {f"t{n}": _topic(f"t{n}", size) for n, size in enumerate(world.profile.topics)}
        shards = {n: Shard(ShardKey(ShardKind.GROUPS, n), NO_NODE, 0) for n in range(world.profile.shards)}
        self.images = [Image(1, 0.0, shards, topics)]
        self.alive: dict[int, float] = {}
        """Coordinators, and until when, unless they are heard."""
        self.banned: set[int] = set()
        """In controlled shutdown."""
        self.known_ids = {info.topic_id: name for name, info in topics.items()}
        self._next_topic = len(topics)

    @property
    def image(self) -> Image:
        """The newest."""
        return self.images[-1]

    def change(self, *, shards: dict[int, Shard] | None = None, topics: Topics | None = None) -> None:
        """A new image; everybody hears of it some time later."""
        old = self.image
        image = Image(
            old.revision + 1,
            self.world.schedule.now,
            old.shards if shards is None else shards,
            old.topics if topics is None else topics,
        )
        self.images.append(image)
        del self.images[:-OLD_IMAGES]
        for node in self.world.coordinators:
            self.offer(node)

    def offer(self, node: CoordinatorNode) -> None:
        """A node hears of the newest image, later than others now and then."""
        world = self.world
        delay = world.delay()
        if not world.calm and world.rng.random() < 0.15:
            delay += world.rng.random() * world.profile.image_slow_ms
        world.schedule.after(delay, self._reaches, node, node.incarnation, self.image)

    def _reaches(self, node: CoordinatorNode, incarnation: int, image: Image) -> None:
        if node.up and node.incarnation == incarnation and self.world.network.reaches(self.id, node.id):
            node.meet(node.apply, image)

    # --- coordinators -----------------------------------------------------------------------------------------

    def heartbeat(self, answer: Promise, node: CoordinatorNode) -> None:
        """It lives; the answer says whether it takes part, and knows the image of that."""
        fresh = node.id not in self.alive
        self.alive[node.id] = self.world.schedule.now + self.world.profile.controller_session_ms
        if fresh:
            self.settle()
        if node.revision < self.image.revision:
            self.offer(node)
        answer.settle(not fresh and node.revision >= 0)

    def tick(self) -> None:
        """Look for those that are silent."""
        late = [number for number, until in self.alive.items() if until < self.world.schedule.now]
        for number in late:
            del self.alive[number]
        if late:
            self.settle()
        self.world.schedule.after(200.0, self.tick)

    def noticed(self, node: CoordinatorNode) -> None:
        """Its connection broke and nobody answers: it is dead."""
        if self.alive.pop(node.id, None) is not None:
            self.settle()

    def settle(self) -> None:
        """Give shards to those who are there."""
        candidates = {NodeId(n) for n in self.alive if n not in self.banned}
        changed = reassign([self.image.shards[n] for n in sorted(self.image.shards)], candidates)
        if changed:
            self.world.counts["shard moves"] += len(changed)
            for shard in changed:
                self.world.say("shard", shard.key.number, "goes to", shard.owner, "epoch", shard.epoch)
            self.change(shards={**self.image.shards, **{s.key.number: s for s in changed}})

    # --- topics -----------------------------------------------------------------------------------------------

    def create_topic(self) -> None:
        """One more, which patterns match."""
        name = f"t{self._next_topic}"
        self._next_topic += 1
        info = _topic(name, self.world.rng.randint(1, 4))
        self.known_ids[info.topic_id] = name
        self.change(topics={**self.image.topics, name: info})

    def grow_topic(self) -> None:
        """More partitions."""
        name = self.world.rng.choice(sorted(self.image.topics))
        info = self.image.topics[name]
        self.change(topics={**self.image.topics, name: replace_partitions(info, info.partitions + 1)})

    def delete_topic(self) -> bool:
        """One less; names are not used again."""
        if len(self.image.topics) < 2:
            return False
        name = self.world.rng.choice(sorted(self.image.topics))
        self.change(topics={n: info for n, info in self.image.topics.items() if n != name})
        return True

    # --- what brokers say -------------------------------------------------------------------------------------

    def _hearsay(self) -> Image:
        if self.world.calm or self.world.rng.random() < 0.7:
            return self.image
        return self.world.rng.choice(self.images)

    def find(self, answer: Promise, group_id: str) -> None:
        """FindCoordinator."""
        owner = self._hearsay().shards[partition_for(group_id.encode(), self.world.profile.shards)].owner
        if owner == NO_NODE:
            answer.settle(error=CoordinatorNotAvailable("nobody has the shard now"))
        else:
            answer.settle(next(node for node in self.world.coordinators if node.id == owner))

    def metadata(self, answer: Promise) -> None:
        """What topics there are, and how new that is."""
        image = self._hearsay()
        answer.settle((image.revision, image.topics))


def _topic(name: str, partitions: int) -> TopicInfo:
    return TopicInfo(TopicId(name.encode().ljust(16, b"-")), partitions)


def replace_partitions(info: TopicInfo, partitions: int) -> TopicInfo:
    """The same topic with another number of partitions."""
    return info._replace(partitions=partitions)


def matching(pattern: str, topics: Topics) -> frozenset[str]:
    """The topics whose whole name matches."""
    return frozenset(filter(re.compile(pattern).fullmatch, topics))
