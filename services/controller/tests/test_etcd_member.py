"""How an etcd member starts: dialogues with the decisions, its configuration, its facts, and what peers answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from libs.common.tests.kit.authority import Authority
from libs.common.tests.kit.ports import free_port

from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.certificates import Leaf
from headrace_common.runtime.env import load_settings
from headrace_common.runtime.tls_config import TlsFiles
from headrace_controller.etcd_member.adapters.http_rendezvous import PATH, Doorplate, HttpLookout
from headrace_controller.etcd_member.adapters.member_volume import MemberVolume
from headrace_controller.etcd_member.config import EtcdMemberConfig
from headrace_controller.etcd_member.core.etcd_file import Founding, render
from headrace_controller.etcd_member.core.facts import Facts, Phase, UnreadableFacts, decode, encode
from headrace_controller.etcd_member.core.moving import elsewhere, hidden, is_alone, is_known, must_move
from headrace_controller.etcd_member.core.rendezvous import (
    Join,
    Promise,
    Renew,
    Site,
    StartNew,
    Wait,
    next_step,
)
from headrace_controller.etcd_member.core.replacement import (
    Add,
    Remove,
    StartExisting,
    behind,
    initial_cluster,
    next_change,
    second_of_two,
)
from headrace_controller.etcd_member.core.roster import Enrolled, Peer, Roster
from headrace_controller.etcd_member.core.sights import Member, Report, Running, Sight, Silent, report_of
from headrace_controller.etcd_member.main import SETTLE_MS, etcd_settings, settle_ms

A, B, C = (Peer(name, f"http://{name}:2380") for name in "abc")
SITE = Site(A, (B, C), "etcd")
EMPTY = Facts("a", "va")


def roster(va: str = "va", vb: str = "vb", vc: str = "vc") -> Roster:
    return Roster("etcd", (Enrolled(A, va), Enrolled(B, vb), Enrolled(C, vc)))


def empty(peer: Peer, promised: Roster | None = None, decided: bool = False, volume: str | None = None) -> Report:
    return Report("etcd", peer.name, volume or f"v{peer.name}", promised.token if promised else None, decided)


def running(formed: Roster, *started: str) -> Running:
    members = (
        Member(formed.member_id(m.peer.name), m.peer.name, (m.peer.url,), ("http://c",) * (m.peer.name in started))
        for m in formed.members
    )
    return Running(formed.cluster_id, tuple(members))


NOBODY: Sight = Silent("Connection refused")
R = roster()


# --- a first install --------------------------------------------------------------------------------------------


def test_all_are_there_all_agree_all_start() -> None:
    assert next_step(SITE, EMPTY, {"b": empty(B), "c": empty(C)}) == Promise(R)
    agreed = EMPTY.promise(R)
    waits = next_step(SITE, agreed, {"b": empty(B, R), "c": empty(C)})
    assert isinstance(waits, Wait)
    assert "c did not agree yet" in waits.why
    assert next_step(SITE, agreed, {"b": empty(B, R), "c": empty(C, R)}) == StartNew(R)


def test_it_waits_for_each_that_was_not_seen_and_names_it() -> None:
    waits = next_step(SITE, EMPTY, {"b": empty(B), "c": NOBODY})
    assert isinstance(waits, Wait)
    assert "missing: c (Connection refused)" in waits.why


def test_who_agreed_starts_when_another_has_decided_or_runs() -> None:
    agreed = EMPTY.promise(R)
    assert next_step(SITE, agreed, {"b": empty(B, R, decided=True), "c": NOBODY}) == StartNew(R)
    assert next_step(SITE, agreed, {"b": running(R), "c": NOBODY}) == StartNew(R)
    assert next_step(SITE, agreed.decide(R), {"b": NOBODY, "c": NOBODY}) == StartNew(R)


def test_a_volume_lost_before_all_started_makes_another_roster() -> None:
    agreed, other = EMPTY.promise(R), roster(vc="vc2")
    assert next_step(SITE, agreed, {"b": empty(B, R), "c": empty(C, volume="vc2")}) == Promise(other)
    both = agreed.promise(other)
    assert both.promises == (R, other)
    assert next_step(SITE, both, {"b": running(R), "c": empty(C, other, volume="vc2")}) == StartNew(R), "b had started"


def test_who_did_not_agree_does_not_found() -> None:
    """Its volume is another than the one that agreed."""
    lost = Facts("a", "va2")
    assert next_step(SITE, lost, {"b": running(R), "c": NOBODY}) == Join()
    assert isinstance(next_step(SITE, lost, {"b": empty(B, R, decided=True), "c": empty(C, R)}), Wait)


def test_names_are_not_asked_for_before_they_can_be_there() -> None:
    def waits(*urls: str) -> int:
        others = tuple(Peer(f"e-{n}", url) for n, url in enumerate(urls))
        return settle_ms(Site(Peer("me", "http://me.etcd:2380"), others, "c"))

    assert waits("http://e-0.etcd.ns.svc:2380", "http://10.0.0.7:2380") == SETTLE_MS
    assert waits("http://10.0.0.7:2380", "http://[fd00::7]:2380") == 0
    assert waits() == 0


def test_a_member_alone_founds_its_cluster() -> None:
    alone = Site(A, (), "etcd")
    step = next_step(alone, EMPTY, {})
    assert isinstance(step, Promise)
    assert next_step(alone, EMPTY.promise(step.roster), {}) == StartNew(step.roster)


# --- data that went ---------------------------------------------------------------------------------------------


def test_data_that_was_there_and_is_gone_makes_a_lost_member() -> None:
    assert isinstance(next_step(SITE, EMPTY.at(Phase.STARTED), {"b": NOBODY, "c": NOBODY}), Renew)
    decided = EMPTY.promise(R).decide(R)
    assert next_step(SITE, decided, {"b": running(R, "b"), "c": NOBODY}) == StartNew(R), "it never ran"
    assert isinstance(next_step(SITE, decided, {"b": running(R, "a", "b"), "c": NOBODY}), Renew), "it did"


def test_what_cannot_be_both_right_is_left_to_people() -> None:
    two = {"b": running(R), "c": running(roster(vc="x"))}
    assert isinstance(next_step(SITE, EMPTY, two), Wait)
    decided = EMPTY.promise(R).decide(R)
    assert isinstance(next_step(SITE, decided, {"b": running(roster(vc="x")), "c": NOBODY}), Wait)


# --- in place of a lost one -------------------------------------------------------------------------------------

B_IN, C_IN = Member(2, "b", (B.url,), ("http://b",)), Member(3, "c", (C.url,), ("http://c",))
OLD_A, ADDED_A = Member(1, "a", (A.url,), ("http://a",)), Member(9, "", (A.url,))
ADDING = EMPTY.at(Phase.ADDING)


def test_the_old_entry_goes_a_new_one_comes_and_it_starts() -> None:
    assert next_change(SITE, EMPTY, [OLD_A, B_IN, C_IN]) == Remove(OLD_A)
    assert next_change(SITE, EMPTY, [B_IN, C_IN]) == Add()
    step = next_change(SITE, ADDING, [B_IN, C_IN, ADDED_A])
    assert step == StartExisting((B_IN, C_IN, ADDED_A))
    assert initial_cluster(SITE, step.members) == (("b", B.url), ("c", C.url), ("a", A.url))


def test_an_entry_that_another_volume_had_added_may_have_voted() -> None:
    assert next_change(SITE, EMPTY, [B_IN, C_IN, ADDED_A]) == Remove(ADDED_A)


def test_an_entry_that_has_started_is_not_started_again() -> None:
    assert next_change(SITE, ADDING, [OLD_A, B_IN, C_IN]) == Remove(OLD_A)


def test_one_change_at_a_time() -> None:
    waits = next_change(SITE, EMPTY, [OLD_A, B_IN, Member(8, "", (C.url,))])
    assert isinstance(waits, Wait)
    assert C.url in waits.why


def test_the_second_of_two_starts_by_the_word_of_the_first() -> None:
    """Between the change and its start there is no quorum; anything else than exactly that waits for one."""
    site, adding = Site(B, (A, C), "c"), Facts("b", "v").at(Phase.ADDING)
    first, second = Member(1, A.name, (A.url,), ("http://a:2379",)), Member(2, "", (B.url,))
    there = {A.name: Running(7, (first, second))}
    assert second_of_two(site, adding, there) == (first, second)
    assert second_of_two(site, Facts("b", "v"), there) is None, "an entry of a volume that is lost"
    assert second_of_two(site, adding, {A.name: Running(7, (first,))}) is None, "not added yet"
    assert second_of_two(site, adding, {A.name: Running(7, (first, replace(second, name=B.name)))}) is None, "it ran"
    assert second_of_two(site, adding, {A.name: Running(7, (first, Member(2, "", (C.url,))))}) is None, "of another"
    third = Member(3, C.name, (C.url,), ("http://c:2379",))
    assert second_of_two(site, adding, {A.name: Running(7, (first, second, third))}) is None, "a quorum can be asked"
    assert second_of_two(site, adding, {**there, C.name: Running(7, (first, second))}) is None


def test_a_member_that_the_cluster_still_waits_for_is_not_replaced() -> None:
    unstarted = [Member(R.member_id(p.name), p.name, (p.url,), ("x",) * (p is not A)) for p in (A, B, C)]
    assert isinstance(next_change(SITE, EMPTY.promise(R), unstarted), Wait)


def test_it_does_not_start_while_anybody_may_tell_it_an_old_list() -> None:
    members = [B_IN, C_IN, ADDED_A]
    aware, old = Running(7, tuple(members)), Running(7, (OLD_A, B_IN, C_IN))
    assert behind(members, {"b": aware, "c": aware}) == []
    assert behind(members, {"b": aware, "c": old}) == ["c"]
    assert behind(members, {"b": aware, "c": NOBODY}) == ["c"]
    assert behind(members, {"b": aware, "c": empty(C)}) == [], "without data it lists nothing"


# --- what is remembered and told --------------------------------------------------------------------------------


@given(st.sampled_from(list(Phase)), st.lists(st.text(min_size=1, max_size=4), max_size=4, unique=True), st.booleans())
def test_facts_are_read_as_written(phase: Phase, volumes: list[str], tls: bool) -> None:
    facts = replace(EMPTY, phase=phase, promises=tuple(roster(vb=v) for v in volumes), tls=tls)
    assert decode(encode(facts)) == facts


def test_facts_of_a_version_without_tls_tell_of_none() -> None:
    fields = json.loads(encode(EMPTY))
    del fields["tls"]
    assert not decode(json.dumps(fields).encode()).tls


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"format": 1}', b'{"format": 2, "member": "a"}', b"\xff"])
def test_what_are_no_facts_is_refused(content: bytes) -> None:
    with pytest.raises(UnreadableFacts):
        decode(content)


def test_a_log_without_an_entry_is_no_data_and_goes(tmp_path: Path) -> None:
    log = tmp_path / "data" / "member" / "wal"
    log.mkdir(parents=True)
    metadata = struct.pack("<Q", 6 | 0x82 << 56) + b"\x08\x01\x10\x00\x1a\x00" + bytes(2)
    (log / f"{0:016x}-{0:016x}.wal").write_bytes(metadata + bytes(8_192))
    assert not MemberVolume(tmp_path / "data", tmp_path / "facts.json").has_data()
    assert not (tmp_path / "data" / "member").exists()


def test_a_volume_keeps_facts_and_knows_whether_etcd_ran(tmp_path: Path) -> None:
    volume = MemberVolume(tmp_path / "data", tmp_path / "facts.json")
    assert (volume.load(), volume.has_data()) == (None, False)
    volume.store(EMPTY.promise(R))
    assert volume.load() == EMPTY.promise(R)
    (tmp_path / "data" / "member" / "wal.tmp").mkdir(parents=True)
    assert not volume.has_data()
    (tmp_path / "data" / "member" / "wal").mkdir()
    (tmp_path / "data" / "member" / "wal" / "0000000000000000-0000000000000000.wal").touch()
    assert volume.has_data()


async def test_members_see_each_other_over_http() -> None:
    port = free_port()
    me = Peer("a", f"http://127.0.0.1:{port}")
    lookout = HttpLookout("etcd")
    assert isinstance(await lookout.look(me), Silent)
    facts = EMPTY.promise(R)
    async with Doorplate(lambda: report_of("etcd", facts)).serve_at("127.0.0.1", port):
        assert await lookout.look(me) == Report("etcd", "a", "va", R.token, decided=False)
        facts = facts.decide(R)
        assert await lookout.look(me) == Report("etcd", "a", "va", R.token, decided=True)
        for stranger in (replace(me, name="b"), me):
            sight = await HttpLookout("other" if stranger == me else "etcd").look(stranger)
            assert isinstance(sight, Silent)
            assert "a of etcd answers" in sight.why
    assert isinstance(await lookout.look(Peer("x", "http://no-such-host.invalid:1")), Silent)


def contexts_of(files: TlsFiles, shown: TlsFiles | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files.ca)
    if shown is not None:
        context.load_cert_chain(shown.cert, shown.key)
    return context


async def test_members_with_tls_meet_and_answer_nobody_else(tmp_path: Path) -> None:
    leaf = Leaf("etcd", frozenset({"127.0.0.1"}))
    authority, port = Authority(), free_port()
    files = authority.files(tmp_path / "etcd", leaf)
    me = Peer("a", f"https://127.0.0.1:{port}")
    strange = Authority("CA of nodes").files(tmp_path / "node", leaf)
    other_host = authority.files(tmp_path / "elsewhere", Leaf("etcd", frozenset({"127.0.0.9"})))

    async def asked(shown: TlsFiles | None) -> bytes:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=contexts_of(files, shown))
        except OSError:
            return b""
        with contextlib.closing(writer):
            try:
                writer.write(f"GET {PATH} HTTP/1.0\r\n\r\n".encode())
                return await reader.read()
            except OSError:
                return b""

    async with Doorplate(lambda: report_of("etcd", EMPTY), files).serve_at("127.0.0.1", port):
        assert isinstance(await HttpLookout("etcd", files).look(me), Report)
        assert b"200 OK" in await asked(files)
        for shown in (None, strange):
            assert await asked(shown) == b""
        for lookout in (HttpLookout("etcd"), HttpLookout("etcd", strange)):
            assert isinstance(await lookout.look(me), Silent)
        assert isinstance(await HttpLookout("etcd", files).look(me.in_plain), Silent), "plain text is not answered"
        # What is in the files is used at once, on both sides: another CA, and then a pair that is none.
        later = Authority("another")
        later.write(files, later.make(leaf))
        assert isinstance(await HttpLookout("etcd", files).look(me), Report)
        files.key.write_bytes(strange.key.read_bytes())
        sight = await HttpLookout("etcd", files).look(me)
        assert isinstance(sight, Silent)
        assert "cannot be used" in sight.why
    async with Doorplate(lambda: report_of("etcd", EMPTY), other_host).serve_at("127.0.0.1", port):
        sight = await HttpLookout("etcd", other_host).look(me)
        assert isinstance(sight, Silent)
        assert "127.0.0.1" in sight.why


async def test_a_member_that_has_no_tls_yet_is_named_as_such(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """As etcd's peer port does to a client that begins TLS."""
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    files = Authority().files(tmp_path / "etcd", Leaf("etcd", frozenset({"127.0.0.1"})))
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        me = Peer("a", f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        assert await HttpLookout("etcd", files).look(me) == Silent("it speaks without TLS")


# --- members that get TLS ---------------------------------------------------------------------------------------

SECURE = [Peer(p.name, p.url.replace("http:", "https:")) for p in (A, B, C)]
NOW = Site(SECURE[0], (SECURE[1], SECURE[2]), "etcd")
BEFORE = EMPTY.promise(R).decide(R).at(Phase.STARTED)


def of_before(*with_tls: str) -> Running:
    """A cluster that was founded without TLS, in which these have it by now."""
    members = (
        replace(m, peer_urls=tuple(u.replace("http:", "https:") for u in m.peer_urls)) if m.name in with_tls else m
        for m in running(R, "a", "b", "c").members
    )
    return Running(R.cluster_id, tuple(members))


def test_a_member_moves_whose_address_gets_or_loses_tls() -> None:
    moved = BEFORE.known_at(SECURE[0].url)
    assert [must_move(NOW, f) for f in (BEFORE, moved)] == [True, False]
    assert [must_move(SITE, f) for f in (BEFORE, moved)] == [False, True]
    assert not must_move(replace(NOW, others=()), BEFORE), "alone it is reached by nobody"
    joined = EMPTY.at(Phase.ADDING).known_at(SECURE[0].url)
    assert not must_move(NOW, joined)
    by_tls = Roster("etcd", tuple(sorted(Enrolled(p, f"v{p.name}") for p in SECURE)))
    assert not must_move(NOW, EMPTY.promise(by_tls).decide(by_tls)), "it was founded so"


def test_who_has_another_address_is_named() -> None:
    members = of_before("b").members
    assert elsewhere(members, [SECURE[0]]) == (members[0], SECURE[0])
    assert elsewhere(members, [SECURE[1]]) is None
    assert elsewhere(members, [SECURE[1], SECURE[2]]) == (members[2], SECURE[2])
    unnamed = replace(members[0], name="")
    assert elsewhere([unnamed, *members[1:]], [SECURE[0]]) == (unnamed, SECURE[0])


def test_others_are_looked_at_without_tls_until_this_one_has_moved_alone() -> None:
    sights: dict[str, Sight] = {"b": of_before("b"), "c": NOBODY}
    assert hidden(NOW, BEFORE, sights) == (C,)
    assert hidden(NOW, BEFORE, {**sights, "c": empty(SECURE[2])}) == ()
    assert hidden(NOW, BEFORE.known_at(SECURE[0].url), sights) == ()
    assert hidden(SITE, BEFORE, sights) == ()


def test_one_is_known_by_its_address_when_another_lists_it_so() -> None:
    assert is_known(NOW, {"b": NOBODY, "c": of_before("a", "c")})
    assert not is_known(NOW, {"b": of_before("b"), "c": empty(SECURE[2])})


def test_one_is_alone_when_all_others_wait_without_data() -> None:
    assert is_alone({"b": empty(B), "c": empty(C)})
    assert not is_alone({"b": empty(B), "c": NOBODY})
    assert not is_alone({"b": empty(B), "c": of_before()})


def test_an_entry_of_before_tls_is_that_of_a_lost_volume() -> None:
    members = (*of_before("b", "c").members[1:], Member(7, "", (A.url,)))
    assert next_change(NOW, EMPTY.at(Phase.ADDING), members) == Remove(members[-1])


def test_a_founding_that_was_agreed_on_without_tls_is_not_gone_on_with() -> None:
    step = next_step(NOW, EMPTY.promise(R).decide(R), {"b": NOBODY, "c": NOBODY})
    assert isinstance(step, Wait)
    assert A.url in step.why


# --- settings ---------------------------------------------------------------------------------------------------

ARGUMENTS = {
    "name": "a",
    "peers": ",".join(f"{p.name}={p.url}" for p in (C, A, B)),
    "data-dir": "/var/lib/etcd/data",
    "config-out": "/etc/etcd/etcd.yaml",
}


def config(**changed: str) -> EtcdMemberConfig:
    arguments = {**ARGUMENTS, **{name.replace("_", "-"): value for name, value in changed.items()}}
    argv = [word for name, value in arguments.items() for word in (f"--{name}", value)]
    return load_settings(EtcdMemberConfig, service="etcd_member", argv=argv, env={})


def told(**changed: str) -> dict[str, Any]:
    founding = Founding("new", "token", [("a", A.url), ("b", B.url)])
    found = yaml.safe_load(render(etcd_settings(config(**changed), founding)))
    assert isinstance(found, dict)
    return found


def test_etcd_is_told_what_it_needs() -> None:
    assert told(metrics_listen="0.0.0.0:9100", settings='{"heartbeat-interval": 200, "log-level": "warn"}') == {
        "name": "a",
        "data-dir": "/var/lib/etcd/data",
        "listen-peer-urls": "http://0.0.0.0:2380",
        "initial-advertise-peer-urls": "http://a:2380",
        "listen-client-urls": "http://0.0.0.0:2379",
        "advertise-client-urls": "http://a:2379",
        "listen-metrics-urls": "http://0.0.0.0:9100",
        "initial-cluster-state": "new",
        "initial-cluster-token": "token",
        "initial-cluster": "a=http://a:2380,b=http://b:2380",
        "strict-reconfig-check": True,
        "enable-grpc-gateway": False,
        "logger": "zap",
        "log-level": "warn",
        "log-outputs": ["stderr"],
        "auto-compaction-mode": "periodic",
        "auto-compaction-retention": "1h",
        "quota-backend-bytes": 2 * 1024**3,
        "heartbeat-interval": 200,
    }
    assert config().site == Site(A, (B, C), "headrace-etcd")
    assert config().tls is None
    assert config().facts_file == Path("/var/lib/etcd/headrace-member.json")


WITH_TLS = {
    "tls_cert": "/tls/tls.crt",
    "tls_key": "/tls/tls.key",
    "tls_ca": "/tls/ca.crt",
    "peers": ARGUMENTS["peers"].replace("http:", "https:"),
}


def test_etcd_answers_by_tls_and_those_alone_who_show_a_certificate() -> None:
    said = told(**WITH_TLS, metrics_listen="0.0.0.0:9100")
    files = {"cert-file": "/tls/tls.crt", "key-file": "/tls/tls.key", "trusted-ca-file": "/tls/ca.crt"}
    assert said["client-transport-security"] == {**files, "client-cert-auth": True}
    assert said["peer-transport-security"] == {**files, "client-cert-auth": True, "skip-client-san-verification": True}
    assert all("_GCM_" in name for name in said["cipher-suites"])
    assert {name: url for name, url in said.items() if name.endswith("-urls")} == {
        "listen-peer-urls": "https://0.0.0.0:2380",
        "initial-advertise-peer-urls": "https://a:2380",
        "listen-client-urls": "https://0.0.0.0:2379",
        "advertise-client-urls": "https://a:2379",
        "listen-metrics-urls": "http://0.0.0.0:9100",
    }


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"tls_cert": "/c"}, "tls_cert, tls_key and tls_ca are set together"),
        ({**WITH_TLS, "peers": ARGUMENTS["peers"]}, "peers takes NAME=https://HOST:PORT"),
        ({"settings": json.dumps({"peer-transport-security": {}})}, "settings cannot change peer-transport-security"),
        ({"settings": json.dumps({"client-transport-security": {}})}, "cannot change client-transport-security"),
        ({"name": "d"}, "name takes one of the names in peers"),
        ({"peers": "a"}, "peers takes NAME=http://HOST:PORT"),
        ({"peers": "a=https://a:2380"}, "peers takes NAME=http://HOST:PORT"),
        ({"peers": "a=http://a"}, "peers takes NAME=http://HOST:PORT"),
        ({"peers": "a=http://a:1,a=http://b:1"}, "twice"),
        ({"settings": "{"}, "settings is no JSON"),
        ({"settings": "[]"}, "settings takes a JSON object"),
        ({"settings": json.dumps({"strict-reconfig-check": False})}, "settings cannot change strict-reconfig-check"),
        ({"settings": json.dumps({"enable-grpc-gateway": True})}, "settings cannot change enable-grpc-gateway"),
        ({"cluster": "a b"}, "cluster takes a name"),
        ({"client_port": "0"}, "client_port takes 1"),
        ({"quota_bytes": "1"}, "quota_bytes takes"),
    ],
)
def test_wrong_settings_are_told(changed: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidConfig, match=says.replace("(", r"\(")):
        config(**changed)
