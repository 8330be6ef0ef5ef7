"""What goes wrong among groups of a cluster of the lab, and how it is mended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.lab.groups.members import Member
    from tests.lab.groups.world import World

USUAL_S: Final = (0.0001, 0.0005)
"""What a message takes."""
USUAL_MS: Final = (0.1, 2)
"""What a sync takes."""
TOPICS_MAX: Final = 5
PARTITIONS_MAX: Final = 24
RESETS: Final = 8


class Faults:
    """Of one world: one method after the other is called, drawn from its profile; each says whether it happened."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._cluster = world.cluster
        self._rng = world.rng
        self._on = True

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

    def _later(self, after_s: float, undo: Callable[[], object]) -> None:
        """Undo something, unless all is healed by then."""
        asyncio.get_running_loop().call_later(after_s, lambda: undo() if self._on else None)

    # --- coordinators ---------------------------------------------------------------------------------------------

    def _coordinator(self) -> int | None:
        up = [n for n in self._world.coordinators if self._cluster.runs(coordinator=n) and n not in self._world.paused]
        return self._rng.choice(up) if up else None

    def kill_coordinator(self) -> bool:
        """Its process dies; connections to it break at once."""
        number = self._coordinator()
        if number is None:
            return False
        self._world.say(f"coordinator {number} dies")
        self._cluster.kill(coordinator=number)
        self._later(0.2 + self._rng.random() * 6, lambda: self._world.start_coordinator(number))
        return True

    def pause_coordinator(self) -> bool:
        """It stands still, and goes on believing what it believed."""
        number = self._coordinator()
        if number is None:
            return False
        wait_s = self._rng.choice((0.3, 2.0, 6.0, 15.0)) * (0.5 + self._rng.random())
        self._world.say(f"coordinator {number} is paused for {wait_s:.1f} s")
        self._cluster.pause(coordinator=number)
        self._world.paused.add(number)
        self._later(wait_s, lambda: self._world.resume_coordinator(number))
        return True

    def drain_coordinator(self) -> bool:
        """A controlled shutdown moves its shards away; some time later it takes part again."""
        number = self._coordinator()
        if number is None or len(self._world.coordinators) < 2:
            return False
        self._world.say(f"coordinator {number} is stopped")
        stopping = asyncio.ensure_future(self._cluster.stop(coordinator=number))
        wait_s = 0.5 + self._rng.random() * 5

        def stopped(_: object) -> None:
            if self._on:
                self._later(wait_s, lambda: self._world.start_coordinator(number))
            else:
                self._world.start_coordinator(number)

        stopping.add_done_callback(stopped)
        return True

    def cut_controller(self) -> bool:
        """A coordinator does not reach the controller: it goes on believing."""
        number = self._coordinator()
        return number is not None and self._cut(f"coordinator-{number}", "controller-1", one_way=False)

    def cut_brokers(self) -> bool:
        """A coordinator does not reach the leaders of its logs."""
        number = self._coordinator()
        if number is None:
            return False
        for broker in self._world.brokers:
            self._cut(f"coordinator-{number}", f"broker-{broker}", one_way=True)
        return True

    def cut_members(self) -> bool:
        """A consumer and a coordinator do not reach each other, or one way only."""
        number, member = self._coordinator(), self._member()
        if number is None or member is None:
            return False
        return self._cut(member.name, f"coordinator-{number}", one_way=self._rng.random() < 0.5)

    def _cut(self, one: str, other: str, *, one_way: bool) -> bool:
        network = self._cluster.lab.network
        pairs = [(one, other), (other, one)]
        for source, target in pairs[: 1 if one_way else 2]:
            network.cut(source, target)
        wait_s = self._rng.choice((0.5, 4.0, 12.0))
        self._world.say(f"{one} and {other} are cut off for {wait_s} s")
        self._later(wait_s, lambda: self._world.mend(pairs))
        return True

    def slow_images(self) -> bool:
        """A coordinator hears late of what the controller decides."""
        number = self._coordinator()
        if number is None:
            return False
        way = self._cluster.lab.network.between("controller-1", f"coordinator-{number}")
        way.delay_s = (0.0, self._rng.choice((1.0, 3.0)))
        self._world.say(f"coordinator {number} hears late of the controller")
        self._later(5 + self._rng.random() * 10, lambda: setattr(way, "delay_s", USUAL_S))
        return True

    def slow_members(self) -> bool:
        """Messages between consumers and a coordinator take long: what one says and the other says cross."""
        number = self._coordinator()
        if number is None:
            return False
        most_s = self._rng.choice((0.3, 1.5))
        network, name = self._cluster.lab.network, f"coordinator-{number}"
        ways = [network.between(member.name, name) for member in self._world.members]
        ways += [network.between(name, member.name) for member in self._world.members]
        for way in ways:
            way.delay_s = (0.0, most_s)

        self._world.say(f"messages between consumers and coordinator {number} take up to {most_s} s")
        self._later(4 + self._rng.random() * 8, self._world.keep_delays)
        return True

    def lose_connections(self) -> bool:
        """Connections of a coordinator break all the time, for a while."""
        number = self._coordinator()
        if number is None:
            return False
        others = [f"broker-{n}" for n in self._world.brokers] + [m.name for m in self._world.members if m.up]
        for _ in range(RESETS):
            reset = partial(self._cluster.lab.network.reset, f"coordinator-{number}", self._rng.choice(others))
            self._later(self._rng.random() * 3, reset)
        return True

    # --- logs -----------------------------------------------------------------------------------------------------

    def kill_broker(self) -> bool:
        """Shards' partitions have other leaders, or none for a while."""
        up = [n for n in self._world.brokers if self._cluster.runs(n)]
        if len(up) < len(self._world.brokers):
            return False
        number = self._rng.choice(up)
        self._world.say(f"broker {number} dies")
        self._cluster.kill(number)
        self._later(0.2 + self._rng.random() * 4, lambda: self._world.start_broker(number))
        return True

    def slow_disk(self) -> bool:
        """Nothing is committed for a while."""
        number, most_ms = self._rng.choice(self._world.brokers), self._rng.choice((100, 1_000, 4_000))
        self._world.say(f"the disk of broker {number} takes up to {most_ms} ms")
        self._cluster.slow_disk(number, ms=(1, most_ms))
        self._later(3.0, lambda: self._cluster.slow_disk(number, ms=USUAL_MS))
        return True

    # --- consumers ------------------------------------------------------------------------------------------------

    def _member(self) -> Member | None:
        up = [m for m in self._world.members if m.up and not m.paused]
        return self._rng.choice(up) if up else None

    def kill_consumer(self) -> bool:
        """kill -9; most come back, static ones under their name."""
        member = self._member()
        if member is None:
            return False
        self._world.say(f"{member.name} is killed")
        member.die()
        self._later(0.1 + self._rng.random() * 8, lambda: self._world.start_again(member))
        return True

    def restart_consumers(self) -> bool:
        """Several are killed and started again, one soon after the other: what was just given moves on."""
        group = self._rng.choice(self._world.profile.groups)
        for member in self._world.members_of(group):
            if member.paused or member.gone or self._rng.random() < 0.4:
                continue
            self._world.say(f"{member.name} is killed, to come back at once")
            member.die()
            self._later(0.1 + self._rng.random(), partial(self._world.start_again, member))
        return True

    def close_consumer(self) -> bool:
        """It closes as it should; most come back."""
        member = self._member()
        if member is None or member.closing:
            return False
        self._world.say(f"{member.name} is to close")
        member.closing = True
        self._later(1 + self._rng.random() * 9, lambda: self._world.start_again(member))
        return True

    def pause_consumer(self) -> bool:
        """It stands still, longer than its session now and then."""
        member = self._member()
        if member is None:
            return False
        self._pause(member, self._rng.choice((1.0, 4.0, 10.0)))
        return True

    def _pause(self, member: Member, wait_s: float) -> None:
        assert member.node is not None, "it is up"
        self._world.say(f"{member.name} is paused for {wait_s} s")
        self._cluster.lab.loop.pause(member.node)
        member.paused = True
        incarnation = member.incarnation
        self._later(wait_s, lambda: self._world.resume(member, incarnation))

    def hold_commits(self) -> bool:
        """A consumer's commits hang, and it stands still meanwhile, now and then."""
        member = self._member()
        if member is None:
            return False
        member.held_until = asyncio.get_running_loop().time() + self._rng.choice((1.0, 3.0, 5.0))
        if self._rng.random() < 0.3:
            self._pause(member, self._rng.choice((3.0, 7.0, 10.0)))
        return True

    def stop_polling(self) -> bool:
        """It does not poll for a while, which is too long now and then."""
        member = self._member()
        if member is None:
            return False
        member.silent_until = asyncio.get_running_loop().time() + self._rng.choice((2.0, 6.0, 14.0))
        return True

    def join(self) -> bool:
        """One more."""
        if self._world.is_crowded():
            return False
        self._world.add_member(self._rng.choice(self._world.profile.groups)).start()
        return True

    def leave(self) -> bool:
        """One less, for good: killed or closed."""
        member = self._member()
        if member is None or len(self._world.members_of(member.group)) < 2:
            return False
        member.gone = True
        if self._rng.random() < 0.5:
            member.die()
        else:
            member.closing = True
        return True

    def start_twin(self) -> bool:
        """A second process with the instance id of one that lives."""
        static = [m for m in self._world.members if m.up and m.instance_id is not None]
        if not static or self._world.is_crowded():
            return False
        twin = self._world.twin_of(self._rng.choice(static))
        twin.start()
        twin.gone = True
        self._later(6.0, lambda: setattr(twin, "closing", True))
        return True

    def break_stream(self) -> bool:
        """A consumer's connections to coordinators break."""
        member = self._member()
        if member is None:
            return False
        for number in self._world.coordinators:
            self._cluster.lab.network.reset(member.name, f"coordinator-{number}")
        return True

    # --- topics and administration --------------------------------------------------------------------------------

    def create_topic(self) -> bool:
        """One more, which patterns match."""
        if len(self._world.topics) >= TOPICS_MAX:
            return False
        self._world.operator.create_topic()
        return True

    def grow_topic(self) -> bool:
        """More partitions."""
        if sum(self._world.topics.values()) >= PARTITIONS_MAX:
            return False
        self._world.operator.grow_topic()
        return True

    def delete_topic(self) -> bool:
        """One less."""
        if self._rng.random() < 0.7 or len(self._world.topics) < 2:
            return False
        self._world.operator.delete_topic()
        return True

    def administer(self) -> bool:
        """An operator sets, or forgets, positions; refused where there are members."""
        self._world.operator.administer()
        return True

    def jump_clocks(self) -> bool:
        """All wall clocks go ahead."""
        self._cluster.jump_clocks(minutes=self._rng.choice((2, 60)))
        return True

    # --- the end --------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Everything works again."""
        self._on = False
        world, network = self._world, self._cluster.lab.network
        for number in world.coordinators:
            network.between("controller-1", f"coordinator-{number}").delay_s = USUAL_S
        world.keep_delays()
        self._cluster.heal()
        for number in world.brokers:
            self._cluster.slow_disk(number, ms=USUAL_MS)
            world.start_broker(number)
        for number in world.coordinators:
            world.resume_coordinator(number)
            world.start_coordinator(number)
        for member in world.members:
            member.silent_until = member.held_until = 0.0
            member.calm = True
            member.closing = member.closing or member.gone
            world.resume(member, member.incarnation)
            world.start_again(member)
