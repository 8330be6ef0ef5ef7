"""
Values that the API server or a process would refuse are refused here, before anything is changed, with their key; what
they take is taken. Each line was tried against an API server (1.34) or the code that reads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.deploy import chart

pytestmark = pytest.mark.chart

_JOB = {"name": "a", "job": "retention_audit"}
_RULE = {"principal": "User:a", "allow": ["read"], "type": "topic", "pattern": "t"}
_ISSUER = {"alias": "a", "iss": "i", "audiences": ["log"], "jwks": "https://a/keys"}
_OUTSIDE = {"enabled": True, "domain": "example.com"}
_GATEWAY = {"enabled": True, "type": "Gateway", "gateway": {"parentRefs": [{"name": "edge"}]}}


def nested(key: str, value: Any) -> dict[str, Any]:
    """Values with one key."""
    for name in reversed(key.split("/")):
        value = {name: value}
    found: dict[str, Any] = value
    return found


def outside(**given: Any) -> dict[str, Any]:
    return {"external": _OUTSIDE | given}


def peer(given: Any) -> dict[str, Any]:
    return {"networkPolicy": {"clients": [{"podSelector": {}}, given]}}


def asked(kind: str, requests: Any, limits: Any, component: str = "jobs") -> dict[str, Any]:
    return {"resources": {component: {"requests": {kind: requests}, "limits": {kind: limits}}}}


def refused(given: dict[str, Any]) -> str:
    with pytest.raises(chart.Refused) as found:
        chart.text(given)
    # The schema names a key as /a/b/0, our checks as a.b.
    return re.sub(r"'/([^']*)'", lambda key: key[1].replace("/", "."), str(found.value))


SCHEDULES = {
    "0 0 * * fri-mon": "the range fri-mon of day of the week ends before",
    "0 0 * NOV-feb *": "the range NOV-feb of month ends before",
    "0 0 * * 5-mon": "the range 5-mon of day of the week ends before",
    "0 0 * * 6-sun": "the range 6-sun of day of the week ends before",
    "0 0 * nov-2/2 *": "the range nov-2 of month ends before",
    "0 0 * * 1,sat-3": "the range sat-3 of day of the week ends before",
    "0 0 * * 7": '"7" is no day of the week',
    "0 0 * * 5-7": '"5-7" is no day of the week',
    "*/99999999999999999999 * * * *": "is no minute",
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_that_cron_does_not_read_is_refused(schedule: str) -> None:
    of_jobs = {"sparkJobs": [_JOB | {"schedule": schedule}]}
    for key, given in ("etcd.backup", nested("etcd/backup/schedule", schedule)), ("sparkJobs.a", of_jobs):
        said = refused(given)
        assert f"{key}.schedule: " in said
        assert SCHEDULES[schedule] in said


NO_NETWORKS = [
    *(":::/0", "1::2::3/64", "1:2:3:4:5:6:7:8::/64", "::1:2:3:4:5:6:7:8/1", "1:2:3:4:5:6:7/64", "12345::/16", "::/129"),
    *("::1.2.3.4:5/128", "1:2:3:4:5:6:7:1.2.3.4/120", "1::1.2.3.256/128", ":1::/16", "1::2:/16", "::", "g::/8"),
    *("10.0.0.256/8", "10.0.0.0/33", "10.0.0/8", "10.0.0.0", "10.0.0.00/8", "10.0.0.0/08", "", "/8"),
]


@pytest.mark.parametrize("network", NO_NETWORKS)
def test_what_is_no_network_is_refused(network: str) -> None:
    assert "external.sourceRanges" in refused(outside(sourceRanges=["10.0.0.0/8", network]))
    assert "networkPolicy.clients" in refused(peer({"ipBlock": {"cidr": network}}))
    assert "networkPolicy.clients" in refused(peer({"ipBlock": {"cidr": "0.0.0.0/0", "except": [network]}}))


def test_networks_are_taken() -> None:
    networks = ["::/0", "fe80::/10", "2001:DB8::/32", "1:2:3:4:5:6:7::/112", "1:2:3:4:5:6:7:8/128", "0.0.0.0/0"]
    networks += ["::1.2.3.4/128", "10.20.0.0/16", "1::/16", "2001:db8:0:1::/64", "192.0.2.7/32"]
    given = outside(sourceRanges=networks) | {
        "networkPolicy": {
            "clients": [{"ipBlock": {"cidr": network}} for network in networks],
            "tracing": [
                {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16", "10.2.3.0/24"]}},
                {"ipBlock": {"cidr": "2001:db8::/32", "except": ["2001:db8:1::/48"]}},
            ],
        }
    }
    assert "2001:db8:1::/48" in str(chart.render(given | {"config": {"broker": {"otlp_endpoint": "c.t:4317"}}}))


REFUSED: list[tuple[dict[str, Any], str]] = [
    (nested("external/sourceRanges", [":::/0"]), "external.sourceRanges"),  # the network policy has it too
    # Network policies
    (peer({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"]}}), "networkPolicy.clients: 11.0.0.0/16"),
    (peer({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.0.0.0/8"]}}), "networkPolicy.clients: 10.0.0.0/8"),
    (peer({"ipBlock": {"cidr": "1::/16", "except": ["2::/32"]}}), "networkPolicy.clients: 2::/32"),
    (peer({"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}), "networkPolicy.clients: "),
    (peer({}), "networkPolicy.clients"),
    (peer({"podSelector": {"matchLabels": {"a/b/c": "x"}}}), "networkPolicy.clients.1.podSelector.matchLabels"),
    (peer({"namespaceSelector": {"matchLabels": {"a": "x y"}}}), "clients.1.namespaceSelector.matchLabels.a"),
    (
        peer({"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}),
        "networkPolicy.clients.1.podSelector.matchExpressions.0",
    ),
    (
        peer({"podSelector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}}),
        "networkPolicy.clients.1.podSelector.matchExpressions.0",
    ),
    # Labels and names
    (nested("statefulset/podLabels", {"a/b/c": "x"}), "statefulset.podLabels"),
    (nested("statefulset/podLabels", {"A.b/c": "x"}), "statefulset.podLabels"),
    (nested("controller/podLabels", {"-c": "x"}), "controller.podLabels"),
    (nested("controller/podLabels", {"c" * 64: "x"}), "controller.podLabels"),
    (nested("coordinator/podLabels", {"c": "-x"}), "coordinator.podLabels.c"),
    (nested("admin/podLabels", {"c": "x" * 64}), "admin.podLabels.c"),
    (nested("etcd/nodeSelector", {"a/b/c": "x"}), "etcd.nodeSelector"),
    (nested("spark/nodeSelector", {"a": "x y"}), "spark.nodeSelector.a"),
    (nested("statefulset/podAnnotations", {"a b": "x"}), "statefulset.podAnnotations"),
    (nested("external/annotations", {"a_b/c": "x"}), "external.annotations"),
    (nested("monitoring/podMonitor/labels", {"a": "x y"}), "monitoring.podMonitor.labels.a"),
    (nested("monitoring/dashboards/annotations", {"a b": "x"}), "monitoring.dashboards.annotations"),
    (nested("rackAwareness/podLabel", "a/b/c"), "rackAwareness.podLabel"),
    (nested("statefulset/priorityClassName", "Nope_X"), "statefulset.priorityClassName"),
    (nested("storage/storageClass", "Fast"), "storage.storageClass"),
    (nested("etcd/backup/storage/storageClass", "a..b"), "etcd.backup.storage.storageClass"),
    (nested("image/pullSecrets", ["a_b"]), "image.pullSecrets.0"),
    (nested("image/pullSecrets", ["a..b"]), "image.pullSecrets.0"),
    (nested("image/repository", "a//b"), "image.repository"),
    (nested("image/registry", "-x.example.com"), "image.registry"),
    (nested("spark/serviceAccount/name", "Nope_X"), "spark.serviceAccount.name"),
    (nested("clusterDomain", "a..b"), "clusterDomain"),
    (nested("external/gateway/parentRefs", [{"name": "A_b"}]), "external.gateway.parentRefs.0.name"),
    (nested("external/gateway/parentRefs", [{"name": "a", "namespace": "a.b"}]), "parentRefs.0.namespace"),
    (nested("external/gateway/parentRefs", [{"name": "a", "port": 65536}]), "parentRefs.0.port"),
    # Probes
    (nested("statefulset/livenessProbe", {"successThreshold": 2}), "statefulset.livenessProbe.successThreshold"),
    (nested("etcd/startupProbe", {"successThreshold": 2}), "etcd.startupProbe.successThreshold"),
    (nested("admin/readinessProbe", {"successThreshold": 0}), "admin.readinessProbe.successThreshold"),
    (nested("admin/readinessProbe", {"periodSeconds": 0}), "admin.readinessProbe.periodSeconds"),
    (nested("admin/readinessProbe", {"periodSeconds": 2**31}), "admin.readinessProbe.periodSeconds"),
    (nested("controller/livenessProbe", {"timeoutSeconds": 0}), "controller.livenessProbe.timeoutSeconds"),
    (nested("controller/livenessProbe", {"failureThreshold": 0}), "controller.livenessProbe.failureThreshold"),
    (nested("controller/livenessProbe", {"initialDelaySeconds": -1}), "controller.livenessProbe.initialDelaySeconds"),
    (nested("controller/livenessProbe", {"terminationGracePeriodSeconds": 0}), "terminationGracePeriodSeconds"),
    (nested("controller/readinessProbe", {"terminationGracePeriodSeconds": 9}), "terminationGracePeriodSeconds"),
    (nested("controller/livenessProbe", {"tcpSocket": {"port": 0}}), "controller.livenessProbe.tcpSocket.port"),
    (nested("controller/livenessProbe", {"exec": {}}), "controller.livenessProbe.exec"),
    (
        nested("controller/livenessProbe", {"tcpSocket": {"port": 1}, "exec": {"command": ["a"]}}),
        "controller.livenessProbe: ",
    ),
    # Tolerations
    (nested("statefulset/tolerations", [{"key": "a/b/c", "operator": "Exists"}]), "statefulset.tolerations.0.key"),
    (nested("statefulset/tolerations", [{"key": "a", "operator": "Exists", "value": "x"}]), "tolerations.0.value"),
    (nested("statefulset/tolerations", [{"key": "a", "value": "x y"}]), "statefulset.tolerations.0.value"),
    (nested("statefulset/tolerations", [{"operator": "Equal", "value": "x"}]), "statefulset.tolerations.0"),
    (
        nested("admin/tolerations", [{"key": "a", "value": "x", "effect": "NoSchedule", "tolerationSeconds": 5}]),
        "admin.tolerations.0.effect",
    ),
    (
        nested("admin/extraEnv", [{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "a"}}}]),
        "admin.extraEnv.0",
    ),
    # Resources and sizes
    (asked("cpu", 2, "1999m"), "resources.jobs: requests.cpu 2 is more than limits.cpu 1999m"),
    (asked("cpu", "1.001", 1, "broker"), "resources.broker: requests.cpu 1.001 is more than limits.cpu 1"),
    (asked("ephemeral-storage", "2Gi", "1Gi"), "resources.jobs: requests.ephemeral-storage 2Gi is more"),
    (asked("memory", "2e9", "1Gi"), "resources.jobs: requests.memory 2e9 is more"),
    (asked("memory", 20000000000, "1E3M"), "resources.jobs"),
    (asked("nvidia.com/gpu", 1, 2), "resources.jobs: requests.nvidia.com/gpu 1 has to be limits.nvidia.com/gpu 2"),
    (asked("hugepages-2Mi", "2Mi", "4Mi"), "resources.jobs: requests.hugepages-2Mi 2Mi has to be"),
    ({"resources": {"etcd": {"requests": {"nvidia.com/gpu": 1}}}}, "resources.etcd: requests.nvidia.com/gpu"),
    ({"resources": {"etcd": {"limits": {"nvidia.com/gpu": 1.5}}}}, "resources.etcd: limits.nvidia.com/gpu"),
    ({"resources": {"broker": {"limits": {"memory": -1}}}}, "resources.broker.limits.memory"),
    *(
        (nested("storage/size", size), "storage.size")
        for size in ("1e3M", "1K", "1e", "1 Gi", "-1Gi", "1Eim", "Gi", "1e3Gi", "1.2.3Gi", -5, True)
    ),
    *((nested("storage/size", size), "storage.size: ") for size in ("0", 0, "0Gi", 20, "500m")),
    (nested("etcd/storage/size", 4), "etcd.storage.size: 4 "),
    (nested("etcd/backup/storage/size", "1000"), "etcd.backup.storage.size: 1000 "),
    (nested("spark/driver", {"coreLimit": "50m"}), "sparkJobs.a.driver: coreRequest 100m is more than coreLimit 50m"),
    # Access
    (nested("tls/enabled", False), "Without TLS a cluster is open: security.mode=open"),
    (
        nested("tls/enabled", False) | nested("security/mode", "permissive"),
        "security.mode: permissive needs tls.enabled=true",
    ),
    (nested("auth/oidc", [_ISSUER | {"alias": "kubernetes"}]), "auth.oidc.0.alias"),
    (nested("auth/oidc", [_ISSUER | {"jwks": "http://a/keys"}]), "auth.oidc.0.jwks"),
    (nested("auth/oidc", [_ISSUER | {"algorithms": ["none"]}]), "auth.oidc.0.algorithms"),
    (nested("auth/oidc", [_ISSUER, _ISSUER | {"iss": "other"}]), 'auth.oidc: two issuers have the alias "a"'),
    (nested("auth/oidc", [_ISSUER, _ISSUER | {"alias": "b"}]), 'auth.oidc: two issuers have the iss "i"'),
    (nested("auth/oidc", [_ISSUER]) | nested("security/mode", "open"), "auth.oidc: nobody looks at tokens"),
    (
        nested("auth/oidc", [_ISSUER | {"egress": [{"ipBlock": {"cidr": "10.0.0.0/33"}}]}]),
        'auth.oidc.a.egress: "10.0.0.0/33" is no network',
    ),
    (nested("client", {"enable": True}), "client"),
    (nested("users", [{"name": "Alice"}]), "users.0.name"),
    (
        {"tls": {"enabled": False, "certManager": {"issuerRef": {"name": "ca"}}}, "security": {"mode": "open"}},
        "tls.certManager.issuerRef: with tls.enabled=false nobody needs certificates",
    ),
    (
        {"tls": {"certManager": {"issuerRef": {"name": "ca"}}, "existing": {"ca": "ours", "broker": "b"}}},
        "tls.existing: cert-manager makes the certificates, by tls.certManager.issuerRef, and broker is there too",
    ),
    (
        {"audit": {"to": ["stdout"], "storage": {"size": "1Gi"}}},
        "audit.storage: nothing is kept there without topic or file in audit.to",
    ),
    (nested("audit/to", ["topics"]), "audit.to.0"),
    (nested("users", [{"name": "a"}, {"name": "a"}]), "users: a is there twice"),
    (nested("users", [{"name": "a"}]) | nested("security/mode", "open"), "users: nobody asks for keys"),
    (nested("access/rules", [_RULE | {"deny": ["read"]}]), "access.rules.0"),
    (nested("access/rules", [_RULE | {"type": "topics"}]), "access.rules.0.type"),
    (nested("access/rules", [_RULE | {"principal": "alice"}]), "access.rules.0.principal"),
    (nested("access/bindings", [{"principal": "User:a"}]), "access.bindings.0"),
    (nested("access/roles", [{"name": "r", "gives": {}}]), "access.roles.0.gives"),
    (nested("access/rules", [_RULE]) | nested("security/mode", "open"), "access.rules: nobody asks for rights"),
    (nested("security/mode", "shut"), "security.mode"),
    (nested("tls/mode", "maybe"), "tls.mode"),
    ({"tls": {"mode": "allow"}}, "security.mode cannot be closed yet"),
    ({"tls": {"mode": "allow"}, "security": {"mode": "permissive"}}, "security.mode cannot be permissive yet"),
    ({"tls": {"mode": "prefer"}}, "plain text is answered, and a closed cluster takes none"),
    ({"tls": {"enabled": False, "mode": "allow"}, "security": {"mode": "open"}}, "set tls.enabled=true"),
    *(
        (nested("security/superUsers", ["User:a", user]), "security.superUsers.1")
        for user in ("alice", "user:alice", "User:", "User:a,b", "User:ANONYMOUS", "User:*", "Node:broker", "Oidc:a")
    ),
    *((nested("security/superUsers", [f"ServiceAccount:{n}"]), "security.superUsers.0") for n in ("a", "a/b/c", "/b")),
    (nested("security/admin/existingSecret", "A_b"), "security.admin.existingSecret"),
    (nested("connect/apiKeySecret", "A_b"), "connect.apiKeySecret"),
    # Numbers as text
    (nested("config/cluster", {"cluster.expected.brokers": "-5"}), "cluster.expected.brokers"),
    (nested("config/cluster", {"num.partitions": "0"}), "config.cluster.num.partitions"),
    # Addresses
    (outside(domain="ev..ents"), "external.domain"),
    (outside(domain="-a.b"), "external.domain"),
    (outside(domain="a" * 64), "external.domain"),
    (outside(domain="events.example.com."), "it cannot end with a dot; set external.domain"),
    (outside(host="999.1.1.{{ .index }}"), 'external.host gives the address "999.1.1.0"'),
    (outside(host="10.0.{{ .index }}"), 'external.host gives the address "10.0.0"'),
    (outside(host="{{ .pod }}..a"), "external.host gives the address"),
    (outside(host="{{ .pod }}.a_b"), "external.host gives the address"),
    (outside(host="1::2::{{ .index }}"), "external.host gives the address"),
    (outside(host="{{ .pod }}.example.com."), "it cannot end with a dot"),
    (outside(host="{{ .pod }}." + "a" * 64), "external.host gives the address"),
    (outside(host="{{ .pod }}." + ".".join(["a" * 60] * 4)), "external.host gives the address"),
    ({"external": _GATEWAY | {"host": "192.0.2.{{ .index }}"}}, 'external.host gives "192.0.2.0"'),
    ({"external": _GATEWAY | {"host": "fd00::{{ .index }}"}}, 'external.host gives "fd00::0"'),
    ({"external": _GATEWAY | {"host": "{{ .pod }}.Example.com"}}, "external.host gives"),
    *(
        (nested("etcd/external/endpoints", [f"etcd.example.com:{port}"]), "etcd.external.endpoints")
        for port in (0, 65536, 99999, "02379")
    ),
    (nested("etcd/external/endpoints", ["a..b:2379"]), "etcd.external.endpoints"),
    (nested("etcd/external/endpoints", ["999.1.1.0:2379"]), "etcd.external.endpoints"),
    *(
        (nested("config/controller/otlp_endpoint", at), "config.controller.otlp_endpoint: ")
        for at in ("c.t:0", "c.t:65536", "http://c.t", "http://c.t:4317/v1", "grpc://c.t:4317", "c..t:1", "http://:1")
    ),
]


@pytest.mark.parametrize(("given", "says"), REFUSED, ids=lambda given: given if isinstance(given, str) else "")
def test_it_is_refused_with_the_key(given: dict[str, Any], says: str) -> None:
    if "coreLimit" in str(given):
        given = given | {"sparkJobs": [_JOB]}
    assert says in refused(given)


TAKEN: dict[str, dict[str, Any]] = {
    "schedules": {
        "etcd": {"backup": {"schedule": "5/15 0-6 * jan-3,NOV-dec sun-6"}},
        "sparkJobs": [_JOB | {"schedule": "0 0 * * FRI-sat"}],
    },
    "a word for a schedule": nested("etcd/backup/schedule", "@midnight"),
    "labels": {
        "statefulset": {
            "podLabels": {"example.com/Team_1": "A.b-c_d", "empty": "", "x" * 63: "y" * 63},
            "podAnnotations": {"example.com/note": "any text: {here}"},
            "nodeSelector": {"node-role.kubernetes.io/log": ""},
            "priorityClassName": "system-node.critical",
            "tolerations": [
                {"operator": "Exists"},
                {"key": "example.com/a", "value": "x", "effect": "NoExecute", "tolerationSeconds": 5},
                {"key": "b", "operator": "Exists", "effect": "NoSchedule"},
            ],
        },
        "rackAwareness": {"enabled": True, "podLabel": "rack"},
    },
    "peers": peer({"podSelector": {"matchExpressions": [{"key": "a.b/c", "operator": "NotIn", "values": ["d"]}]}}),
    "probes": {
        "statefulset": {
            "readinessProbe": {"successThreshold": 3, "initialDelaySeconds": 0},
            "livenessProbe": {"successThreshold": 1, "terminationGracePeriodSeconds": 1, "tcpSocket": {"port": "grpc"}},
            "startupProbe": {"exec": {"command": ["true"]}},
        }
    },
    "equal": asked("cpu", "0.3", "300m"),
    "equal in other words": asked("memory", 2147483648, "2Gi", "broker"),
    "one of many": asked("nvidia.com/gpu", 1, "1"),
    "an address of IPv4": {"external": {"enabled": True, "type": "NodePort", "host": "192.0.2.7"}},
    "an address of IPv6": {"external": {"enabled": True, "type": "NodePort", "host": "::1"}},
    "upper case": outside(domain="Events.example.COM"),
    "digits in a name": outside(host="{{ .pod }}.1.example"),
    "etcd of yours": nested("etcd/external/endpoints", ["etcd:1", "10.0.0.7:65535", "Etcd-0.example.com:2379"]),
    "account": {"spark": {"serviceAccount": {"name": "a.b"}}, "sparkJobs": [_JOB]},
}


@pytest.mark.parametrize("what", TAKEN)
def test_it_is_taken(what: str) -> None:
    assert chart.render(TAKEN[what])


@pytest.mark.parametrize(
    "size",
    ["20000000000", 20000000000, "2e10", 2e10, "2E10", "1Ei", "2E", "2P", "1.5Gi", ".5Gi", "+5Gi", "5.Gi", "2e+10"],
)
def test_a_size_is_taken_as_kubernetes_takes_it(size: Any) -> None:
    manifests = chart.render(
        {
            "storage": {"size": size},
            "etcd": {"backup": {"storage": {"size": size}}},
            "resources": {
                "broker": {"limits": {"memory": size, "cpu": 2}, "requests": {"memory": "1Gi" if size != ".5Gi" else 1}}
            },
        }
    )
    [broker] = [m for m in manifests if (m["kind"], m["metadata"]["name"]) == ("StatefulSet", "headrace-broker")]
    [backup] = [m for m in manifests if m["kind"] == "PersistentVolumeClaim"]
    for claim in (broker["spec"]["volumeClaimTemplates"][0], backup):
        found = claim["spec"]["resources"]["requests"]["storage"]
        assert str(found) == (str(size) if isinstance(size, str) else "20000000000"), "nobody wrote an exponent"


@pytest.mark.parametrize(
    ("at", "port"),
    [("http://c.t:4317/", 4317), ("https://c.t:1", 1), ("c.t:65535", 65535), ("http://[fd00::1]:4317", 4317)],
)
def test_what_the_exporter_takes_is_taken_and_its_port_is_open(at: str, port: int) -> None:
    found = chart.render({"config": {"coordinator": {"otlp_endpoint": at}}})
    [policy] = [m for m in found if (m["kind"], m["metadata"]["name"]) == ("NetworkPolicy", "headrace-coordinator")]
    assert [{"protocol": "TCP", "port": port}] in [rule["ports"] for rule in policy["spec"]["egress"]]


def test_annotations_stay_text_whatever_their_templates_give() -> None:
    given = outside(annotations={"example.com/number": "0{{ .index }}", "example.com/list": "{{ .pod }}: [a, b]"})
    services = [
        m for m in chart.render(given) if m["metadata"]["name"].endswith("-external") and m["kind"] == "Service"
    ]
    assert all(isinstance(text, str) for one in services for text in one["metadata"]["annotations"].values())


def _needed(schema: dict[str, Any], at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if "$ref" in schema:
        schema = chart.schema()["definitions"][schema["$ref"].rpartition("/")[2]]
    for key, part in schema.get("properties", {}).items():
        if at and key in schema.get("required", ()):
            yield (*at, key)
        if not at or at[0] != "topics":
            yield from _needed(part, (*at, key))


def _has_default(path: tuple[str, ...]) -> bool:
    values: Any = chart.default_values()
    for key in path:
        if not isinstance(values, dict) or key not in values:
            return False
        values = values[key]
    return True


@pytest.mark.parametrize("path", [path for path in _needed(chart.schema()) if _has_default(path)], ids=".".join)
def test_a_value_that_is_needed_cannot_be_taken_away(path: tuple[str, ...]) -> None:
    """``null`` takes a default away before the schema is asked, and an absent number of replicas would be none."""
    given: Any = None
    for key in reversed(path):
        given = {key: given}
    with pytest.raises(chart.Refused, match=rf"missing propert(y|ies) .*'{path[-1]}'"):
        chart.text(given)


def test_brokers_and_the_time_that_they_get_to_stop_are_needed() -> None:
    needed = {".".join(path) for path in _needed(chart.schema())}
    assert {
        "statefulset.replicas",
        "statefulset.terminationGracePeriodSeconds",
        "listeners.broker.externalPort",
    } <= needed
    assert {
        "topologySpread.zone",
        "resources.broker",
        "storage.size",
        "etcd.storage.size",
        "config.controller",
    } <= needed
