"""What the chart has certificates name, and where processes find theirs."""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.deploy import chart, combinations, flows, settings
from tests.deploy.manifests import Manifest, Pod, lasting, of_kind, one, pod_of, pods

from headrace_common.runtime.certificates import leaf_of, make_ca, make_pair, names_of
from headrace_common.runtime.env import load_settings
from headrace_controller import backup, restore
from headrace_controller.certificate_secrets import LEAF_LIFE, parse_arguments
from headrace_controller.etcd_member.config import EtcdMemberConfig

pytestmark = pytest.mark.chart

NAMESPACE = chart.NAMESPACE
RESTORE = {"etcd": {"restore": {"enabled": True}}}


def job(manifests: Sequence[Manifest], name: str = "Job/headrace-certificates-hook") -> argparse.Namespace:
    """What its program is told."""
    pod = pod_of(one(manifests, name))
    assert pod is not None
    command = pod.containers[0]["command"]
    assert command[:3] == ["python", "-m", "headrace_controller.certificate_secrets"]
    return parse_arguments(command[3:])


def named(given: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """What the certificate of each role names, as it is made."""
    now = datetime.now(UTC)
    ca = make_ca("ca", now)
    leaves = [
        leaf_of(role, text.replace("$(POD_NAMESPACE)", NAMESPACE).split(","), "headrace")
        for role, text in job(chart.render(given)).role.items()
    ]
    return {leaf.name: names_of(make_pair(ca, leaf, now, LEAF_LIFE).certificate) for leaf in leaves}


def test_certificates_name_all_by_which_clients_connect() -> None:
    names = named({"tls": {"hosts": ["192.0.2.7"]}})
    inside = f"{NAMESPACE}.svc.cluster.local"
    assert {f"headrace-bootstrap.{inside}", "headrace-bootstrap", "localhost", "broker.headrace"} <= names["broker"]
    assert {f"headrace-rest.{inside}", f"headrace-admin.{inside}", "127.0.0.1", "192.0.2.7"} <= names["admin"]
    assert {"coordinator.headrace", "spiffe://headrace/coordinator", "192.0.2.7"} <= names["coordinator"]
    assert "spiffe://headrace/controller" in names["controller"]
    assert "192.0.2.7" not in names["controller"], "it has no clients"


def test_and_those_outside() -> None:
    outside = {"enabled": True, "type": "LoadBalancer", "domain": "example.com"}
    names = named({"external": outside, "statefulset": {"replicas": 2}})
    assert {"headrace-broker-0.example.com", "headrace-broker-1.example.com"} <= names["broker"]
    assert "headrace-bootstrap.example.com" in names["broker"]
    assert "headrace-broker-2.example.com" not in names["broker"]
    assert "headrace-admin-0.example.com" in names["admin"]


def test_workers_have_a_name_of_their_kind_and_none_of_a_node() -> None:
    hosts = {"tls": {"hosts": ["192.0.2.7"]}, "connect": {"enabled": True, "hosts": ["connect.example.com", "*"]}}
    outside = {"external": {"enabled": True, "type": "LoadBalancer", "domain": "example.com"}}
    names = named(hosts | outside | {"streamsApps": combinations.STREAMS_APPS})
    here = {"localhost", "127.0.0.1"}
    assert names["streams"] == {"streams.headrace", *here}, "pods have no name of their own"
    service = "headrace-connect-rest"
    inside = {
        service,
        f"{service}.{NAMESPACE}",
        f"{service}.{NAMESPACE}.svc",
        f"{service}.{NAMESPACE}.svc.cluster.local",
    }
    assert names["connect"] == {"connect.headrace", "connect.example.com", *inside, *here}
    assert named({}).keys() == {"broker", "controller", "coordinator", "admin"}


def test_what_is_done_daily_is_what_the_hook_does() -> None:
    manifests = combinations.render("TLS for all")
    assert job(manifests) == job(manifests, "CronJob/headrace-certificates")


def environment(pod: Pod) -> dict[str, str]:
    return {variable["name"]: variable.get("value", "") for variable in pod.containers[0].get("env") or []}


@pytest.mark.parametrize("values", ["TLS for all", "certificates of ours"])
def test_each_process_finds_its_own(values: str) -> None:
    manifests = combinations.render(values)
    ours = values == "certificates of ours"
    existing = combinations.BY_NAME[values].get("tls", {}).get("existing", {})
    for pod in pods(manifests):
        role, told = pod.component, environment(pod)
        mounted = {volume["name"]: volume for volume in pod.spec.get("volumes", [])}.get("tls")
        where = {mount["name"]: mount["mountPath"] for mount in pod.containers[0].get("volumeMounts", [])}
        if role in {"backup", "node-token", "admin-key", "certificates"}:
            assert mounted is None, "it is no client, and serves none"
            continue
        if role == "etcd":
            assert mounted is not None
            assert mounted["secret"]["secretName"] == (existing[role] if ours else "headrace-etcd-tls")
            continue
        assert where["tls"] == "/etc/headrace/tls"
        assert told["HEADRACE_CA"] == "/etc/headrace/tls/ca.crt"
        if role in {"broker", "controller", "coordinator", "admin"}:
            assert mounted is not None
            assert mounted["secret"]["secretName"] == (existing[role] if ours else f"headrace-{role}-tls")
            prefix = f"HEADRACE_{role.upper()}_TLS"
            assert (told[f"{prefix}_CERT"], told[f"{prefix}_KEY"]) == (
                "/etc/headrace/tls/tls.crt",
                "/etc/headrace/tls/tls.key",
            )
        else:
            assert mounted is not None
            assert mounted["configMap"]["name"] == (existing["ca"] if ours else "headrace-ca")
    assert len(list(lasting(manifests))) > 4


@pytest.mark.parametrize("values", ["TLS for all", "certificates of ours", "cert-manager"])
def test_workers_find_the_pair_of_their_kind(values: str) -> None:
    manifests = combinations.render(values)
    existing = combinations.BY_NAME[values].get("tls", {}).get("existing", {})
    found = []
    for pod in lasting(manifests):
        volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
        if pod.component not in {"connect", "streams"}:
            assert "pair" not in volumes
            continue
        found.append(pod.component)
        secret = {"secretName": existing.get(pod.component, f"headrace-{pod.component}-tls"), "defaultMode": 0o440}
        assert volumes["pair"]["secret"] == secret
        config = settings.load(pod.component, settings.environment(pod, pod.main, 0, NAMESPACE))
        mode = config.tls.mode if pod.component == "connect" else config.query_tls_mode
        tls = config.tls if pod.component == "connect" else None
        given = (
            [tls.cert, tls.key, tls.ca] if tls else [config.query_tls_cert, config.query_tls_key, config.query_tls_ca]
        )
        assert given == files_of(pod.main["volumeMounts"], "pair")
        assert mode == "require"
        assert "pair" not in str(pod.spec.get("initContainers")), "no image of plugins has the key"
    assert sorted(found) == ["connect", "streams", "streams"]


# --- cert-manager ----------------------------------------------------------------------------------------------------


def test_cert_manager_makes_those_of_nodes_as_the_job_would() -> None:
    values = combinations.BY_NAME["cert-manager"]
    manifests = combinations.render("cert-manager")
    wanted = named(
        {"tls": {"hosts": values["tls"]["hosts"]}} | {key: values[key] for key in ("connect", "streamsApps")}
    )
    found = {
        certificate["spec"]["secretName"]: certificate["spec"] for certificate in of_kind(manifests, "Certificate")
    }
    assert found.keys() == {f"headrace-{role}-tls" for role in wanted}
    for role, names in wanted.items():
        spec = found[f"headrace-{role}-tls"]
        assert {*spec["dnsNames"], *spec["ipAddresses"], *spec.get("uris", [])} == names
        assert not any(re.fullmatch(r"[0-9.]+", name) for name in spec["dnsNames"])
        assert "server auth" in spec["usages"]
        assert ("client auth" in spec["usages"]) is ("uris" in spec) is (role not in {"connect", "streams"})
        assert spec["privateKey"]["algorithm"] == "ECDSA", "other keys are not taken"
        assert spec["issuerRef"] == {"name": "ca", "kind": "ClusterIssuer", "group": "cert-manager.io"}


def test_the_job_makes_what_cert_manager_does_not() -> None:
    manifests = combinations.render("cert-manager")
    before = job(manifests)
    assert (before.role, before.ca_of) == ({}, None)
    assert before.etcd.count("headrace-etcd-0") == 1
    after = job(manifests, "Job/headrace-certificates-after")
    assert after.ca_of == "headrace-broker-tls"
    assert job(manifests, "CronJob/headrace-certificates") == after
    hook = one(manifests, "Job/headrace-certificates-after")["metadata"]["annotations"]["helm.sh/hook"]
    assert hook == "post-install,post-upgrade"
    for pod in pods(manifests):
        if pod.component in {"client", "job", "connect"}:  # which do not wait for that one
            [tls] = [volume for volume in pod.spec["volumes"] if volume["name"] == "tls"]
            assert tls["secret"]["secretName"] == "headrace-broker-tls"
            assert tls["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}], "never the key"


# --- etcd ----------------------------------------------------------------------------------------------------------


def files_of(mounts: Sequence[Mapping[str, Any]], name: str) -> list[Path]:
    """Of the Secret that is mounted by this name: certificate, key and CA."""
    (at,) = (Path(mount["mountPath"]) for mount in mounts if mount["name"] == name)
    return [at / "tls.crt", at / "tls.key", at / "ca.crt"]


def member(manifests: Sequence[Manifest]) -> EtcdMemberConfig:
    """What the program before each start of an etcd makes of its arguments, in the first pod."""
    pod = pod_of(one(manifests, "StatefulSet/headrace-etcd"))
    assert pod is not None
    (init,) = pod.spec["initContainers"]
    known = settings.environment(pod, init, 0, NAMESPACE)
    given = [re.sub(r"\$\((\w+)\)", lambda found: known[found[1]], word) for word in init["command"]]
    return load_settings(EtcdMemberConfig, service="etcd_member", argv=given[3:], env={})


def test_members_of_etcd_have_their_certificate_which_names_all_by_which_they_are_reached() -> None:
    manifests = combinations.render("TLS for all")
    config = member(manifests)
    pod = pod_of(one(manifests, "StatefulSet/headrace-etcd"))
    assert pod is not None
    for container in (*pod.containers, *pod.spec["initContainers"]):
        assert files_of(container["volumeMounts"], "tls") == [config.tls_cert, config.tls_key, config.tls_ca]
    controller = pod_of(one(manifests, "StatefulSet/headrace-controller"))
    assert controller is not None
    asked = settings.load("controller", settings.environment(controller, controller.main, 0, NAMESPACE)).etcd
    names = {*job(manifests).etcd.replace("$(POD_NAMESPACE)", NAMESPACE).split(",")}
    assert {urlsplit(peer.url).hostname for peer in config.members} | {at.host for at in asked} <= names
    assert {"localhost", "127.0.0.1"} <= names
    assert {urlsplit(peer.url).scheme for peer in config.members} == {"https"}
    assert {urlsplit(peer.url).scheme for peer in member(combinations.render("open and plain")).members} == {"http"}


@pytest.mark.parametrize(
    ("values", "secret"),
    [("TLS for all", "headrace-etcd-client-tls"), ("certificates of ours", "f"), ("etcd of ours", "g")],
)
def test_controllers_and_backups_alone_show_etcd_a_certificate(values: str, secret: str) -> None:
    having = []
    for pod in pods(combinations.render(values)):
        mounted = [v for v in pod.spec.get("volumes", []) if v.get("secret", {}).get("secretName") == secret]
        if not mounted:
            continue
        having.append(pod.component)
        files = files_of(pod.main["volumeMounts"], mounted[0]["name"])
        if pod.component == "controller":
            config = settings.load("controller", settings.environment(pod, pod.main, 0, NAMESPACE))
            assert [config.etcd_cert, config.etcd_key, config.etcd_ca] == files
        else:
            given = backup.parse_arguments(pod.main["command"][3:])
            assert [given.etcd_cert, given.etcd_key, given.etcd_ca] == files
    assert sorted(having) == ["backup", "backup", "controller"]


def test_so_does_a_restore() -> None:
    pod = pod_of(one(chart.render(RESTORE), "Job/headrace-etcd-restore"))
    assert pod is not None
    given = restore.parse_arguments(pod.main["command"][3:])
    assert [given.etcd_cert, given.etcd_key, given.etcd_ca] == files_of(pod.main["volumeMounts"], "etcd-tls")
    pod = pod_of(one(chart.render(RESTORE | combinations.PLAIN), "Job/headrace-etcd-restore"))
    assert pod is not None
    assert restore.parse_arguments(pod.main["command"][3:]).etcd_ca is None


def test_backups_are_encrypted_to_a_certificate_of_yours() -> None:
    plain = pods(chart.render({}))
    for where, name in (("secret", "secretName"), ("configMap", "name")):
        manifests = chart.render({"etcd": {"backup": {"encryptTo": {where: "ours", "key": "backup.crt"}}}})
        backups = [pod for pod in pods(manifests) if pod.component == "backup"]
        assert len(backups) == 2  # the CronJob, and the one of each upgrade
        for pod in backups:
            given = backup.parse_arguments(pod.main["command"][3:])
            (volume,) = (v for v in pod.spec["volumes"] if v.get(where, {}).get(name) == "ours")
            assert volume[where]["items"] == [{"key": "backup.crt", "path": "backup.crt"}], "no key that is there too"
            (mount,) = (m for m in pod.main["volumeMounts"] if m["name"] == volume["name"])
            assert (str(given.encrypt_to), mount["readOnly"]) == (f"{mount['mountPath']}/backup.crt", True)
    assert {backup.parse_arguments(p.main["command"][3:]).encrypt_to for p in plain if p.component == "backup"} == {
        None
    }


def test_a_restore_has_the_key_and_nobody_else_has() -> None:
    manifests = chart.render({"etcd": {"restore": {"enabled": True, "decryptWith": {"secret": "the-key"}}}})
    pod = pod_of(one(manifests, "Job/headrace-etcd-restore"))
    assert pod is not None
    given = restore.parse_arguments(pod.main["command"][3:])
    assert str(given.file) == "/var/lib/headrace/backup"
    holders = [pod for pod in pods(manifests) if "the-key" in json.dumps(pod.spec)]
    (volume,) = (v["name"] for v in holders[0].spec["volumes"] if v.get("secret", {}).get("secretName") == "the-key")
    (mount,) = (m["mountPath"] for m in holders[0].main["volumeMounts"] if m["name"] == volume)
    assert (len(holders), str(given.decrypt_with)) == (1, f"{mount}/tls.key")
    assert "the-key" not in chart.text({"etcd": {"restore": {"decryptWith": {"secret": "the-key"}}}})


def test_no_pod_has_the_key_of_a_ca() -> None:
    manifests = combinations.render("TLS for all")
    mounted = {v["secret"]["secretName"] for pod in pods(manifests) for v in pod.spec["volumes"] if "secret" in v}
    assert not mounted & {"headrace-ca", "headrace-etcd-ca"}
    kept = {f"headrace-{name}" for name in ("ca", "etcd-ca", "etcd-tls", "etcd-client-tls")}
    (role,) = (m for m in manifests if (m["kind"], m["metadata"]["name"]) == ("Role", "headrace-certificates"))
    assert kept < {name for rule in role["rules"] for name in rule.get("resourceNames", [])}


def test_an_etcd_of_yours_has_certificates_of_yours() -> None:
    etcd = {"etcd": {"external": {"endpoints": ["etcd:2379"], "tlsSecret": "g"}}}
    assert "headrace-etcd" not in chart.text({"tls": {"existing": combinations.OURS}} | etcd).replace(
        "headrace-etcd-backup", ""
    )
    manifests = chart.render(etcd)
    assert job(manifests).etcd == ""


_TLS: dict[bool, dict[str, Any]] = {False: combinations.PLAIN, True: {"security": {"mode": "open"}}}


@pytest.fixture(scope="module")
def upgrade(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """What an upgrade says to the etcd that is there; ``helm template`` can look at none."""
    copy = tmp_path_factory.mktemp("upgrade") / "headrace"
    shutil.copytree(chart.CHART, copy)
    call = '(dict "root" . "set" (fromJson (.Files.Get "set.json")) "claims" 3)'
    (copy / "templates" / "upgrade.yaml").write_text(f'{{{{- include "headrace.checkEtcdTls" {call} }}}}\nall: well\n')

    def said(*, was: bool, ready: int, now: bool, rolled: bool = True) -> str:
        found = one(chart.render(_TLS[was]), "StatefulSet/headrace-etcd")
        found["status"] = {"currentRevision": "a", "updateRevision": "a" if rolled else "b"}
        if ready:
            found["status"]["readyReplicas"] = ready
        (copy / "set.json").write_text(json.dumps(found))
        only = ["--namespace", NAMESPACE, "--show-only", "templates/upgrade.yaml"]
        try:
            return chart.run("template", "headrace", copy, *only, values=_TLS[now])
        except chart.Refused as refused:
            return str(refused)

    return said


def test_etcd_gets_tls_while_its_members_run_and_does_not_give_it_up(upgrade: Callable[..., str]) -> None:
    assert "0 of 3 run" in upgrade(was=False, ready=0, now=True)
    assert "2 of 3 run" in upgrade(was=False, ready=2, now=True)
    assert "do not go back" in upgrade(was=True, ready=3, now=False)
    for taken in (
        upgrade(was=False, ready=3, now=True),
        upgrade(was=False, ready=0, now=False),
        upgrade(was=True, ready=0, now=True),
        upgrade(was=True, ready=0, now=False),  # they never ran with it
        upgrade(was=True, ready=2, now=False, rolled=False),
    ):
        assert "all: well" in taken


# --- without ---------------------------------------------------------------------------------------------------------


def test_with_yours_nothing_is_made() -> None:
    text = chart.text(combinations.BY_NAME["certificates of ours"])
    assert "certificate_secrets" not in text
    assert "headrace-certificates" not in text


@pytest.mark.parametrize("values", [combinations.PLAIN, combinations.BY_NAME["open and plain"]])
def test_without_there_is_nothing_of_it(values: dict[str, Any]) -> None:
    text = chart.text(values)
    assert "/etc/headrace/tls" not in text
    assert "/etc/headrace/pair" not in text
    assert "HEADRACE_CA" not in text
    assert "certificate" not in text
    assert "https" not in text
    assert "etcd-tls" not in text


def test_clients_with_certificates_have_ports_of_their_own_and_pods_their_ca() -> None:
    manifests, chart_services = combinations.render("clients with certificates"), {"controller", *flows.MTLS}
    for pod in (pod for pod in pods(manifests) if pod.component in chart_services):
        ports = {port["name"]: port["containerPort"] for port in pod.main["ports"]}
        mounted = {mount["name"]: mount["mountPath"] for mount in pod.main["volumeMounts"]}
        if pod.component == "controller":
            assert "mtls" not in ports
            assert "client-ca" not in mounted
            continue
        assert ports["mtls"] == flows.MTLS[pod.component]
        env = {one["name"]: one.get("value") for one in pod.main["env"]}
        prefix = f"HEADRACE_{pod.component.upper()}_MTLS"
        assert env[f"{prefix}_LISTEN"] == f"0.0.0.0:{flows.MTLS[pod.component]}"
        assert env[f"{prefix}_CLIENT_CA"] == f"{mounted['client-ca']}/ca.crt"
        [volume] = [volume for volume in pod.spec["volumes"] if volume["name"] == "client-ca"]
        assert volume["secret"]["secretName"] == "their-ca"
        assert volume["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}], "and no key that may be beside it"
    bootstrap = one(manifests, "Service/headrace-bootstrap")
    assert {port["name"]: port["port"] for port in bootstrap["spec"]["ports"]} == {"grpc": 9292, "mtls": 9295}
    assert "mtls" not in str(one(chart.render(), "Service/headrace-bootstrap"))


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """What an upgrade says to the pods that run."""
    copy = tmp_path_factory.mktemp("moved") / "headrace"
    shutil.copytree(chart.CHART, copy)
    call = '(merge (dict "root" .) (fromJson (.Files.Get "pods.json")))'
    (copy / "templates" / "upgrade.yaml").write_text(f'{{{{- include "headrace.checkTlsMode" {call} }}}}\nall: well\n')

    def said(was: str, now: str, *rolling: str) -> str:
        (copy / "pods.json").write_text(json.dumps({"was": was, "mode": "open", "rolling": list(rolling)}))
        only = ["--namespace", NAMESPACE, "--show-only", "templates/upgrade.yaml"]
        tls = {"mode": now} if now else {"enabled": False}
        try:
            return chart.run("template", "headrace", copy, *only, values={"tls": tls, "security": {"mode": "open"}})
        except chart.Refused as refused:
            return str(refused)

    return said


def test_pods_in_plain_text_get_tls_step_by_step(moved: Callable[..., str]) -> None:
    for was, now in (("", "allow"), ("allow", "prefer"), ("prefer", "require"), ("require", "prefer"), ("", "")):
        assert "all: well" in moved(was, now), (was, now)
    for was, now, why in (
        ("", "prefer", "beginning with tls.mode=allow"),
        ("", "require", "To leave it as it is: --set tls.enabled=false,security.mode=open"),
        ("allow", "require", "tls.mode is allow and does not become require at once"),
        ("require", "allow", "set tls.mode=prefer"),
        ("prefer", "", "call each other by TLS"),
    ):
        assert why in moved(was, now), (was, now)
    assert "those of broker, admin have not: kubectl -n test rollout status statefulset/headrace-broker" in moved(
        "allow", "prefer", "broker", "admin"
    ).replace(f"-n {NAMESPACE} ", "-n test ")
    assert "all: well" in moved("allow", "allow", "broker")
    assert "all: well" in moved("", "allow", "broker"), "a new image may roll at the same time"


def test_a_step_of_the_move_tells_clients_nothing_too_early() -> None:
    tls = {"tls": {"mode": "allow"}, "security": {"mode": "open"}}
    workers = combinations.CONNECT | {"streamsApps": combinations.STREAMS_APPS}
    for mode, clients in (("allow", False), ("prefer", True)):
        manifests = chart.render(tls | workers | {"tls": {"mode": mode}, "client": {"enabled": True}})
        asked = []
        for pod in pods(manifests):
            told = {variable["name"]: variable.get("value") for variable in pod.main.get("env") or []}
            modes = {value for name, value in told.items() if name.endswith("_TLS_MODE")}
            assert modes <= {mode}, pod.name
            assert pod.component not in {"connect", "streams"} or modes, pod.name
            asked += re.findall(r"(https?)://(?:127.0.0.1|headrace-connect-rest)", str(pod.main))
            assert not clients or "HEADRACE_BOOTSTRAP" not in told or "HEADRACE_CA" in told, pod.name
            assert clients or "HEADRACE_CA" not in told, pod.name
        assert asked == ["https" if clients else "http"] * 2, "by who is in a pod of Connect, and by the job"
