"""What the chart has certificates name, and where processes find theirs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.deploy import chart, combinations
from tests.deploy.manifests import Manifest, Pod, lasting, one, pod_of, pods

from headrace_common.runtime.certificates import leaf_of, make_ca, make_pair, names_of
from headrace_controller.certificate_secrets import LEAF_LIFE, parse_arguments

pytestmark = pytest.mark.chart

NAMESPACE = chart.NAMESPACE


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
    leaves = [leaf_of(role, text.split(","), "headrace") for role, text in job(chart.render(given)).role.items()]
    return {leaf.name: names_of(make_pair(ca, leaf, now, LEAF_LIFE).certificate) for leaf in leaves}


def test_certificates_name_all_by_which_clients_connect() -> None:
    names = named({"tls": {"enabled": True, "hosts": ["192.0.2.7"]}})
    inside = f"{NAMESPACE}.svc.cluster.local"
    assert {f"headrace-bootstrap.{inside}", "headrace-bootstrap", "localhost", "broker.headrace"} <= names["broker"]
    assert {f"headrace-rest.{inside}", f"headrace-admin.{inside}", "127.0.0.1", "192.0.2.7"} <= names["admin"]
    assert {"coordinator.headrace", "spiffe://headrace/coordinator", "192.0.2.7"} <= names["coordinator"]
    assert "spiffe://headrace/controller" in names["controller"]
    assert "192.0.2.7" not in names["controller"], "it has no clients"


def test_and_those_outside() -> None:
    outside = {"enabled": True, "type": "LoadBalancer", "domain": "example.com"}
    names = named({"tls": {"enabled": True}, "external": outside, "statefulset": {"replicas": 2}})
    assert {"headrace-broker-0.example.com", "headrace-broker-1.example.com"} <= names["broker"]
    assert "headrace-bootstrap.example.com" in names["broker"]
    assert "headrace-broker-2.example.com" not in names["broker"]
    assert "headrace-admin-0.example.com" in names["admin"]


def test_what_is_done_daily_is_what_the_hook_does() -> None:
    manifests = combinations.render("TLS for all")
    assert job(manifests) == job(manifests, "CronJob/headrace-certificates")


def environment(pod: Pod) -> dict[str, str]:
    return {variable["name"]: variable.get("value", "") for variable in pod.containers[0].get("env") or []}


@pytest.mark.parametrize("values", ["TLS for all", "certificates of ours"])
def test_each_process_finds_its_own(values: str) -> None:
    manifests = combinations.render(values)
    ours = values == "certificates of ours"
    existing = combinations.BY_NAME[values]["tls"].get("existing", {})
    for pod in pods(manifests):
        role, told = pod.component, environment(pod)
        mounted = {volume["name"]: volume for volume in pod.spec.get("volumes", [])}.get("tls")
        where = {mount["name"]: mount["mountPath"] for mount in pod.containers[0].get("volumeMounts", [])}
        if role in {"etcd", "backup", "node-token", "certificates"}:
            assert mounted is None, "it is no client, and serves none"
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


def test_with_yours_nothing_is_made() -> None:
    text = chart.text(combinations.BY_NAME["certificates of ours"])
    assert "certificate_secrets" not in text
    assert "headrace-certificates" not in text


def test_without_there_is_nothing_of_it() -> None:
    text = chart.text({})
    assert "/etc/headrace/tls" not in text
    assert "HEADRACE_CA" not in text
    assert "certificate" not in text
