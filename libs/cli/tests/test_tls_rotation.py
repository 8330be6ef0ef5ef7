"""Another CA of a local cluster: who is trusted and who signs at each step, wherever the one before was cut."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from headrace.admin_certificate_types import NodeCertificates
from headrace_cli import tls_rotating
from headrace_cli.exits import CommandFailed
from headrace_cli.local import rotation as rotation_module
from headrace_cli.local.certificate_files import NodeFiles
from headrace_cli.local.certificates import renew_nodes
from headrace_cli.local.failures import LocalClusterFailed
from headrace_cli.local.rotation import Rotation
from headrace_cli.tls_rotating import Rotating
from headrace_common.core.errors import InvalidConfig
from headrace_common.core.ids import NodeId
from headrace_common.core.image import NodeKey, Role
from headrace_common.runtime import certificates as certificates_module
from headrace_common.runtime.certificates import names_of, read_pair, write_private
from headrace_common.runtime.service_tls import wanted_of
from headrace_common.runtime.tls import Bundle, read_bundle
from headrace_common.runtime.tls_config import TlsFiles
from headrace_proto.v1 import certificates_pb2 as pb

NOW = datetime(2026, 11, 1, tzinfo=UTC)
ROLES = ("admin", "broker")


@pytest.fixture
def files(tmp_path: Path) -> NodeFiles:
    made = NodeFiles(tmp_path / "nodes")
    renew_nodes(made, [*ROLES, "connect"], {"127.0.0.1", "localhost"}, NOW)
    return made


def read(files: NodeFiles, role: str) -> Bundle:
    """As a node of this role does: what it cannot use raises."""
    cert, key = files.of(role), NodeKey(Role(role), NodeId(1))
    wanted = wanted_of(key, "headrace")
    return read_bundle(TlsFiles(cert, files.key(cert), files.ca), wanted, int(NOW.timestamp() * 1_000))


def cas(files: NodeFiles) -> list[str]:
    """The fingerprints of those that are trusted."""
    found = x509.load_pem_x509_certificates(files.ca.read_bytes())
    return [one.fingerprint(hashes.SHA256()).hex() for one in found]


def rotation(files: NodeFiles) -> Rotation:
    return Rotation(files, NOW, timedelta(days=30))


class Nodes:
    """Nodes that take what is in the files when they are asked; all they were shown has to fit together."""

    def __init__(self, files: NodeFiles) -> None:
        self.files = files
        self.deaf: set[str] = set()
        self.behind = False
        self.using: dict[str, Bundle] = {role: read(files, role) for role in ROLES}

    def describe_certificates(self, *, look: bool = False) -> list[NodeCertificates]:
        assert look
        for role in set(ROLES) - self.deaf:
            with suppress(InvalidConfig):  # half of a step
                self.using[role] = read(self.files, role)
            for other in self.using.values():
                assert bytes.fromhex(other.issuer.fingerprint) in self.using[role].trusted, "it meets a stranger"
        return [NodeCertificates.of(self._node(role)) for role in ROLES]

    def _node(self, role: str) -> pb.NodeCertificates:
        used = self.using[role]
        bundle = pb.CertificateBundle(
            name="service",
            certificate=pb.Certificate(fingerprint=used.fingerprint),
            issuer=pb.Certificate(fingerprint=used.issuer.fingerprint),
            behind=self.behind,
            trusted=[pb.Certificate(fingerprint=one.fingerprint) for one in used.cas],
        )
        of_clients = pb.CertificateBundle(name="mtls", trusted=[pb.Certificate(fingerprint="c1")])
        return pb.NodeCertificates(node=f"{role}-1", bundles=[bundle, of_clients])


def rotating(nodes: Nodes, said: list[str], **more: Any) -> Rotating:
    admin: Any = nodes
    wanted = {"timeout_s": 0.0, "others": False, **more}
    return Rotating(admin, nodes.files, rotation(nodes.files), said.append, **wanted)


def test_new_pairs_of_the_same_ca(files: NodeFiles) -> None:
    nodes, said = Nodes(files), []
    before = {role: (nodes.using[role].fingerprint, names_of(of(files, role))) for role in ROLES}
    ca = cas(files)
    rotating(nodes, said).pairs()
    assert cas(files) == ca
    for role in ROLES:
        assert nodes.using[role].fingerprint != before[role][0]
        assert names_of(of(files, role)) == before[role][1]
        assert nodes.using[role].not_after == NOW + timedelta(days=30)
    assert said == ["all nodes show new certificates: admin.pem, broker.pem, connect.pem"]


def of(files: NodeFiles, role: str) -> x509.Certificate:
    pair = read_pair(files.of(role), files.key(files.of(role)))
    assert pair is not None
    return pair.certificate


def test_another_ca_in_steps(files: NodeFiles) -> None:
    nodes, said = Nodes(files), []
    (old,) = cas(files)
    rotating(nodes, said).ca()
    (new,) = cas(files)
    assert new != old
    assert {nodes.using[role].issuer.fingerprint for role in ROLES} == {new}
    assert [text[:6] for text in said] == ["1 of 3", "2 of 3", "3 of 3"]
    assert sorted(path.name for path in files.directory.iterdir()) == sorted(
        f"{name}.{kind}" for name in ("ca", "connect", *ROLES) for kind in ("key", "pem")
    )
    assert renew_nodes(files, [*ROLES, "connect"], {"127.0.0.1", "localhost"}, NOW) == [], "the supervisor agrees"


def test_the_first_one_signs_and_a_start_in_between_keeps_all(files: NodeFiles) -> None:
    steps, (old,) = rotation(files), cas(files)
    new = steps.add()
    assert steps.add() == new
    assert cas(files) == [old, new], "once"
    assert renew_nodes(files, [*ROLES, "connect"], {"127.0.0.1", "localhost"}, NOW) == []
    assert steps.sign() == ["admin.pem", "broker.pem", "connect.pem"]
    assert steps.sign() == []
    assert cas(files) == [new, old]
    assert renew_nodes(files, [*ROLES, "connect"], {"127.0.0.1", "localhost"}, NOW) == []


@pytest.mark.parametrize(
    ("step", "lacks"), [("1 of 3", "a certificate of the new CA"), ("2 of 3", "the new CA alone among those it trusts")]
)
def test_each_step_is_waited_for(files: NodeFiles, step: str, lacks: str) -> None:
    nodes, said = Nodes(files), []

    def say(text: str) -> None:
        said.append(text)
        nodes.deaf = {"broker"} if text.startswith(step) else set()

    one = rotating(nodes, said)
    one._say = say
    with pytest.raises(CommandFailed, match=f"broker-1 has not got {lacks}"):
        one.ca()
    assert rotation(files).is_begun
    assert said[-1].startswith(step)


def test_a_listener_that_could_not_take_it_holds_it_up(files: NodeFiles) -> None:
    nodes = Nodes(files)
    nodes.behind = True
    with pytest.raises(CommandFailed, match="admin-1 has not got its new certificate"):
        rotating(nodes, []).pairs()


class Cut(Exception):
    """The process ends here."""


@pytest.mark.parametrize("at", range(13))
def test_wherever_it_is_cut_the_next_run_ends_it(files: NodeFiles, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """It writes twelve files, and is cut before each of them; 0: it is not."""
    nodes, left = Nodes(files), at
    (old,) = cas(files)

    def write(path: Path, text: bytes) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Cut
        write_private(path, text)

    with monkeypatch.context() as patched:
        for module in (rotation_module, certificates_module):
            patched.setattr(module, "write_private", write)
        try:
            rotating(nodes, []).ca()
        except Cut:
            assert rotation(files).is_begun or old in cas(files)
    assert (left == -12) == (at == 0)
    nodes.describe_certificates(look=True)
    renew_nodes(files, [*ROLES, "connect"], {"127.0.0.1", "localhost"}, NOW, running=True)
    nodes.describe_certificates(look=True)
    rotating(nodes, []).ca()
    (new,) = cas(files)
    assert new != old
    assert {read(files, role).issuer.fingerprint for role in ROLES} == {new}
    assert not rotation(files).is_begun


def test_a_node_that_does_not_follow_holds_it_up_and_is_named(files: NodeFiles) -> None:
    nodes, said = Nodes(files), []
    (old,) = cas(files)
    nodes.deaf = {"broker"}
    with pytest.raises(CommandFailed, match="broker-1 has not got the new CA among those it trusts"):
        rotating(nodes, said).ca()
    assert (said, cas(files)[0], len(cas(files))) == ([], old, 2)
    with pytest.raises(LocalClusterFailed, match="rotate --ca"):
        rotating(nodes, said).pairs()
    nodes.deaf = set()
    rotating(nodes, said).ca()
    assert said[0] == "a change that was cut goes on"
    assert old not in cas(files)


def test_those_that_cannot_be_asked_are_given_time(files: NodeFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(tls_rotating.time, "sleep", slept.append)
    rotating(Nodes(files), [], others=True).ca()
    assert slept == [tls_rotating.LOOKS_S] * 2


def test_the_supervisor_signs_nothing_with_a_key_of_another_ca(files: NodeFiles, tmp_path: Path) -> None:
    other = NodeFiles(tmp_path / "other")
    renew_nodes(other, ["broker"], {"127.0.0.1"}, NOW)
    files.ca.write_bytes(other.ca.read_bytes())  # half of a step
    assert renew_nodes(files, ROLES, {"127.0.0.1"}, NOW, running=True) == []
