"""``headrace tls list``: what is shown of each node, and when it ends with 1."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from libs.cli.tests.test_access_commands import open_with
from typer.testing import CliRunner

from headrace.admin_certificate_types import NodeCertificates
from headrace_cli.app import app
from headrace_proto.v1 import certificates_pb2 as pb

runner = CliRunner()
DAY = 86_400_000


def certificate(days: float, fingerprint: str, life: int = 1_000) -> pb.Certificate:
    end = int(time.time() * 1_000 + days * DAY)
    return pb.Certificate(
        subject="CN=x", fingerprint=fingerprint * 32, not_before_ms=end - life * DAY, not_after_ms=end
    )


def node(name: str, days: float = 500.5, ca_days: float = 900, **more: Any) -> pb.NodeCertificates:
    one, ca = certificate(days, "0a"), certificate(ca_days, "c1", 3_650)
    trusted = [ca, *(certificate(9, f"d{n}") for n in range(more.pop("others", 0)))]
    bundle = pb.CertificateBundle(
        name="service", certificate=one, not_after_ms=one.not_after_ms, issuer=ca, trusted=trusted, **more
    )
    return pb.NodeCertificates(node=name, bundles=[bundle])


class FakeAdmin:
    def __init__(self) -> None:
        self.nodes = [node("admin-1"), node("broker-1")]
        self.looked: list[bool] = []

    def describe_certificates(self, *, look: bool = False) -> list[NodeCertificates]:
        self.looked.append(look)
        return [NodeCertificates.of(one) for one in self.nodes]


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    fake = FakeAdmin()
    open_with(fake, monkeypatch.setattr)
    return fake


def run(*argv: str, code: int = 0) -> Any:
    result = runner.invoke(app, ["tls", *argv])
    assert result.exit_code == code, result.output
    return result


def test_what_each_node_shows(admin: FakeAdmin) -> None:
    admin.nodes.append(pb.NodeCertificates(node="broker-2"))
    said = run("list", "--look").stdout
    assert admin.looked == [True]
    header, first, second, third = said.splitlines()
    assert header.split() == ["NODE", "WHAT", "UNTIL", "DAYS", "ISSUER", "TRUSTS", "NOTE"]
    assert first.split()[:2] == ["admin-1", "service"]
    assert second.split()[3:] == ["500", "c1c1c1c1c1c1", "c1c1c1c1c1c1"]
    assert third.startswith("broker-2  -"), third
    assert third.endswith("plain text")
    told = json.loads(run("list", "-o", "json").stdout)
    assert [one["node"] for one in told["nodes"]] == ["admin-1", "broker-1", "broker-2"]
    assert told["nodes"][0]["bundles"][0]["certificate"]["fingerprint"] == "0a" * 32
    assert admin.looked == [True, False]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (node("broker-2", -1.5), "broker-2: its certificate ended 20"),
        (node("broker-2", 3, -1.5), "broker-2: the CA of its certificate ended 20"),
        (
            node("broker-2", refused="the key is half written"),
            "broker-2: it refused its files: the key is half written",
        ),
        (node("broker-2", behind=True), "broker-2: a listener could not take its new certificate"),
        (pb.NodeCertificates(node="broker-2", fault="away"), "broker-2: it cannot be asked: away"),
    ],
)
def test_it_fails_where_something_is_wrong(admin: FakeAdmin, wrong: pb.NodeCertificates, said: str) -> None:
    admin.nodes.append(wrong)
    shown = run("list", code=1)
    assert said in shown.stderr
    assert len(shown.stdout.splitlines()) == 4, "the table is there all the same"
    admin.nodes.append(node("broker-3", -1))
    assert ", and 1 more" in run("list", "-o", "json", code=1).stderr


@pytest.mark.parametrize(
    ("one", "note"),
    [
        (node("n", 13), "ends soon"),
        (node("n", 15), ""),
        (node("n", 500, 170), "its CA ends 20"),
        (node("n", others=3, trusted_more=2), "d1d1d1d1d1d1 and 3 more"),
    ],
)
def test_what_comes_near_is_noted(admin: FakeAdmin, one: pb.NodeCertificates, note: str) -> None:
    admin.nodes = [one]
    line = run("list").stdout.splitlines()[1]
    assert note in line
    assert ("soon" in line) == (note == "ends soon")
