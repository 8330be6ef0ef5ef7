"""Which processes, with which arguments."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from headrace_cli.local.etcd_peers import with_plain_peers
from headrace_cli.local.plan import STOP_STAGES, WORKER_STOP_MS, ClusterOptions, plan, slots, split_settings
from headrace_cli.local.processes import spawn, spawn_supervisor
from headrace_cli.local.supervisor import STOP_STAGE_SECONDS
from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.failpoints import DIRECTORY_VARIABLE


def planned(options: ClusterOptions) -> dict[str, str]:
    ports = {slot: 20_000 + n for n, slot in enumerate(slots(options))}
    processes = plan(options, ports, data_dir="/data", etcd="/bin/etcd", python="/bin/python")
    return {p.name: " ".join(p.argv) for p in processes}


def test_the_default_is_three_brokers_and_one_of_all_else_and_etcd_starts_first() -> None:
    brokers = ["broker-1", "broker-2", "broker-3"]
    assert list(planned(ClusterOptions())) == ["etcd-1", "controller-1", *brokers, "coordinator-1", "admin-1"]


def test_as_many_coordinators_as_asked_for() -> None:
    argv = planned(ClusterOptions(coordinators=2, controllers=2))
    assert "-m headrace_coordinator --node-id 2 --controllers 127.0.0.1:" in argv["coordinator-2"]
    assert argv["coordinator-1"].partition("--controllers ")[2].split()[0].count(",") == 1
    assert not [name for name in planned(ClusterOptions(coordinators=0)) if name.startswith("coordinator")]


def test_a_connect_worker_is_there_where_it_is_asked_for() -> None:
    assert not [name for name in planned(ClusterOptions()) if name.startswith("connect")]
    options = ClusterOptions(
        brokers=2, connect=True, settings={"connect.files.allowed.paths": "/data", "queue_bytes": "9"}
    )
    options.check()
    ports = {slot: 20_000 + n for n, slot in enumerate(slots(options))}
    name, argv = list(planned(options).items())[-1]
    brokers = ",".join(f"127.0.0.1:{ports[f'broker-{n}']}" for n in (1, 2))
    assert name == "connect-1", "it starts when all else is there"
    assert (
        f"-m headrace_connect_worker --bootstrap-servers {brokers} --http-listen 127.0.0.1:{ports['connect-1.http']} "
        in argv
    )
    assert argv.endswith("--files-allowed-paths /data")
    assert "node-token" not in argv
    assert "queue-bytes" not in argv
    assert "files-allowed" not in "".join(line for other, line in planned(options).items() if other != name)


def test_settings_of_a_worker_that_is_not_started_are_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"connect\.group\.id: no Connect worker is started; --connect starts one"):
        ClusterOptions(settings={"connect.group.id": "a"}).check()


def test_a_directory_of_a_version_before_connect_has_no_worker() -> None:
    saved = ClusterOptions(brokers=2).to_json()
    del saved["connect"]
    assert ClusterOptions.from_json(saved).connect is False
    assert ClusterOptions.from_json(ClusterOptions(connect=True).to_json()).connect is True


def test_everybody_stops_before_those_that_it_needs() -> None:
    roles = [role for stage in STOP_STAGES for role in stage]
    assert roles == ["connect", "admin", "coordinator", "broker", "controller", "etcd"]
    assert set(roles) == {name.rpartition("-")[0] for name in planned(ClusterOptions(connect=True))}
    assert set(roles) == set(STOP_STAGE_SECONDS)
    assert STOP_STAGE_SECONDS["connect"] * 1_000 > WORKER_STOP_MS + 1_000, "tasks commit, and requests end"


def test_a_directory_of_a_version_before_coordinators_gets_one() -> None:
    saved = ClusterOptions(brokers=2).to_json()
    del saved["coordinators"]
    assert ClusterOptions.from_json(saved).coordinators == 1


def test_everybody_is_told_where_the_others_are() -> None:
    options = ClusterOptions(brokers=2, controllers=2, etcd_members=3)
    ports = {slot: 20_000 + n for n, slot in enumerate(slots(options))}
    argv = planned(options)
    etcds = ",".join(f"127.0.0.1:{ports[f'etcd-{n}']}" for n in (1, 2, 3))
    controllers = ",".join(f"127.0.0.1:{ports[f'controller-{n}']}" for n in (1, 2))
    assert f"--etcd {etcds}" in argv["controller-2"]
    assert f"--controllers {controllers}" in argv["broker-2"]
    assert f"--controllers {controllers}" in argv["admin-1"]
    assert argv["etcd-2"].count("=https://127.0.0.1:") == 3


def test_nobody_speaks_to_etcd_without_a_certificate() -> None:
    options = ClusterOptions(etcd_members=3, hosts={"etcd-2": "10.1.0.2"})
    argv = planned(options)
    for name in ("etcd-1", "etcd-2", "etcd-3"):
        words = argv[name].split()
        assert {"--client-cert-auth", "--peer-client-cert-auth", "--enable-grpc-gateway=false"} <= set(words)
        plain = [word for word in words if "http://" in word]
        assert plain == [words[words.index("--listen-metrics-urls") + 1]]
    assert "--etcd-ca /data/certificates/ca.pem --etcd-cert /data/certificates/controller.pem" in argv["controller-1"]


def test_ports_by_which_members_knew_each_other_in_plain_are_kept_apart() -> None:
    before = {"etcd-1": 1, "etcd-1.peer": 2, "etcd-2": 3, "etcd-2.peer": 4, "broker-1": 5}
    moved = with_plain_peers(before)
    assert moved == {"etcd-1": 1, "etcd-1.plain-peer": 2, "etcd-2": 3, "etcd-2.plain-peer": 4, "broker-1": 5}
    chosen = {**moved, "etcd-1.metrics": 6, "etcd-1.peer": 7}
    assert with_plain_peers(chosen) == chosen
    assert with_plain_peers({}) == {}


def test_no_two_interfaces_share_a_port() -> None:
    options = ClusterOptions(brokers=5, controllers=3, etcd_members=3)
    assert len(set(slots(options))) == len(slots(options)) == 3 * 3 + 3 * 2 + 5 * 3 + 3 + 3


def test_settings_go_where_they_are_read() -> None:
    split = split_settings(
        {
            "broker.session.timeout.ms": "4000",
            "num.partitions": "3",
            "transaction.state.log.num.partitions": "4",
            "tail.cache.bytes": "0",
            "queue_bytes": "1048576",
            "group.rejoin.grace.ms": "500",
            "transactional_id_expiration_ms": "5000",
            "transaction.max.timeout.ms": "2000",
            "transaction.notice.ms": "100",
            "connect.group.id": "mine",
            "connect.task_stop_ms_max": "9",
        }
    )
    assert split.controllers == ["--session-timeout-ms", "4000"]
    assert split.brokers == ["--queue-bytes", "1048576", "--tail-cache-bytes", "0"]
    assert split.coordinators == [
        *("--group-rejoin-grace-ms", "500"),
        *("--transaction-max-timeout-ms", "2000"),
        *("--transactional-id-expiration-ms", "5000"),
    ]
    assert split.admins == ["--transaction-max-timeout-ms", "2000", "--transaction-notice-ms", "100"]
    assert split.workers == ["--group-id", "mine", "--task-stop-ms-max", "9"]
    assert split.dynamic == {"num.partitions": "3", "transaction.state.log.num.partitions": "4"}


def test_coordinators_and_the_admin_service_get_their_settings() -> None:
    argv = planned(ClusterOptions(settings={"transaction.max.timeout.ms": "2000", "unit.prepared.timeout.ms": "9"}))
    assert "--transaction-max-timeout-ms 2000 --unit-prepared-timeout-ms 9" in argv["coordinator-1"]
    assert "--transaction-max-timeout-ms 2000" in argv["admin-1"]
    assert "unit-prepared" not in argv["admin-1"]
    assert "transaction" not in argv["broker-1"]


def test_brokers_are_told_their_racks() -> None:
    argv = planned(ClusterOptions(brokers=2, racks=("a", "b")))
    assert "--rack a" in argv["broker-1"]
    assert "--rack b" in argv["broker-2"]
    assert "--rack" not in planned(ClusterOptions())["broker-1"]


def test_a_process_may_have_a_network_of_its_own() -> None:
    options = ClusterOptions(hosts={"broker-1": "10.1.0.2"}, launchers={"broker-1": ("ip", "netns", "exec", "one")})
    argv = planned(ClusterOptions.from_json(options.to_json()))
    assert argv["broker-1"].startswith("ip netns exec one /bin/python -P -m headrace_broker")
    assert "--listen 10.1.0.2:" in argv["broker-1"]
    assert "--metrics-listen 10.1.0.2:" in argv["broker-1"]
    assert argv["broker-2"].startswith("/bin/python")
    assert "10.1.0.2" not in argv["broker-2"]


def test_options_survive_their_file() -> None:
    options = ClusterOptions(brokers=5, settings={"num.partitions": "3"}, ports={"broker-1": 9999}, restart=False)
    options = replace(options, racks=tuple("abcab"))
    assert ClusterOptions.from_json(options.to_json() | {"of a later version": 1}) == options


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (ClusterOptions(brokers=0), "brokers takes 1 to 64"),
        (ClusterOptions(coordinators=-1), "coordinators takes 0 to 64"),
        (ClusterOptions(flush="never"), "flush takes group, always, os"),
        (ClusterOptions(ports={"broker-9": 1}), "no port is called 'broker-9'"),
        (ClusterOptions(ports={"broker-1": 70_000}), "not in 1..65535"),
        (ClusterOptions(settings={"num.partitions": "x"}), "num.partitions takes a number"),
        (ClusterOptions(brokers=3, racks=("a", "b")), "racks takes one name per broker, 3 of them"),
        (ClusterOptions(restart_delay_ms=-1), "restart_delay_ms takes"),
    ],
)
def test_what_is_wrong_is_said(options: ClusterOptions, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said.replace(".", r"\.")):
        options.check()


def test_services_get_the_environment_so_that_tests_can_arm_failpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    say = f"import os; print(os.environ['{DIRECTORY_VARIABLE}'])"
    log = tmp_path / "log"
    assert spawn([sys.executable, "-c", say], log).wait(30) == 0
    supervise = [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {say!r}])"]
    assert spawn_supervisor(supervise, tmp_path / "supervisor.log", owned=False).wait(30) == 0
    assert log.read_text() == (tmp_path / "supervisor.log").read_text() == f"{tmp_path}\n"


def test_with_tls_certificates_take_the_place_of_the_token() -> None:
    plain, secure = (planned(ClusterOptions(brokers=1, connect=True, tls=tls)) for tls in (False, True))
    for name in ("controller-1", "broker-1", "coordinator-1", "admin-1"):
        role = name.partition("-")[0]
        files = "/data/certificates/nodes"
        shown = f"--tls-cert {files}/{role}.pem --tls-key {files}/{role}.key --tls-ca {files}/ca.pem"
        assert shown in secure[name]
        assert "node-token" not in secure[name]
        assert "tls" not in plain[name]
        assert "--node-token-file /data/node-token" in plain[name]
    assert secure["connect-1"].startswith("env HEADRACE_CA=/data/certificates/nodes/ca.pem /bin/python ")
    assert "--tls-cert /data/certificates/nodes/connect.pem" in secure["connect-1"]
    assert "HEADRACE_CA" not in plain["connect-1"]
    assert secure["etcd-1"] == plain["etcd-1"]


def test_a_closed_cluster_has_a_key_that_its_controllers_know() -> None:
    before, closed = (planned(ClusterOptions(brokers=1, closed=closed)) for closed in (False, True))
    assert "--access-mode closed --admin-key-file /data/admin-keys" in closed["controller-1"]
    audited = " --audit-dir /data/audit --audit-to file"
    for name in ("broker-1", "coordinator-1", "admin-1"):
        assert closed[name] == before[name] + audited
    assert closed["controller-1"].endswith(audited)
    assert closed["etcd-1"] == before["etcd-1"]
    assert not any("access-mode" in line for line in before.values())


def test_a_closed_cluster_has_a_connect_worker_that_asks_who_calls() -> None:
    ClusterOptions(closed=True, connect=True).check()
    of_open, of_closed = (planned(ClusterOptions(brokers=1, connect=True, closed=closed)) for closed in (False, True))
    shown = "env HEADRACE_API_KEY_FILE=/data/worker-key "
    assert of_closed["connect-1"] == shown + of_open["connect-1"]


def test_settings_of_the_audit_are_those_of_every_service() -> None:
    lines = planned(ClusterOptions(brokers=1, settings={"audit.to": "topic,file", "audit_on_full": "drop"}))
    for name in ("broker-1", "coordinator-1", "admin-1", "controller-1"):
        assert "--audit-to topic,file" in lines[name]
        assert "--audit-on-full drop" in lines[name]
        assert "--audit-dir /data/audit" in lines[name]
    assert "--audit" not in lines["etcd-1"]


def test_options_remember_that_they_are_closed() -> None:
    assert ClusterOptions.from_json(ClusterOptions(closed=True).to_json()).closed
    assert not ClusterOptions.from_json({}).closed
