"""Ports: claimed once, kept, and given back."""

from __future__ import annotations

import socket

import pytest

from headrace_cli.local.etcd_peers import PLAIN
from headrace_cli.local.failures import LocalClusterFailed
from headrace_cli.local.plan import FIRST_PORTS, ClusterOptions, slots
from headrace_cli.local.ports import LOWEST, PortClaims, choose_ports, ports_of_a_copy


@pytest.fixture
def claims():
    made = PortClaims("test")
    yield made
    made.close()


def test_two_clusters_never_claim_the_same_port(claims: PortClaims) -> None:
    other = PortClaims("test")
    try:
        mine = [claims.claim_free() for _ in range(20)]
        theirs = [other.claim_free() for _ in range(20)]
        assert len({*mine, *theirs}) == 40
        assert min(mine) >= LOWEST
        assert not other.claim(mine[0])
        claims.close()
        assert other.claim(mine[0])
    finally:
        other.close()


def test_a_port_on_which_somebody_listens_is_not_claimed(claims: PortClaims) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert not claims.claim(listener.getsockname()[1])


def test_the_ports_of_the_last_start_are_used_again(claims: PortClaims) -> None:
    options = ClusterOptions()
    first, notes = choose_ports(options, {}, claims)
    assert set(first) == set(slots(options))
    assert notes == []
    claims.close()
    assert choose_ports(options, first, claims) == (first, [])


def test_a_saved_port_that_is_taken_is_replaced_and_that_is_said(claims: PortClaims) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        ports, notes = choose_ports(ClusterOptions(), {"broker-2": taken}, claims)
        assert ports["broker-2"] != taken
        assert notes == [f"broker-2 had port {taken}, which is in use now; it gets another"]


def test_a_port_that_was_asked_for_is_used_or_refused(claims: PortClaims) -> None:
    wanted = claims.claim_free()
    claims.close()
    ports, _ = choose_ports(ClusterOptions(ports={"broker-1": wanted}), {"broker-1": 12_345}, claims)
    assert ports["broker-1"] == wanted
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        with pytest.raises(LocalClusterFailed, match="is in use; give another"):
            choose_ports(ClusterOptions(ports={"admin-1.http": taken}), {}, claims)


def test_a_copy_takes_no_port_of_its_original_that_is_down(claims: PortClaims) -> None:
    options = ClusterOptions(connect=True)
    free = claims.claim_free()
    claims.close()
    beginning = PortClaims("test")  # looks at the same port first
    try:
        ports, notes = choose_ports(options, {}, beginning, foreign=[*FIRST_PORTS.values(), free])
    finally:
        beginning.close()
    assert not {*FIRST_PORTS.values(), free} & set(ports.values())
    assert notes == []


def test_a_copy_keeps_the_ports_by_which_members_of_an_etcd_quorum_know_each_other() -> None:
    saved = {"broker-1": 1, "etcd-1": 2, "etcd-1.peer": 3, f"etcd-2{PLAIN}": 4}
    assert ports_of_a_copy(ClusterOptions(), saved) == {}
    assert ports_of_a_copy(ClusterOptions(etcd_members=3), saved) == {"etcd-1.peer": 3, f"etcd-2{PLAIN}": 4}


def test_members_of_an_etcd_quorum_keep_their_ports_or_do_not_start(claims: PortClaims) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        with pytest.raises(LocalClusterFailed, match="cannot change"):
            choose_ports(ClusterOptions(etcd_members=3), {"etcd-2.peer": taken}, claims)


def test_members_of_an_etcd_quorum_get_no_other_port_by_an_option(claims: PortClaims) -> None:
    options = ClusterOptions(etcd_members=3, ports={"etcd-2.peer": 12_345})
    with pytest.raises(LocalClusterFailed, match=r"has port 12346.*start without --port etcd-2\.peer=12345"):
        choose_ports(options, {"etcd-2.peer": 12_346}, claims)
    moves, _ = choose_ports(options, {"etcd-2.peer": 12_346, f"etcd-2{PLAIN}": 12_347}, claims)
    assert moves["etcd-2.peer"] == 12_345
