"""Each fault as one coroutine: it does the harm, waits, undoes it, and returns when all processes run again."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from chaos_cluster import Chaos

Act = Callable[[Chaos], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Fault:
    """What is done, and how long a partition may be without an acknowledged write because of it."""

    name: str
    act: Act
    target_seconds: float | None
    """None: no promise but to be back."""


async def kill_leader(chaos: Chaos) -> None:
    """SIGKILL to the broker that leads most."""
    await _kill(chaos, f"broker-{(await chaos.by_leaderships())[0]}")


async def kill_follower(chaos: Chaos) -> None:
    """SIGKILL to the broker that leads least."""
    await _kill(chaos, f"broker-{(await chaos.by_leaderships())[-1]}")


async def kill_active_controller(chaos: Chaos) -> None:
    """SIGKILL to the controller that decides."""
    await _kill(chaos, await chaos.active_controller())


async def kill_leader_and_controller(chaos: Chaos) -> None:
    """SIGKILL to both at once: who would notice the one is the other."""
    await _kill(chaos, f"broker-{(await chaos.by_leaderships())[0]}", await chaos.active_controller())


async def kill_two_brokers(chaos: Chaos) -> None:
    """SIGKILL to two of three at once: nothing can be acknowledged before one is back."""
    await _kill(chaos, *(f"broker-{broker}" for broker in (await chaos.by_leaderships())[:2]))


async def kill_all_brokers(chaos: Chaos) -> None:
    """SIGKILL to all brokers at once."""
    await _kill(chaos, *(f"broker-{broker}" for broker in chaos.stubs))


async def kill_etcd(chaos: Chaos) -> None:
    """SIGKILL to the only member."""
    await _kill(chaos, "etcd-1")


def etcd_down(seconds: float) -> Act:
    """No etcd for a while."""

    async def act(chaos: Chaos) -> None:
        await _kill(chaos, "etcd-1", down_seconds=seconds)

    return act


def pause_leader(seconds: float) -> Act:
    """SIGSTOP to the broker that leads most, SIGCONT after ``seconds``, which is longer than its session."""

    async def act(chaos: Chaos) -> None:
        name = f"broker-{(await chaos.by_leaderships())[0]}"
        await chaos.kill(name, number=signal.SIGSTOP)
        await asyncio.sleep(seconds)
        await chaos.kill(name, number=signal.SIGCONT)

    return act


def pause_active_controller(seconds: float) -> Act:
    """SIGSTOP to the active controller for longer than its lease, then SIGCONT: it must change nothing."""

    async def act(chaos: Chaos) -> None:
        name = await chaos.active_controller()
        await chaos.kill(name, number=signal.SIGSTOP)
        await asyncio.sleep(seconds)
        await chaos.kill(name, number=signal.SIGCONT)

    return act


async def stop_leader(chaos: Chaos) -> None:
    """A controlled stop of the broker that leads most."""
    await _kill(chaos, f"broker-{(await chaos.by_leaderships())[0]}", number=signal.SIGTERM)


async def roll(chaos: Chaos) -> None:
    """A controlled stop and start of each broker; the next when the one before is in sync again."""
    for broker in chaos.stubs:
        await _kill(chaos, f"broker-{broker}", number=signal.SIGTERM)
        seconds = await chaos.in_sync(30)
        if seconds is None:
            chaos.problems.append(f"not in sync 30 s after the controlled restart of broker-{broker}")


def cut_leader_off(seconds: float, *, says: bool, hears: bool) -> Act:
    """The broker that leads most is cut from everybody: what it says, what it hears, or both."""

    async def act(chaos: Chaos) -> None:
        name = f"broker-{(await chaos.by_leaderships())[0]}"
        others = [other for other in chaos.net.hosts if other != name]
        await _cut(chaos, seconds, _ways([name], others, there=says, back=hears))

    return act


def cut_leader_from_controllers(seconds: float, *, says: bool = True, hears: bool = True) -> Act:
    """The broker that leads most and the controllers do not reach each other; everybody else does."""

    async def act(chaos: Chaos) -> None:
        name = f"broker-{(await chaos.by_leaderships())[0]}"
        controllers = [other for other in chaos.net.hosts if other.startswith("controller")]
        await _cut(chaos, seconds, _ways([name], controllers, there=says, back=hears))

    return act


def cut_two_brokers(seconds: float) -> Act:
    """Two brokers do not reach each other; all others reach both."""

    async def act(chaos: Chaos) -> None:
        first, second, _ = await chaos.by_leaderships()
        await _cut(chaos, seconds, _ways([f"broker-{first}"], [f"broker-{second}"]))

    return act


def cut_active_controller_off(seconds: float) -> Act:
    """The active controller reaches nobody, etcd neither."""

    async def act(chaos: Chaos) -> None:
        name = await chaos.active_controller()
        await _cut(chaos, seconds, _ways([name], [other for other in chaos.net.hosts if other != name]))

    return act


def _ways(
    these: Sequence[str], those: Sequence[str], *, there: bool = True, back: bool = True
) -> list[tuple[str, str]]:
    ways = [(one, other) for one in these for other in those] if there else []
    return ways + ([(other, one) for one in these for other in those] if back else [])


async def _cut(chaos: Chaos, seconds: float, ways: Sequence[tuple[str, str]]) -> None:
    chaos.cut(*ways)
    await asyncio.sleep(seconds)
    chaos.heal_network()


DOWN_SECONDS = 3.0


async def _kill(
    chaos: Chaos, *names: str, down_seconds: float = DOWN_SECONDS, number: signal.Signals = signal.SIGKILL
) -> None:
    await chaos.kill(*names, number=number)
    if not chaos.cluster.options.restart:
        await asyncio.sleep(down_seconds)
        await chaos.start(*names)
    await chaos.processes_ready()
