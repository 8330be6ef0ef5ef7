"""The network policies of the chart allow exactly what ``flows.py`` lists; and the model that says so is no yes-man."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import pytest
from tests.deploy import chart, combinations, flows
from tests.deploy.manifests import COMPONENT, Manifest, Pod, of_kind, pods
from tests.deploy.networks import Peer, Policies, selects

DNS = Peer("dns", "kube-system", {"k8s-app": "kube-dns"})
PROMETHEUS = Peer("prometheus", "monitoring", {"app.kubernetes.io/name": "prometheus"})
CLIENT = Peer("client", chart.NAMESPACE, {"app": "shop"})
FAR_CLIENT = Peer("far client", "shops", {"app": "shop", "headrace.io/client": "true"})
STRANGER = Peer("stranger", "shops", {"app": "shop"})
OUTSIDE = Peer("outside", address="203.0.113.9")
COLLECTOR = Peer("collector", "tracing", {"app": "collector"})


def peer_of(pod: Pod) -> Peer:
    ports = {p["name"]: p["containerPort"] for c in pod.containers for p in c.get("ports", []) if "name" in p}
    return Peer(pod.name, chart.NAMESPACE, pod.labels, ports)


def asking(manifests: Sequence[Manifest]) -> set[str]:
    """The components that show the API server who they are."""
    return {
        pod.component
        for pod in pods(manifests)
        for volume in pod.spec.get("volumes", [])
        for source in volume.get("projected", {}).get("sources", [])
        if "audience" not in source.get("serviceAccountToken", {"audience": ""})
    }


def needed(source: Peer, target: Peer, clients: Sequence[Peer], asking: Set[str]) -> set[int]:
    """
    The ports of ``target`` that ``source`` has to reach, by ``flows.py``.

    Args:
        asking: components that ask the API server.
    """
    mine, theirs = source.labels.get(COMPONENT, ""), target.labels.get(COMPONENT, "")
    if not theirs:
        return flows.API_SERVER if mine in asking else set()
    if source is PROMETHEUS:
        return {flows.METRICS} if theirs in flows.SCRAPED else set()
    if source in clients:
        return flows.CLIENT.get(theirs, set())
    return flows.WITHIN.get((mine, theirs), set())


def wrong(manifests: Sequence[Manifest], clients: Sequence[Peer] = (CLIENT, FAR_CLIENT)) -> list[str]:
    """Every connection between any two that is allowed and should not be, or the reverse; on all ports there are."""
    policies, asks = Policies(manifests, chart.NAMESPACE), asking(manifests)
    ours = [peer_of(pod) for pod in pods(manifests)]
    others = [PROMETHEUS, CLIENT, FAR_CLIENT, STRANGER, OUTSIDE]
    pairs = [(a, b) for a in (*ours, *others) for b in (*ours, *others) if a in ours or b in ours]
    found = [
        f"{source.name} -> {target.name}:{port} {'is open' if allowed else 'is denied'}"
        for source, target in pairs
        for port in flows.PORTS
        if (allowed := policies.allow(source, target, port)) != (port in needed(source, target, clients, asks))
    ]
    for source in ours:
        if not all(policies.allow(source, DNS, 53, protocol) for protocol in ("UDP", "TCP")):
            found.append(f"{source.name} cannot resolve names")
        if policies.allow(source, DNS, 443) and source.labels[COMPONENT] not in asks:
            found.append(f"{source.name} reaches more than names in {DNS.namespace}")
        if any(policies.allow(peer, source, port, "UDP") for peer in others for port in flows.PORTS):
            found.append(f"{source.name} can be reached by UDP")
    return found


NAMED_CLIENTS = {
    "networkPolicy": {"clients": [{"namespaceSelector": {}, "podSelector": {"matchLabels": FAR_CLIENT.labels}}]}
}
"""With them the pods of the release's namespace are no clients, and each rule is needed by itself."""


SAME = sorted(set(combinations.NAMES) - {"open network"})


@pytest.mark.chart
class TestTheChart:
    @pytest.mark.parametrize("values", SAME)
    def test_what_is_needed_is_allowed_and_nothing_else(self, values: str) -> None:
        manifests = combinations.render(values)
        assert of_kind(manifests, "NetworkPolicy")
        assert not [text for text in wrong(manifests) if not _meant(values, text)]

    def test_without_policies_everything_is_open(self) -> None:
        found = wrong(combinations.render("open network"))
        assert any("stranger -> StatefulSet/headrace-etcd:2379 is open" in text for text in found)
        assert not any("is denied" in text for text in found)

    def test_another_release_beside_it_is_a_stranger(self) -> None:
        ours, theirs = chart.render(), chart.render(release="second")
        policies = Policies([*ours, *theirs], chart.NAMESPACE)
        for source in map(peer_of, pods(theirs)):
            for target in map(peer_of, pods(ours)):
                assert not [port for port in flows.PORTS if policies.allow(source, target, port)], (source, target)

    @pytest.mark.parametrize("values", ["load balancers", "node ports", "gateway", "own way in"])
    def test_clients_outside_reach_the_listeners_for_them_and_no_others(self, values: str) -> None:
        manifests = combinations.render(values)
        policies = Policies(manifests, chart.NAMESPACE)
        source = Peer("outside", address="198.51.100.7")
        for target in map(peer_of, pods(manifests)):
            reached = {port for port in flows.PORTS if policies.allow(source, target, port)}
            assert reached == {flows.EXTERNAL[c] for c in [target.labels.get(COMPONENT)] if c in flows.EXTERNAL}

    def test_clients_reach_the_listeners_for_certificates_where_there_are_some_and_nobody_else_does(self) -> None:
        for values, there in ((CERTIFIED, True), ("defaults", False)):
            manifests = combinations.render(values)
            policies = Policies(manifests, chart.NAMESPACE)
            ours = list(map(peer_of, pods(manifests)))
            for target in ours:
                wanted = {flows.MTLS[c] for c in [target.labels.get(COMPONENT)] if c in flows.MTLS and there}
                assert {port for port in _MTLS if policies.allow(FAR_CLIENT, target, port)} == wanted
                for source in (*ours, STRANGER, OUTSIDE):
                    assert not any(policies.allow(source, target, port) for port in _MTLS), (source, target)

    def test_traces_leave_where_the_values_say_so(self) -> None:
        manifests = combinations.render("topics and settings")
        policies = Policies(manifests, chart.NAMESPACE)
        broker = next(peer_of(pod) for pod in pods(manifests) if pod.component == "broker")
        assert policies.allow(broker, COLLECTOR, 4317)
        assert not Policies(chart.render(), chart.NAMESPACE).allow(broker, COLLECTOR, 4317)

    def test_the_api_server_is_where_the_values_say_so(self) -> None:
        api, other = Peer("api", address="10.0.0.1"), Peer("other", address="10.0.0.2")
        manifests = chart.render(
            combinations.BY_NAME["snapshots with Spark"]
            | {"networkPolicy": {"apiServer": [{"ipBlock": {"cidr": "10.0.0.1/32"}}], "apiServerPorts": [7443]}}
        )
        policies = Policies(manifests, chart.NAMESPACE)
        asks = [peer_of(pod) for pod in pods(manifests) if pod.component in {"node-token", "connect", "controller"}]
        assert len(asks) == 3
        for source in asks:
            assert policies.allow(source, api, 7443)
            assert not policies.allow(source, api, 443)
            assert not policies.allow(source, other, 7443)

    def test_clients_are_those_that_the_values_name(self) -> None:
        assert not wrong(chart.render(NAMED_CLIENTS), [FAR_CLIENT])
        assert wrong(chart.render(NAMED_CLIENTS))

    def test_a_policy_that_lacks_a_rule_is_found(self) -> None:
        count = 0
        for place, part, index in _rules(chart.render(NAMED_CLIENTS)):
            manifests = chart.render(NAMED_CLIENTS)
            rule, whose = manifests[place]["spec"][part][index], manifests[place]["spec"]["podSelector"]
            for policy in of_kind(manifests, "NetworkPolicy"):  # those of a job and of its hook say the same
                if policy["spec"]["podSelector"] == whose and rule in policy["spec"].get(part, []):
                    policy["spec"][part].remove(rule)
            assert wrong(manifests, [FAR_CLIENT]), (manifests[place]["metadata"]["name"], part, index)
            count += 1
        assert count > 20

    def test_a_rule_that_is_wider_is_found(self) -> None:
        for number in range(len(of_kind(chart.render(), "NetworkPolicy"))):
            manifests = chart.render()
            policy = of_kind(manifests, "NetworkPolicy")[number]
            for part in ("ingress", "egress"):
                if policy["spec"].get(part):
                    policy["spec"][part].append({"ports": [{"port": 22}]})
            assert wrong(manifests), policy["metadata"]["name"]


def _meant(values: str, text: str) -> bool:
    """
    External listeners are open to all, pods and addresses; to whom exactly, a test of its own says. Where an etcd that
    is not ours has its pods, nobody knows here.
    """
    if values == "issuers":
        return text.startswith("StatefulSet/headrace-controller ") and (
            ":443 is open" in text or ":8443 is" in text or "reaches more than names" in text
        )
    if values == "etcd of ours":
        return text.endswith(f":{flows.ETCD_CLIENT} is open") and text.startswith(_OF_ETCD)
    if values == CERTIFIED:
        return text.startswith(("client -> ", "far client -> ")) and any(f":{p} is open" in text for p in _MTLS)
    is_external = values in {"load balancers", "node ports", "gateway", "own way in"}
    return is_external and any(text.endswith(f":{port} is open") for port in flows.EXTERNAL.values())


CERTIFIED = "clients with certificates"
_MTLS = flows.MTLS.values()
_OF_ETCD = ("StatefulSet/headrace-controller ", "CronJob/headrace-", "Job/headrace-")


def _rules(manifests: Sequence[Manifest]) -> list[tuple[int, str, int]]:
    return [
        (place, part, index)
        for place, manifest in enumerate(manifests)
        if manifest["kind"] == "NetworkPolicy"
        for part in ("ingress", "egress")
        for index in range(len(manifest["spec"].get(part) or []))
    ]


def policy(**spec: Any) -> Manifest:
    return {"kind": "NetworkPolicy", "metadata": {"name": "p"}, "spec": {"podSelector": {}, **spec}}


A = Peer("a", "n", {"app": "a", "tier": "front"})
B = Peer("b", "n", {"app": "b"}, {"web": 80})
FAR = Peer("far", "m", {"app": "a"})
AT_B = {"podSelector": {"matchLabels": {"app": "b"}}}


class TestTheModel:
    """By the API's reference of NetworkPolicy."""

    @pytest.mark.parametrize(
        ("given", "allowed"),
        [
            ([], {"a", "far", "outside"}),
            ([policy(**AT_B)], set()),
            ([policy(**AT_B, ingress=[{}])], {"a", "far", "outside"}),
            ([policy(**AT_B, ingress=[{"from": [{"podSelector": {}}]}])], {"a"}),
            ([policy(**AT_B, ingress=[{"from": [{"podSelector": {"matchLabels": {"app": "b"}}}]}])], set()),
            ([policy(**AT_B, ingress=[{"from": [{"namespaceSelector": {}}]}])], {"a", "far"}),
            (
                [
                    policy(
                        **AT_B,
                        ingress=[
                            {"from": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"tier": "front"}}}]}
                        ],
                    )
                ],
                {"a"},
            ),
            (
                [
                    policy(
                        **AT_B,
                        ingress=[
                            {"from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "m"}}}]}
                        ],
                    )
                ],
                {"far"},
            ),
            ([policy(**AT_B, ingress=[{"from": [{"ipBlock": {"cidr": "203.0.113.0/24"}}]}])], {"outside"}),
            (
                [
                    policy(
                        **AT_B, ingress=[{"from": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["203.0.113.0/24"]}}]}]
                    )
                ],
                {"a", "far"},
            ),
            ([policy(**AT_B, ingress=[{"ports": [{"port": 80}]}])], {"a", "far", "outside"}),
            ([policy(**AT_B, ingress=[{"ports": [{"port": "web"}]}])], {"a", "far", "outside"}),
            ([policy(**AT_B, ingress=[{"ports": [{"port": 70, "endPort": 90}]}])], {"a", "far", "outside"}),
            ([policy(**AT_B, ingress=[{"ports": [{"port": 81}]}])], set()),
            ([policy(**AT_B, ingress=[{"ports": [{"port": 80, "protocol": "UDP"}]}])], set()),
            ([policy(**AT_B, ingress=[{"ports": [{"port": "rest"}]}])], set()),
            ([policy(**AT_B), policy(**AT_B, ingress=[{"from": [{"podSelector": {}}]}])], {"a"}),
            ([policy(podSelector={"matchLabels": {"app": "a"}}, policyTypes=["Egress"])], {"far", "outside"}),
            (
                [
                    policy(
                        podSelector={"matchLabels": {"app": "a"}},
                        egress=[{"to": [{"podSelector": {}}]}],
                        policyTypes=["Egress"],
                    )
                ],
                {"a", "far", "outside"},
            ),
            ([policy(**AT_B, egress=[{}], policyTypes=["Egress"])], {"a", "far", "outside"}),
            ([policy(**AT_B, egress=[{}])], set()),
        ],
    )
    def test_who_reaches_port_80_of_b(self, given: list[Manifest], allowed: set[str]) -> None:
        policies = Policies(given, "n")
        assert {p.name for p in (A, FAR, OUTSIDE) if policies.allow(p, B, 80)} == allowed

    @pytest.mark.parametrize(
        ("selector", "labels", "holds"),
        [
            ({}, {}, True),
            ({"matchLabels": {"a": "1"}}, {"a": "1", "b": "2"}, True),
            ({"matchLabels": {"a": "1", "b": "1"}}, {"a": "1"}, False),
            ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]}, {"a": "2"}, True),
            ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1"]}]}, {}, False),
            ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, {}, True),
            ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, {"a": ""}, True),
            ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, {"a": ""}, False),
            ({"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "Exists"}]}, {"a": "1"}, False),
        ],
    )
    def test_selectors(self, selector: Mapping[str, Any], labels: Mapping[str, str], holds: bool) -> None:
        assert selects(selector, labels) is holds

    def test_an_operator_that_is_none_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="Near"):
            selects({"matchExpressions": [{"key": "a", "operator": "Near"}]}, {})
