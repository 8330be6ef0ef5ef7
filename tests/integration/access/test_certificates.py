"""
A closed cluster whose services have a listener for clients with certificates: they work there as anywhere, are told the
addresses of these listeners alone. Who asks there for every operation: ``test_every_port``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.access import strangers
from tests.integration.access.site import BILLING, Site, opened_site

from headrace import AdminClient, Consumer, Producer, access
from headrace._transport.grpc import GrpcTransport
from headrace.errors import ClusterAuthorizationFailed, TopicAuthorizationFailed
from headrace_common.runtime.certificates import Leaf

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def site(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    del home
    with opened_site(tmp_path_factory.mktemp("certificates")) as opened:
        yield opened


def test_who_shows_one_works_at_these_listeners_alone(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    used: set[str] = set()
    real = GrpcTransport._channel

    def noted(transport: GrpcTransport, address: str) -> Any:
        used.add(address)
        return real(transport, address)

    monkeypatch.setattr(GrpcTransport, "_channel", noted)
    address = site.address()
    with Producer(address) as producer:
        for n in range(10):
            producer.send("orders", b"%d" % n)
    with Consumer("orders", bootstrap_servers=address, group_id="billing", auto_offset_reset="earliest") as consumer:
        read: list[bytes | None] = []
        end = time.monotonic() + 30
        while len(read) < 10 and time.monotonic() < end:
            read += [record.value for record in consumer.poll(timeout_ms=1_000)]
        consumer.commit()
    assert sorted(int(value or b"-1") for value in read) == list(range(10))
    with AdminClient(address) as admin:
        who = admin.who_am_i()
        assert (who.principal, who.key_id, who.super_user) == (BILLING, None, False)
        assert len(who.certificate or "") == 64
        assert who.expires_ms is not None
        assert [topic.name for topic in admin.list_topics()] == ["orders"], "what it may see, and no other"
        with pytest.raises(TopicAuthorizationFailed, match=BILLING):
            admin.create_topic("another", partitions=1, replication_factor=1)
    assert used <= set(site.at["mtls"].values())
    assert len(used) == 3


def test_what_is_vouched_for_changes_nobodys_rights_at_the_controllers(site: Site) -> None:
    boss = "Cert:boss"
    with AdminClient(site.cluster.address) as admin:
        admin.alter_access([access.Put(access.bind(boss, "superuser"))])
    with AdminClient(site.address(Leaf("boss"))) as admin:
        admin.create_topic("of-the-boss", partitions=1, replication_factor=1)
        with pytest.raises(ClusterAuthorizationFailed, match="certificate alone"):
            admin.alter_access([access.Put(access.bind("User:eve", "superuser"))])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_another_unix_user_gets_nothing_at_any_port_though_it_trusts_the_cluster(site: Site) -> None:
    found = strangers.ask_as_nobody(site.cluster)
    strangers.check_refused(found)
    codes = [set(one["grpc"].values()) for one in found["asked"].values()]
    assert codes.count({"UNAVAILABLE", "UNAUTHENTICATED"}) >= 3, "clients' own: by TLS it is asked who it is"
    assert codes.count({"UNAVAILABLE"}) >= 9, "three with certificates, four of nodes, those of etcd"
