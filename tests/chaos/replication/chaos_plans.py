"""Which faults run together: ``SHORT`` in CI, ``long_plans`` for ``make chaos``."""

from __future__ import annotations

import random
from collections.abc import Sequence

import chaos_damage as harm
import chaos_faults as act
from chaos_faults import Fault
from chaos_run import Plan

SHORT_SESSION_MS = 3_000
SESSION_MS = 9_000
LAG_MS = 9_000

KILL_LEADER = Fault("kill -9 leader", act.kill_leader, 2)
KILL_FOLLOWER = Fault("kill -9 follower", act.kill_follower, 2)
KILL_CONTROLLER = Fault("kill -9 active controller", act.kill_active_controller, 2)
KILL_BOTH = Fault("kill -9 leader, controller", act.kill_leader_and_controller, 5)
KILL_TWO = Fault("kill -9 two brokers", act.kill_two_brokers, None)
KILL_ALL = Fault("kill -9 all brokers", act.kill_all_brokers, None)
KILL_ETCD = Fault("kill -9 etcd", act.kill_etcd, 0.5)
ETCD_DOWN = Fault("etcd down 20 s", act.etcd_down(20), 0.5)
STOP_LEADER = Fault("controlled stop", act.stop_leader, 0.5)
ROLL = Fault("rolling restart", act.roll, 0.5)


def pause(session_ms: int) -> Fault:
    """The leader stands still for longer than its session."""
    seconds = session_ms / 1000
    return Fault("SIGSTOP leader", act.pause_leader(seconds + 4), seconds + 2)


def pause_controller(session_ms: int) -> Fault:
    """The active controller stands still for longer than its lease; brokers and data do not wait for it."""
    return Fault("SIGSTOP active controller", act.pause_active_controller(session_ms / 1000 + 4), 0.5)


def cuts(session_ms: int, lag_ms: int) -> list[Fault]:
    """Every way to cut a leader off, for longer than its session; and two brokers from each other."""
    session, lag = session_ms / 1000, lag_ms / 1000
    down = session + 4
    return [
        Fault("cut leader both ways", act.cut_leader_off(down, says=True, hears=True), session + 2),
        Fault("cut what leader says", act.cut_leader_off(down, says=True, hears=False), session + 2),
        Fault("cut what leader hears", act.cut_leader_off(down, says=False, hears=True), session + 2),
        Fault("cut leader - controllers", act.cut_leader_from_controllers(down), 2),
        Fault("cut two brokers", act.cut_two_brokers(lag + 4), lag + 2),
        Fault("cut active controller", act.cut_active_controller_off(down), 0.5),
    ]


DAMAGES = [
    Fault("bit flip in WAL", harm.damage("*.log", harm.flip_bit), 2),
    Fault("WAL cut short", harm.damage("*.log", harm.cut_short), 2),
    Fault("wiped data directory", harm.wipe, 2),
]
SEALED = [
    Fault("bit flip in SST", harm.damage("*.sst", harm.flip_bit, clean=True, finds=False), 2),
    Fault("bit flip in blob file", harm.damage("*.blob", harm.flip_bit, clean=True, finds=False), 2),
    Fault("SST cut short", harm.damage("*.sst", harm.cut_short, clean=True), 2),
    Fault("MANIFEST cut short", harm.damage("MANIFEST-*", harm.cut_short, clean=True), 2),
]
DISKS = [
    Fault("disk below its reserve", harm.fill_disk(2, 12, leave=8 << 20), 5.0),
    Fault("disk full", harm.fill_disk(2, 12), None),
]
KILLS = [KILL_LEADER, KILL_FOLLOWER, KILL_CONTROLLER, KILL_ETCD]

SHORT: Sequence[Plan] = [
    Plan("kills", [*KILLS, pause(SHORT_SESSION_MS), STOP_LEADER, KILL_ALL], restart=True, session_ms=SHORT_SESSION_MS),
    Plan("cuts", cuts(SHORT_SESSION_MS, 4_000)[:4], session_ms=SHORT_SESSION_MS, cuts=True),
    Plan("damage", DAMAGES),
]


def long_plans(seed: int) -> Sequence[Plan]:
    """Everything, with the session that clusters have by default, and a mixture that the seed draws."""
    chance = random.Random(seed)
    stops = [
        ETCD_DOWN,
        KILL_BOTH,
        KILL_TWO,
        pause(SESSION_MS),
        pause_controller(SESSION_MS),
        STOP_LEADER,
        ROLL,
        KILL_ALL,
    ]
    mixture = [*KILLS, KILL_BOTH, KILL_TWO, KILL_ALL, STOP_LEADER, pause(SHORT_SESSION_MS)]
    lag = {"replica.lag.time.max.ms": str(LAG_MS)}
    return [
        Plan("kills", [*KILLS, *stops], session_ms=SESSION_MS),
        Plan("unattended", [KILL_ALL, KILL_LEADER, KILL_ALL], restart=True, session_ms=SESSION_MS),
        Plan("cuts", cuts(SESSION_MS, LAG_MS), session_ms=SESSION_MS, settings=lag, cuts=True),
        Plan("damage", DAMAGES),
        Plan("sealed-damage", SEALED, value_bytes=3_000),
        Plan("disk", DISKS, settings=lag, small_disk=2),
        Plan("mixture", chance.choices(mixture, k=12), session_ms=SHORT_SESSION_MS),
    ]
