"""When the certificates of a local etcd are made, kept and made anew."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headrace_cli.local.certificate_files import LEAF_LIFE, EtcdFiles, NodeFiles
from headrace_cli.local.certificates import renew, renew_nodes
from headrace_cli.local.failures import LocalClusterFailed
from headrace_common.core.ids import NodeId
from headrace_common.core.image import NodeKey, Role
from headrace_common.runtime.certificates import CA_LIFE, read_pair
from headrace_common.runtime.service_tls import wanted_of
from headrace_common.runtime.tls import read_bundle
from headrace_common.runtime.tls_config import TlsFiles

NOW = datetime(2026, 11, 1, tzinfo=UTC)
HERE = {"127.0.0.1"}
LEAF_DAYS, CA_DAYS = LEAF_LIFE.days, CA_LIFE.days
ALL = ["ca.pem", "etcd.pem", "controller.pem"]


@pytest.fixture
def files(tmp_path: Path) -> EtcdFiles:
    made = EtcdFiles(tmp_path / "certificates")
    assert renew(made, HERE, NOW) == ALL
    return made


def contents(files: EtcdFiles) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in files.directory.iterdir()}


def test_what_is_sound_and_lasts_is_kept(files: EtcdFiles) -> None:
    before = contents(files)
    assert len(before) == 6
    assert renew(files, HERE, NOW + timedelta(days=LEAF_DAYS * 0.6)) == []
    assert contents(files) == before
    assert {path.stat().st_mode & 0o777 for path in files.directory.iterdir()} == {0o600}
    assert files.directory.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("days", "made"),
    [
        (LEAF_DAYS * 0.7, ["etcd.pem", "controller.pem"]),
        (LEAF_DAYS + 1, ["etcd.pem", "controller.pem"]),
        (CA_DAYS * 0.7, ALL),
        (CA_DAYS + 1, ALL),
        (-2, ALL),  # the clock was ahead when they were made
    ],
)
def test_what_has_less_than_a_third_of_its_life_left_is_made_anew(
    files: EtcdFiles, days: float, made: list[str]
) -> None:
    assert renew(files, HERE, NOW + timedelta(days=days)) == made
    assert renew(files, HERE, NOW + timedelta(days=days)) == []


def test_members_that_listen_elsewhere_get_a_certificate_for_it(files: EtcdFiles) -> None:
    assert renew(files, {"127.0.0.1", "10.1.0.2", "::1", "etcd.test"}, NOW) == ["etcd.pem"]
    assert renew(files, {"10.1.0.2"}, NOW) == []


@pytest.mark.parametrize("name", ["ca.pem", "ca.key", "etcd.pem", "etcd.key", "controller.key"])
@pytest.mark.parametrize("damage", ["missing", "torn", "of another"])
def test_what_is_missing_torn_or_of_another_ca_is_made_anew(
    files: EtcdFiles, tmp_path: Path, name: str, damage: str
) -> None:
    path = files.directory / name
    match damage:
        case "missing":
            path.unlink()
        case "torn":
            path.write_bytes(path.read_bytes()[:50])
        case _:
            other = EtcdFiles(tmp_path / "other")
            renew(other, HERE, NOW)
            path.write_bytes((other.directory / name).read_bytes())
    assert renew(files, HERE, NOW) == (ALL if name.startswith("ca.") else [f"{path.stem}.pem"])
    assert renew(files, HERE, NOW) == []
    context = ssl.create_default_context(cafile=files.ca)
    for pair in (files.member, files.controller):
        context.load_cert_chain(pair, files.key(pair))


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "certificates").write_text("a file")
    with pytest.raises(LocalClusterFailed, match="cannot write certificates to"):
        renew(EtcdFiles(tmp_path / "certificates"), HERE, NOW)


def test_services_get_what_they_want_of_a_ca_of_their_own(files: EtcdFiles) -> None:
    nodes = NodeFiles(files.directory / "nodes")
    roles = ["admin", "broker", "connect"]
    made = ["ca.pem", "admin.pem", "broker.pem", "connect.pem"]
    assert renew_nodes(nodes, roles, HERE, NOW) == made
    assert renew_nodes(nodes, roles, HERE, NOW) == []
    now_ms = int(NOW.timestamp() * 1_000)
    for role, key in (("broker", NodeKey(Role.BROKER, NodeId(1))), ("connect", None)):
        cert = nodes.of(role)
        wanted = wanted_of(key, "headrace")
        assert read_bundle(TlsFiles(cert, nodes.key(cert), nodes.ca), wanted, now_ms).trusted
    assert nodes.ca.read_bytes() != files.ca.read_bytes()
    assert renew_nodes(nodes, roles, {*HERE, "10.0.0.1"}, NOW) == made[1:]
    assert renew_nodes(nodes, roles, HERE, NOW + timedelta(days=LEAF_DAYS * 0.7)) == made[1:]


@pytest.mark.parametrize(
    ("days", "made"), [(LEAF_DAYS * 0.6, []), (LEAF_DAYS * 0.7, ALL[1:]), (CA_DAYS * 0.7, ALL[1:])]
)
def test_while_processes_run_the_ca_stays(files: EtcdFiles, days: float, made: list[str]) -> None:
    before, now = files.ca.read_bytes(), NOW + timedelta(days=days)
    assert renew(files, HERE, now, running=True) == made
    assert renew(files, HERE, now, running=True) == []
    assert files.ca.read_bytes() == before


def test_without_a_ca_nothing_is_made_while_processes_run(files: EtcdFiles) -> None:
    nodes = NodeFiles(files.directory / "nodes")
    renew_nodes(nodes, ["broker"], HERE, NOW)
    for one in (files, nodes):
        one.ca.unlink()
    late = NOW + timedelta(days=LEAF_DAYS * 0.7)
    assert renew(files, HERE, late, running=True) == []
    assert renew_nodes(nodes, ["broker"], HERE, late, running=True) == []
    assert not files.ca.exists()


def test_pairs_last_as_long_as_they_are_to(tmp_path: Path) -> None:
    etcd, nodes = EtcdFiles(tmp_path / "etcd"), NodeFiles(tmp_path / "nodes")
    renew(etcd, HERE, NOW, life=timedelta(seconds=30))
    renew_nodes(nodes, ["broker"], HERE, NOW, life=timedelta(seconds=30))
    for cert in (etcd.member, etcd.controller, nodes.of("broker")):
        made = read_pair(cert, etcd.key(cert))
        assert made is not None
        assert made.certificate.not_valid_after_utc == NOW + timedelta(seconds=30)
