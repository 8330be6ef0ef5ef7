"""
Three real etcds whose starts the program decides: formed, one replaced after its volume is lost, all killed at once.
"""

from __future__ import annotations

import asyncio
import http.client
import json

import pytest
from services.controller.tests.kit.etcd_trio import Trio

from headrace_controller.etcd_member.adapters.http_rendezvous import HttpLookout
from headrace_controller.etcd_member.core.facts import Phase
from headrace_controller.etcd_member.core.sights import Running

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


async def test_formed_one_replaced_and_all_killed_at_once(trio: Trio) -> None:
    await trio.bring_up(2, 0, 1)
    first = await trio.members()
    assert sorted(first) == ["m-0", "m-1", "m-2"]
    for number in range(3):
        await trio.put(number, b"key%d" % number)

    trio.kill(1)
    trio.lose(1)
    await trio.bring_up(1)
    second = await trio.members()
    assert {name: m.id for name, m in second.items() if name != "m-1"} == {
        name: m.id for name, m in first.items() if name != "m-1"
    }
    assert second["m-1"].id != first["m-1"].id
    assert trio.facts(1).phase is Phase.ADDING
    assert await trio.keys(1) == [b"key0", b"key1", b"key2"]

    for number in range(3):
        trio.kill(number)
    await trio.bring_up(0, 1, 2)
    assert await trio.keys(1) == [b"key0", b"key1", b"key2"]
    assert [trio.facts(number).phase for number in range(3)] == [Phase.STARTED] * 3
    assert {m.id for m in (await trio.members()).values()} == {m.id for m in second.values()}


async def test_a_member_that_agreed_and_died_joins_those_that_started(trio: Trio) -> None:
    """It knows the cluster by its id: so ids are reckoned as etcd reckons them."""
    for number in range(3):
        trio.decide(number)
    await trio.decided(0)
    trio.kill(2)  # before or after it has seen that all agreed: either way it was promised
    await trio.decided(1) if _ended(trio, 1) else trio.kill(1)
    trio.run_etcd(0)
    await trio.bring_up(1, 2)
    members = await trio.members()
    roster = trio.facts(0).promises[-1]
    assert {m.id for m in members.values()} == {roster.member_id(name) for name in members}
    sight = await HttpLookout("headrace-etcd").look(trio.peers[2])
    assert isinstance(sight, Running)
    assert sight.cluster_id == roster.cluster_id


def _ended(trio: Trio, number: int) -> bool:
    return trio.processes[number].poll() is not None


async def test_a_lost_member_waits_while_the_others_are_down_and_says_for_whom(trio: Trio) -> None:
    await trio.bring_up(0, 1, 2)
    await trio.put(0, b"key")
    for number in range(3):
        trio.kill(number)
    trio.lose(0)
    trio.decide(0)
    await trio.until_said(0, "not all others were seen; missing: m-1")
    await trio.bring_up(1)
    await trio.until_said(0, "a cluster runs (m-1)")
    assert trio.processes[0].poll() is None
    await trio.bring_up(2)
    await trio.decided(0)
    trio.run_etcd(0)
    assert await trio.keys(0) == [b"key"]


async def test_a_web_page_gets_nothing_from_a_member(trio: Trio) -> None:
    trio.size = 1
    await trio.bring_up(0)
    await trio.put(0, b"key")

    def asked(path: str) -> int:
        connection = http.client.HTTPConnection(trio.clients[0].host, trio.clients[0].port, timeout=20)
        everything = json.dumps({"key": "AA==", "range_end": "AA=="})
        connection.request("POST", path, everything, {"Origin": "https://attacker.example"})
        with connection.getresponse() as answer:
            return answer.status

    for path in ("/v3/kv/range", "/v3/kv/deleterange"):
        assert await asyncio.to_thread(asked, path) == 404
    assert await trio.keys(0) == [b"key"]


async def test_one_grows_to_three(trio: Trio) -> None:
    """From one to two there is no quorum between the change and the start of the second."""
    trio.size = 1
    await trio.bring_up(0)
    await trio.put(0, b"key")
    trio.size = 3
    await trio.bring_up(1, 2)
    assert (await trio.members()).keys() == {"m-0", "m-1", "m-2"}
    trio.kill(0)
    await trio.put(1, b"key-2")
    assert await trio.keys(2) == [b"key", b"key-2"]


async def test_a_second_member_that_dies_before_its_first_start_is_started_all_the_same(trio: Trio) -> None:
    trio.size = 1
    await trio.bring_up(0)
    trio.size = 2
    trio.decide(1)
    await trio.decided(1)  # it is added, and its pod dies before etcd was there
    (trio.top / "etcd-1.yaml").unlink()
    await trio.bring_up(1)
    await trio.put(1, b"key")
    assert (await trio.members()).keys() == {"m-0", "m-1"}
