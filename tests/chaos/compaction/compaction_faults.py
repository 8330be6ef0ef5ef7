"""What is done to the cluster while its logs are compacted: the faults of replication, and some of these runs' own."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Sequence
from pathlib import Path

import chaos_faults as act
from chaos_cluster import Chaos
from chaos_faults import Act, Fault
from compaction_run import Plan, in_sync
from compaction_topics import DELETE_RETENTION_MS

from headrace import aio
from headrace_common.runtime.failpoints import DIRECTORY_VARIABLE

SESSION_SECONDS = 3.0
MOVE_SECONDS = 30.0
HIT_SECONDS = 15.0
LOOK_SECONDS = 0.1


def kill_coordinator(number: int) -> Act:
    """SIGKILL to a coordinator: the other loads its shards from compacted logs."""

    async def kill(chaos: Chaos) -> None:
        await chaos.kill(f"coordinator-{number}")
        if not chaos.cluster.options.restart:
            await chaos.start(f"coordinator-{number}")
        await chaos.processes_ready()

    return kill


async def move_replica(chaos: Chaos) -> None:
    """A replica of each partition of the topic is given up, and copied anew from the compacted log of its leader."""
    topic = (await chaos.newest()).topics[0]
    without = {p.partition: [b for b in p.replicas if b != p.replicas[-1]] for p in topic.partitions}
    whole = {p.partition: list(p.replicas) for p in topic.partitions}
    async with aio.AdminClient(chaos.cluster.administrator) as admin:
        for wanted in (without, whole):
            await admin.alter_reassignments({(chaos.topic, number): to for number, to in wanted.items()})
            for _ in range(int(MOVE_SECONDS / 0.2)):
                await asyncio.sleep(0.2)
                now = {p.partition: set(p.replicas) for p in (await chaos.newest()).topics[0].partitions}
                if now == {number: set(to) for number, to in wanted.items()}:
                    break
            else:
                chaos.problems.append(f"replicas did not move to {wanted}: {now}")
    chaos.say("replicas were copied anew")


def away(seconds: float) -> Act:
    """
    The broker that leads least is gone for so long. Longer than deletions stay, they wait for it, up to a minute; after
    that they go, and it has to copy anew what it cannot be told of. Only where the supervisor leaves the dead alone.
    """

    async def gone(chaos: Chaos) -> None:
        name = f"broker-{(await chaos.by_leaderships())[-1]}"
        await chaos.kill(name)
        await asyncio.sleep(seconds)
        await chaos.start(name)
        await chaos.processes_ready()

    return gone


def pause_follower(seconds: float) -> Act:
    """SIGSTOP to the broker that leads least, for longer than deletions stay."""

    async def act(chaos: Chaos) -> None:
        name = f"broker-{(await chaos.by_leaderships())[-1]}"
        await chaos.kill(name, number=signal.SIGSTOP)
        await asyncio.sleep(seconds)
        await chaos.kill(name, number=signal.SIGCONT)

    return act


async def kill_leader_twice(chaos: Chaos) -> None:
    """Whoever leads most is killed, and whoever leads most then, before the first is in sync again."""
    await act.kill_leader(chaos)
    await act.kill_leader(chaos)
    await in_sync(chaos, MOVE_SECONDS)


async def kill_at(chaos: Chaos, point: str) -> None:
    """The first broker that comes to this point of a compaction is killed there."""
    folder = Path(os.environ[DIRECTORY_VARIABLE])
    hit = folder / f"{point}.hit"
    (folder / point).write_text("kill")
    for _ in range(int(HIT_SECONDS / LOOK_SECONDS)):
        await asyncio.sleep(LOOK_SECONDS)
        if hit.exists():
            break
    else:
        (folder / point).unlink(missing_ok=True)
        chaos.problems.append(f"no broker came to {point} in {HIT_SECONDS:.0f} s")
        return
    chaos.say(f"process {hit.read_text()} was killed at {point}")
    hit.unlink()


def at_steps(*points: str) -> Act:
    """Whoever comes to them one after the other; nobody waits until those that were killed are back."""

    async def kill(chaos: Chaos) -> None:
        for point in points:
            await kill_at(chaos, point)
        await asyncio.sleep(2 * LOOK_SECONDS)  # the supervisor has seen it by then
        await chaos.processes_ready()

    return kill


KILL_LEADER = Fault("kill -9 leader", act.kill_leader, None)
KILL_FOLLOWER = Fault("kill -9 follower", act.kill_follower, None)
KILL_ALL = Fault("kill -9 all brokers", act.kill_all_brokers, None)
KILL_TWICE = Fault("kill -9 leader twice", kill_leader_twice, None)
KILL_CONTROLLER = Fault("kill -9 active controller", act.kill_active_controller, None)
KILL_COORDINATORS = [Fault(f"kill -9 coordinator {n}", kill_coordinator(n), None) for n in (1, 2)]
PAUSE = Fault("SIGSTOP leader", act.pause_leader(SESSION_SECONDS + 2), None)
PAUSE_FOLLOWER = Fault("SIGSTOP follower", pause_follower(3 * DELETE_RETENTION_MS / 1000), None)
AWAY = [Fault(f"follower away {seconds} s", away(seconds), None) for seconds in (10, 70)]
STOP = Fault("controlled stop", act.stop_leader, None)
ROLL = Fault("rolling restart", act.roll, None)
MOVE = Fault("reassignment", move_replica, None)

POINTS = (
    "cleaner.pass.before",
    "cleaner.map.after",
    "cleaner.step.before",
    "cleaner.step.posted",
    "cleaner.step.after",
    "cleaner.finish.before",
    "cleaner.finish.after",
)
"""Of a compaction, in their order."""
AT_STEPS = [Fault(f"kill -9 at {point}", at_steps(point), None) for point in POINTS]
AT_ALL = Fault("kill -9 at each step of a compaction", at_steps(*POINTS), None)
STEPS = Plan("steps", [*AT_STEPS, AT_ALL, *AT_STEPS], steady_seconds=1, failpoints=True)
SHORT = Plan("short", [AT_ALL, KILL_COORDINATORS[0], KILL_ALL], steady_seconds=1.5, failpoints=True)
CALM = Plan("calm", [], steady_seconds=10)


def long_plans(seed: int) -> Sequence[Plan]:
    """Everything, twice: brokers that come back at once, and brokers that are away for a while; then a mixture."""
    chance = random.Random(seed)
    every = [
        KILL_LEADER,
        KILL_FOLLOWER,
        *KILL_COORDINATORS,
        PAUSE,
        PAUSE_FOLLOWER,
        MOVE,
        KILL_CONTROLLER,
        STOP,
        KILL_ALL,
        KILL_TWICE,
        ROLL,
    ]
    return [
        CALM,
        Plan("every", every, steady_seconds=5),
        Plan("away", [*every, *AWAY], steady_seconds=5, restart=False),
        Plan("moves", [PAUSE_FOLLOWER, *[MOVE] * 10], steady_seconds=1),
        Plan("mixture", chance.choices(every, k=15), steady_seconds=2),
    ]
