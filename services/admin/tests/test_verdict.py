"""What the cluster is called, case by case, and the one line that says what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from libs.common.tests.kit.clock import FakeClock
from libs.common.tests.kit.issuer import SigningIssuer

from headrace_admin.core.guard import GUARDED, Guard, guard_of
from headrace_admin.core.status import Behind, State, Status, find_old_issuers, observe
from headrace_admin.core.verdict import verdict
from headrace_admin.engine.absences import Absences
from headrace_common.core.access.api_keys import ApiKey, KeyId
from headrace_common.core.access.principal import BREAKGLASS
from headrace_common.core.access.roles import SUPERUSER, Binding
from headrace_common.core.access.rows import Mode, View
from headrace_common.core.access.state import Access
from headrace_common.core.ids import NO_NODE, Endpoint, NodeId, PartitionId, TopicId
from headrace_common.core.image import (
    EMPTY_IMAGE,
    INTERNAL_TOPICS,
    ClusterImage,
    Node,
    NodeKey,
    Partition,
    Role,
    Shard,
    ShardKey,
    ShardKind,
    Topic,
)

ID = TopicId(b"t" * 16)
NOON_MS = 1_700_000_000_000 // 86_400_000 * 86_400_000 + (12 * 3600 + 60) * 1_000


def broker(n: int, **how: Any) -> Node:
    key = NodeKey(Role.BROKER, NodeId(n))
    return Node(key, Endpoint("b", n), bytes(16), n, **({"fenced": False} | how))


def partition(n: int, replicas: Sequence[int], isr: Sequence[int], leader: int | None = None, **how: Any) -> Partition:
    led = NodeId(leader if leader is not None else isr[0] if isr else NO_NODE)
    return Partition(PartitionId(ID, n), tuple(map(NodeId, replicas)), tuple(map(NodeId, isr)), led, 0, 0, **how)


def image(nodes: Sequence[Node], partitions: Sequence[Partition], **configs: str) -> ClusterImage:
    topic = Topic("flights", ID, len(partitions), {k.replace("_", "."): v for k, v in configs.items()})
    return replace(
        EMPTY_IMAGE,
        cluster_id="c",
        nodes={n.key: n for n in nodes},
        topics={ID: topic},
        topic_ids={"flights": ID},
        partitions={p.id: p for p in partitions},
    )


def seen(found: ClusterImage, controller: int | None = 1, reachable: bool = True, **away: int) -> Status:
    since = {NodeId(int(name[1:])): ms for name, ms in away.items()}
    active = None if controller is None else NodeId(controller)
    return observe(found, controller=active, store_reachable=reachable, away_since_ms=since)


THREE = [broker(1), broker(2), broker(3)]
TWO_AND_ONE_AWAY = [broker(1), broker(2, fenced=True), broker(3)]
WELL = [partition(n, (1, 2, 3), (1, 2, 3)) for n in range(4)]
WITHOUT_2 = [partition(n, (1, 2, 3), (1, 3)) for n in range(4)]
ONLY_1 = [partition(0, (1, 2, 3), (1,))]


def test_a_cluster_in_which_all_is_in_sync_is_healthy() -> None:
    assert verdict(seen(image(THREE, WELL))) == (State.HEALTHY, "healthy: 3 brokers, 1 topic, 4 partitions")


def test_moves_and_drained_brokers_are_no_harm() -> None:
    moving = partition(0, (4, 1), (1,), 1, adding=(NodeId(4),), removing=(NodeId(1),))
    nodes = [*THREE, broker(4, drained=True)]
    state, said = verdict(seen(image(nodes, [moving])))
    assert state is State.HEALTHY
    assert "1 partition on the move" in said
    assert "broker 4 is drained, `headrace broker undrain 4` ends that" in said


def test_a_broker_away_that_others_stand_in_for_is_degraded_and_says_since_when_and_what_to_do() -> None:
    state, said = verdict(seen(image(TWO_AND_ONE_AWAY, WITHOUT_2), b2=NOON_MS))
    assert state is State.DEGRADED
    assert said == (
        "degraded: 4 partitions have 2 of 3 replicas in sync because broker 2 is away since 12:01:00 UTC; nothing is "
        "lost; it catches up by itself when broker 2 returns; if not, `headrace broker decommission 2` gives its "
        "replicas to others"
    )


def test_an_absence_that_nobody_saw_begin_has_no_time() -> None:
    _, said = verdict(seen(image(TWO_AND_ONE_AWAY, WITHOUT_2)))
    assert "because broker 2 is away; nothing is lost" in said


def test_a_replica_that_is_behind_although_its_broker_is_there() -> None:
    state, said = verdict(seen(image(THREE, [partition(0, (1, 2, 3), (1, 3))])))
    assert state is State.DEGRADED
    assert said.startswith("degraded: 1 partition has 2 of 3 replicas in sync because broker 2 is behind; nothing is")


def test_a_replica_on_a_broker_that_is_not_registered() -> None:
    _, said = verdict(seen(image(THREE, [partition(0, (1, 3, 9), (1, 3))])))
    assert "because broker 9 is not registered any more" in said
    assert "headrace cluster rebalance --execute" in said


def test_a_broker_away_that_holds_nothing() -> None:
    state, said = verdict(seen(image([*THREE, broker(4, fenced=True)], WELL)))
    assert state is State.DEGRADED
    assert said.startswith("degraded: broker 4 is away; nothing depends on it; start it, or remove it with")


def test_a_broker_away_that_a_move_waits_for() -> None:
    moving = partition(4, (4, 1, 2), (1, 2), 1, adding=(NodeId(4),), removing=(NodeId(2),))
    state, said = verdict(seen(image([*THREE, broker(4, fenced=True)], [*WELL, moving]), b4=NOON_MS))
    assert state is State.DEGRADED
    assert said == (
        "degraded: broker 4 is away since 12:01:00 UTC; 1 partition on the move (flights-4) waits for broker 4; start "
        "it, or `headrace partition cancel flights-4` goes back to the replicas before"
    )
    assert "nothing depends" not in said


def test_a_broker_away_that_a_move_only_takes_replicas_from_is_not_waited_for() -> None:
    moving = partition(4, (1, 2, 4), (1, 2), 1, removing=(NodeId(4),))
    assert "on the move" not in verdict(seen(image([*THREE, broker(4, fenced=True)], [*WELL, moving])))[1]


def test_a_move_that_waits_is_told_beside_what_is_behind() -> None:
    moving = partition(4, (2, 1), (1,), 1, adding=(NodeId(2),))
    said = verdict(seen(image(TWO_AND_ONE_AWAY, [*WITHOUT_2, moving])))[1]
    assert said.count("is away") == 1
    assert "1 partition on the move (flights-4) waits for broker 2; start it" in said


def test_a_move_to_a_broker_that_is_gone_for_good() -> None:
    moving = partition(4, (9, 1), (1,), 1, adding=(NodeId(9),))
    said = verdict(seen(image(THREE, [*WELL, moving])))[1]
    assert "1 partition on the move (flights-4) waits for broker 9, which is not registered" in said


def test_too_few_in_sync_refuses_writes_but_loses_nothing() -> None:
    nodes = [broker(1), broker(2, fenced=True), broker(3, fenced=True)]
    state, said = verdict(seen(image(nodes, ONLY_1), b2=NOON_MS, b3=NOON_MS + 5_000))
    assert state is State.UNAVAILABLE
    assert said == (
        "unavailable: 1 partition (flights-0) refuses writes with acks=all: 1 in sync of 2 that min.insync.replicas "
        "asks for because brokers 2, 3 are away since 12:01:05 UTC; reads go on and nothing is lost; they catch up by "
        "themselves when brokers 2, 3 return; if not, `headrace broker decommission 2` gives its replicas to others"
    )


def test_more_replicas_in_sync_wanted_than_the_topic_has_is_no_trouble() -> None:
    single = image([broker(1)], [partition(0, (1,), (1,))], min_insync_replicas="3")
    assert verdict(seen(single))[0] is State.HEALTHY


def test_the_election_that_helps_is_named_where_one_that_was_eligible_lives() -> None:
    lost = partition(0, (2, 1), (), NO_NODE, elr=(NodeId(2),), last_known_elr=(NodeId(1),))
    _, said = verdict(seen(image(TWO_AND_ONE_AWAY, [lost])))
    assert "has no leader because broker 2 is away; start it, and" in said
    assert "`headrace partition elect flights-0 --without-missing --yes` gives up what only it had" in said


def test_nobody_leads_because_the_last_in_sync_is_away() -> None:
    lost = partition(0, (2, 1), (), NO_NODE, elr=(NodeId(2),))
    state, said = verdict(seen(image(TWO_AND_ONE_AWAY, [lost]), b2=NOON_MS))
    assert state is State.UNAVAILABLE
    assert said == (
        "unavailable: 1 partition (flights-0) has no leader because broker 2 is away since 12:01:00 UTC; start it, and "
        "what was acknowledged is served again; if it will not come back, `headrace partition elect flights-0 "
        "--unclean --yes` gives up what only it had"
    )


def test_where_another_that_was_eligible_lives_only_the_missing_are_given_up() -> None:
    lost = partition(0, (2, 1), (), NO_NODE, last_known_elr=(NodeId(2), NodeId(1)))
    _, said = verdict(seen(image(TWO_AND_ONE_AWAY, [lost])))
    assert "`headrace partition elect flights-0 --without-missing --yes` gives up what only it had" in said


def test_nobody_leads_because_the_only_copy_is_away() -> None:
    _, said = verdict(seen(image(TWO_AND_ONE_AWAY, [partition(0, (2,), (), NO_NODE, elr=(NodeId(2),))])))
    assert said.endswith("is served again; no other broker has a copy")


def test_nobody_leads_although_all_are_there() -> None:
    state, said = verdict(seen(image(THREE, [partition(0, (2, 1), (), NO_NODE)])))
    assert state is State.UNAVAILABLE
    assert "damaged or incomplete" in said
    assert "`headrace partition elect flights-0 --unclean --yes`" in said


def test_what_else_is_wrong_follows_the_worst() -> None:
    lost = partition(4, (2, 1), (), NO_NODE, elr=(NodeId(2),))
    state, said = verdict(seen(image(TWO_AND_ONE_AWAY, [*WITHOUT_2, lost]), controller=None, b2=NOON_MS))
    assert state is State.UNAVAILABLE
    assert said.startswith("unavailable: 1 partition (flights-4) has no leader because broker 2 is away")
    assert "; 4 partitions have 2 of 3 replicas in sync; no controller is active" in said


@pytest.mark.parametrize("nodes", [[], [broker(1, fenced=True), broker(2, fenced=True)]])
def test_no_broker_at_all(nodes: list[Node]) -> None:
    state, said = verdict(seen(image(nodes, [])))
    assert state is State.UNAVAILABLE
    assert "start" in said


@pytest.mark.parametrize("controller", [1, None])
def test_what_is_led_is_not_said_to_go_on_where_nobody_is_replaced_who_dies(controller: int | None) -> None:
    _, said = verdict(seen(image(THREE, WELL), controller=controller, reachable=False))
    assert "what is led goes on unless a broker has died since" in said


def test_without_controller_or_etcd_what_is_led_goes_on() -> None:
    state, said = verdict(seen(image(THREE, WELL), reachable=False))
    assert (state, "etcd cannot be reached" in said, "what is led goes on" in said) == (State.DEGRADED, True, True)
    state, said = verdict(seen(image(THREE, WELL), controller=None, reachable=False))
    assert (state, "no controller is active" in said, "etcd" in said) == (State.DEGRADED, True, False)


def test_a_leader_elected_by_command_stays_a_warning() -> None:
    state, said = verdict(seen(image(TWO_AND_ONE_AWAY, [partition(0, (1, 2), (1,), recovering=True)])))
    assert state is State.DEGRADED
    assert "nothing is lost" not in said
    assert "may have lost committed records" in said


def coordinator(n: int, **how: Any) -> Node:
    return Node(NodeKey(Role.COORDINATOR, NodeId(n)), Endpoint("c", n), bytes(16), n, **({"fenced": False} | how))


def with_shards(nodes: Sequence[Node], owners: Sequence[int], transactions: Sequence[int] = ()) -> ClusterImage:
    found = image([*THREE, *nodes], WELL)
    for kind, of in ((ShardKind.GROUPS, owners), (ShardKind.TRANSACTIONS, transactions)):
        name = INTERNAL_TOPICS[kind]
        topic = Topic(name, TopicId(name.encode()[:16].ljust(16, b"o")), len(of), internal=True)
        shards = [Shard(ShardKey(kind, n), NodeId(owner), 1) for n, owner in enumerate(of)]
        found = replace(
            found,
            topics={**found.topics, topic.topic_id: topic},
            topic_ids={**found.topic_ids, topic.name: topic.topic_id},
            shards={**found.shards, **{s.key: s for s in shards}},
        )
    return found


def test_transactions_without_a_coordinator_are_not_served() -> None:
    state, said = verdict(seen(with_shards([coordinator(1, fenced=True)], [], [1, NO_NODE])))
    assert state is State.UNAVAILABLE
    assert "2 of 2 shards of transactions have no coordinator: coordinator 1 is away; start one; they can" in said
    assert "consumer groups" not in said
    _, said = verdict(seen(with_shards([], [NO_NODE], [NO_NODE])))
    assert said.count("none is registered") == 1
    assert said.index("consumer groups") < said.index("of transactions has no coordinator; they can neither begin")
    status = seen(with_shards([coordinator(1)], [1, 1], [1, NO_NODE]))
    assert (status.shards, status.unowned_shards) == (2, 0)
    assert (status.transaction_shards, status.unowned_transaction_shards) == (2, 1)


def test_groups_without_a_coordinator_are_not_served() -> None:
    state, said = verdict(seen(with_shards([coordinator(1, fenced=True), coordinator(2)], [1, 2, 1, NO_NODE])))
    assert state is State.UNAVAILABLE
    assert "3 of 4 shards of consumer groups have no coordinator: coordinator 1 is away; start one" in said
    assert "what was committed is kept" in said
    _, said = verdict(seen(with_shards([], [NO_NODE])))
    assert "1 of 1 shard of consumer groups has no coordinator: none is registered; start one" in said
    _, said = verdict(seen(with_shards([coordinator(1)], [NO_NODE])))
    assert "look into its log" in said


def test_groups_with_a_coordinator_are_no_trouble_and_so_are_coordinators_without_groups() -> None:
    assert verdict(seen(with_shards([coordinator(1)], [1, 1])))[0] is State.HEALTHY
    away = image([*THREE, coordinator(1, fenced=True)], WELL)
    assert verdict(seen(away))[0] is State.HEALTHY
    status = seen(with_shards([coordinator(1), coordinator(2, fenced=True)], [1, 2]))
    assert ([n.key.id for n in status.coordinators], status.shards, status.unowned_shards) == ([1, 2], 2, 1)


def test_every_verdict_is_one_line() -> None:
    many = [partition(n, (1, 2, 3), (), NO_NODE) for n in range(500)]
    _, said = verdict(seen(image(TWO_AND_ONE_AWAY, many)))
    assert "500 partitions (flights-0, flights-1, flights-2, ...) have no leader" in said
    assert "\n" not in said
    assert len(said) < 600


def test_counts_and_loads() -> None:
    moving = partition(3, (4, 1, 2), (1, 2), 1, adding=(NodeId(4),))
    status = seen(image([*TWO_AND_ONE_AWAY, broker(4)], [*WITHOUT_2[:2], partition(2, (2,), (), NO_NODE), moving]))
    assert [(b.node.key.id, b.leaders, b.replicas, b.in_sync) for b in status.brokers] == [
        (1, 3, 3, 3),
        (2, 0, 4, 1),
        (3, 0, 2, 2),
        (4, 0, 1, 0),
    ]
    assert (len(status.offline), len(status.under_replicated), status.reassigning) == (1, 3, 1)
    assert status.not_preferred == 1
    assert [str(t) for t in status.troubles] == ["flights-2", "flights-0", "flights-1"]


def test_absences_are_noted_when_seen_and_forgotten_at_return() -> None:
    clock = FakeClock(NOON_MS)
    absences = Absences(clock)
    absences.look(image(TWO_AND_ONE_AWAY, []))
    assert absences.since_ms == {}, "it was away before anybody looked"
    absences.look(image(THREE, []))
    absences.look(image(TWO_AND_ONE_AWAY, []))
    clock.jump_wall(5_000)
    absences.look(image(TWO_AND_ONE_AWAY, []))
    assert absences.since_ms == {2: NOON_MS}
    absences.look(image(THREE, []))
    assert absences.since_ms == {}


DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("age_days", "said"),
    [
        (7, "and 30 days after that its tokens are refused"),
        (30, "and its tokens are refused"),
    ],
)
def test_an_issuer_whose_keys_nobody_could_read_for_a_week_is_named(age_days: int, said: str) -> None:
    known = SigningIssuer().all
    now_ms = known["idp"].confirmed_ms + age_days * DAY_MS
    assert find_old_issuers(known, known["idp"].confirmed_ms + 7 * DAY_MS - 1) == ()
    status = replace(seen(image(THREE, WELL)), old_issuers=find_old_issuers(known, now_ms))
    state, line = verdict(status)
    assert state is State.DEGRADED
    assert line.startswith("degraded: nobody could read the keys of issuer idp since 2026-09-21T14:13:20.000Z, ")
    assert said in line


def test_nodes_that_changes_of_access_do_not_reach_are_named() -> None:
    behind = tuple(Behind(NodeKey(Role.BROKER, NodeId(n)), 1_790_000_054_000 + n) for n in range(1, 6))
    state, line = verdict(replace(seen(image(THREE, WELL)), behind=behind[1:2]))
    assert state is State.DEGRADED
    assert line.startswith("degraded: changes of access do not reach broker 2 since 2026-09-21T14:14:14.002Z: ")
    assert "start it again" in line
    _, line = verdict(replace(seen(image(THREE, WELL)), behind=behind))
    assert "broker 3 since 2026-09-21T14:14:14.003Z and 2 more: " in line


UNTIL_MS = 1_790_000_054_000
OPENED = [
    (Guard(Mode.OPEN), "it is open: whoever reaches it may do everything; `headrace access mode permissive` "),
    (Guard(Mode.PERMISSIVE), "it is permissive: what rules refuse is written down and done; `headrace access report`"),
    (
        Guard(breakglass=True, breakglass_until_ms=UNTIL_MS),
        "break-glass is in use: User:breakglass may do everything until 2026-09-21T14:14:14.000Z; `python -m headrace_",
    ),
    (Guard(breakglass=True), "break-glass is in use: User:breakglass may do everything; `python -m headrace_"),
    (Guard(vouched_full=True), "access_vouched is full: a broker that was broken into can make itself administrator; "),
]


@pytest.mark.parametrize(("guard", "said"), OPENED)
@pytest.mark.parametrize(
    ("found", "state"),
    [
        (image(THREE, WELL), State.HEALTHY),
        (image(TWO_AND_ONE_AWAY, WITHOUT_2), State.DEGRADED),
        (image(TWO_AND_ONE_AWAY, [partition(0, (2,), ())]), State.UNAVAILABLE),
    ],
    ids=["healthy", "degraded", "unavailable"],
)
def test_what_is_less_guarded_than_it_can_be_is_said_whatever_the_state(
    found: ClusterImage, state: State, guard: Guard, said: str
) -> None:
    became, line = verdict(replace(seen(found), guard=guard))
    assert became is state, "nobody feels it, so it is no other state"
    assert line.startswith(f"{state.value}: ")
    assert f"; {said}" in line
    assert said not in verdict(seen(found))[1]


def test_how_a_cluster_is_guarded_is_in_its_rows() -> None:
    bound = Access(1, bindings={BREAKGLASS: frozenset({Binding(BREAKGLASS, SUPERUSER)})})
    ids = [KeyId(letter * 14) for letter in "abc"]
    keys = {id: ApiKey(id, BREAKGLASS, bytes(32), 1, UNTIL_MS - n) for n, id in enumerate(ids)}
    assert guard_of(View(Mode.CLOSED)) == GUARDED
    assert guard_of(View(Mode.CLOSED, bound, keys)) == Guard(breakglass=True, breakglass_until_ms=UNTIL_MS)
    assert guard_of(View(Mode.PERMISSIVE, vouched_full=True)) == Guard(Mode.PERMISSIVE, vouched_full=True)
