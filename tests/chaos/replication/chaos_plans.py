"""Which faults run together, in CI and in the long form."""

from __future__ import annotations

import chaos_damage as harm
import chaos_faults as act
from chaos_faults import Fault
from chaos_run import Plan

SHORT_SESSION_MS = 3_000

KILL_LEADER = Fault("kill -9 leader", act.kill_leader, 2)
KILL_FOLLOWER = Fault("kill -9 follower", act.kill_follower, 2)
KILL_CONTROLLER = Fault("kill -9 active controller", act.kill_active_controller, 2)
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


CUTS = Plan(
    "cuts",
    cuts(SHORT_SESSION_MS, 4_000),
    session_ms=SHORT_SESSION_MS,
    settings={"replica.lag.time.max.ms": "4000"},
    cuts=True,
)

DAMAGE = Plan(
    "damage",
    [
        Fault("bit flip in WAL", harm.damage("*.log", harm.flip_bit), 2),
        Fault("WAL cut short", harm.damage("*.log", harm.cut_short), 2),
        Fault("wiped data directory", harm.wipe, 2),
    ],
)

SEALED_DAMAGE = Plan(
    "sealed-damage",
    [
        Fault("bit flip in SST", harm.damage("*.sst", harm.flip_bit, clean=True, finds=False), 2),
        Fault("bit flip in blob file", harm.damage("*.blob", harm.flip_bit, clean=True, finds=False), 2),
    ],
    value_bytes=3_000,
)

DISK_FULL = Plan(
    "disk-full",
    [
        Fault("disk full", harm.fill_disk(2, 12), None),
        Fault("disk below its reserve", harm.fill_disk(2, 12, leave=8 << 20), None),
    ],
    settings={"replica.lag.time.max.ms": "4000"},
    small_disk=2,
)

KILLS = Plan(
    "kills",
    [KILL_LEADER, KILL_FOLLOWER, KILL_CONTROLLER, KILL_ETCD, pause(SHORT_SESSION_MS), STOP_LEADER, KILL_ALL],
    restart=True,
    session_ms=SHORT_SESSION_MS,
)
