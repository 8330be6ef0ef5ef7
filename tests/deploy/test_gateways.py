"""Routes of a Gateway: each leads to one pod, by the name that clients are told and that its certificate has."""

from __future__ import annotations

from typing import Any

import pytest
from tests.deploy import chart, combinations, flows
from tests.deploy.manifests import Manifest, of_kind, one, pod_of
from tests.deploy.test_certificates import named

pytestmark = pytest.mark.chart

VALUES = combinations.BY_NAME["gateway"]
ROLES = {"broker": 3, "coordinator": 2, "admin": 1}
PODS = [f"headrace-{role}-{n}" for role, count in ROLES.items() for n in range(count)]


def role_of(pod: str) -> str:
    """The bootstrap address leads to brokers."""
    return "broker" if pod == "headrace-bootstrap" else pod.split("-")[1]


def routes(manifests: list[Manifest], kind: str) -> dict[str, dict[str, Any]]:
    """By the pod that each leads to, or headrace-bootstrap."""
    return {route["metadata"]["name"].removesuffix("-external"): route for route in of_kind(manifests, kind)}


def test_tls_is_passed_through_to_each_pod_by_a_name_that_its_certificate_has() -> None:
    manifests, names = combinations.render("gateway"), named(VALUES)
    told = one(manifests, "ConfigMap/headrace-external")["data"]
    found = routes(manifests, "TLSRoute")
    assert sorted(told) == sorted(PODS)
    assert sorted(found) == sorted([*PODS, "headrace-bootstrap"])
    assert not of_kind(manifests, "GRPCRoute")
    hosts = [host for route in found.values() for host in route["spec"]["hostnames"]]
    assert len(hosts) == len({*hosts}) == len(found), "each name leads to one place"
    for pod, route in found.items():
        assert route["apiVersion"] == "gateway.networking.k8s.io/v1"
        assert route["spec"]["parentRefs"] == VALUES["external"]["gateway"]["parentRefs"]
        (host,) = route["spec"]["hostnames"]
        assert host in names[role_of(pod)]
        assert told.get(pod, f"{host}:443") == f"{host}:443"
        ((backend,),) = [rule["backendRefs"] for rule in route["spec"]["rules"]]
        service = one(manifests, f"Service/{backend['name']}")["spec"]
        (port,) = service["ports"]
        assert port["port"] == backend["port"] == flows.EXTERNAL[role_of(pod)]
        assert "appProtocol" not in port, "what comes is TLS, and not HTTP in plain text"
        assert service["type"] == "ClusterIP"
        selected = service["selector"].get("statefulset.kubernetes.io/pod-name", "headrace-bootstrap")
        assert selected == pod
        serves = pod_of(one(manifests, f"StatefulSet/headrace-{role_of(pod)}"))
        assert serves is not None
        assert (port["targetPort"], backend["port"]) in {(p["name"], p["containerPort"]) for p in serves.main["ports"]}


def test_without_tls_they_are_of_grpc() -> None:
    manifests = chart.render(VALUES | combinations.PLAIN)
    assert sorted(routes(manifests, "GRPCRoute")) == sorted([*PODS, "headrace-bootstrap"])
    assert not of_kind(manifests, "TLSRoute")
    told = one(manifests, "ConfigMap/headrace-external")["data"]
    assert told["headrace-admin-0"] == "headrace-admin-0.example.com:80"
    (port,) = one(manifests, "Service/headrace-admin-0-external")["spec"]["ports"]
    assert port["appProtocol"] == "kubernetes.io/h2c"


def test_the_port_is_that_of_the_values_and_the_version_that_of_the_cluster() -> None:
    given = {"external": VALUES["external"] | {"port": 8443}}
    has = [word for n in (2, 3) for word in ("--api-versions", f"gateway.networking.k8s.io/v1alpha{n}/TLSRoute")]
    text = chart.run("template", "headrace", chart.CHART, "--show-only", "templates/external.yaml", *has, values=given)
    assert text.count("apiVersion: gateway.networking.k8s.io/v1alpha3\nkind: TLSRoute") == len(PODS) + 1
    assert '"headrace-broker-2.example.com:8443"' in text
