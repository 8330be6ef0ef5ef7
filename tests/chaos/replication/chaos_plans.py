"""Which faults run together, in CI and in the long form."""

from __future__ import annotations

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


KILLS = Plan(
    "kills",
    [KILL_LEADER, KILL_FOLLOWER, KILL_CONTROLLER, KILL_ETCD, pause(SHORT_SESSION_MS), STOP_LEADER, KILL_ALL],
    restart=True,
    session_ms=SHORT_SESSION_MS,
)
