"""What the chart tells programs, they know: their settings, commands and options are asked, not assumed."""

from __future__ import annotations

import functools
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.deploy import chart, combinations, settings
from tests.deploy.manifests import SERVICES, Manifest, Pod, lasting, one, pods
from tools.settings import DYNAMIC, OF_THE_CHART

from headrace_common.core.setting_tables import TOPIC_SETTINGS

pytestmark = pytest.mark.chart

_ELSEWHERE = {"HEADRACE_BOOTSTRAP", "HEADRACE_CA"}
"""Of the command and the SDK, for whoever runs them in a pod."""


def services(manifests: Sequence[Manifest]) -> list[Pod]:
    return [pod for pod in lasting(manifests) if pod.component in SERVICES]


def unknown(manifests: Sequence[Manifest]) -> list[str]:
    """Variables that no program reads: a service would start without what they are for."""
    found = []
    for pod in services(manifests):
        known = {f"HEADRACE_{pod.component}_{name}".upper() for name in settings.names(pod.component)} | _ELSEWHERE
        given = [variable["name"] for variable in pod.main.get("env", [])]
        found += [f"{pod.name}: {name}" for name in given if name.startswith("HEADRACE_") and name not in known]
        found += [f"{pod.name}: {name} twice" for name in sorted(set(given)) if given.count(name) > 1]
    return found


@pytest.mark.parametrize("values", combinations.NAMES)
def test_every_variable_is_a_setting_of_its_service(values: str) -> None:
    assert not unknown(combinations.render(values))


def test_a_variable_that_nobody_reads_is_found() -> None:
    manifests = chart.render()
    broker = next(pod for pod in services(manifests) if pod.component == "broker")
    broker.main["env"].append({"name": "HEADRACE_BROKER_TAIL_CACHE", "value": "1"})
    assert unknown(manifests) == ["StatefulSet/headrace-broker: HEADRACE_BROKER_TAIL_CACHE"]


@pytest.mark.parametrize("values", combinations.NAMES)
def test_each_pod_starts_with_its_settings_and_says_who_it_is(values: str, tmp_path: Path) -> None:
    """The configuration classes themselves read the environment of each pod, and refuse what they would refuse."""
    manifests = combinations.render(values)
    ids: dict[str, list[int]] = {}
    for pod in services(manifests):
        for ordinal in range(pod.replicas):
            given = settings.environment(pod, pod.main, ordinal, chart.NAMESPACE)
            config = settings.load(pod.component, _with_address(manifests, pod, given, tmp_path))
            assert ("external_listen=Endpoint" in repr(config)) == (values in OUTSIDE and pod.component != "controller")
            certified = values == "clients with certificates" and pod.component != "controller"
            assert ("mtls_listen=Endpoint" in repr(config)) == certified
            server = config.server
            ids.setdefault(pod.component, []).append(config.node_id)
            assert server.advertise_host == settings.pod_ip(ordinal)
            assert str(server.choose_endpoint(server.listen.port)).startswith(f"[{settings.pod_ip(ordinal)}]:")
            assert server.health_listen is not None
            assert server.metrics_listen is not None
            for endpoint in (server.listen, server.health_listen, server.metrics_listen):
                assert endpoint.host == "0.0.0.0"
                assert endpoint.port in {p["containerPort"] for p in pod.main["ports"]}
            if pod.component == "broker":  # its preStop asks there, and the root file system is read-only
                assert str(config.leave_socket.parent) in {m["mountPath"] for m in pod.main["volumeMounts"]}
            for asked in (probe["grpc"]["port"] for k, probe in pod.main.items() if k.endswith("Probe")):
                assert asked == server.health_listen.port
    assert all(numbers == list(range(len(numbers))) for numbers in ids.values())


OUTSIDE = {"load balancers", "node ports", "gateway", "own way in"}
EXTERNAL = "/etc/headrace/external"


def _with_address(manifests: Sequence[Manifest], pod: Pod, given: dict[str, str], directory: Path) -> dict[str, str]:
    """What the service itself gets: the shell that reads the pod's outside address is run, and says what it exports."""
    if "command" not in pod.main:
        return given
    assert pod.main["command"][:2] == ["sh", "-euc"]
    made = one(manifests, f"ConfigMap/{pod.owner['metadata']['name'].rpartition('-')[0]}-external")
    for name, address in made["data"].items():
        (directory / name).write_text(address)
    start = f"exec python -m headrace_{pod.component}"
    script = pod.main["command"][2].replace("$$", "$")
    assert EXTERNAL in script
    assert start in script
    script = script.replace(EXTERNAL, str(directory)).replace(start, "exec env -0")
    done = subprocess.run(["/bin/sh", "-euc", script], env=given, capture_output=True, text=True, check=True)
    return dict(line.split("=", 1) for line in done.stdout.split("\0") if "=" in line)


def test_they_look_for_each_other_where_they_are() -> None:
    manifests = chart.render()
    for pod in services(manifests):
        config = settings.load(pod.component, settings.environment(pod, pod.main, 0, chart.NAMESPACE))
        asked = config.etcd if pod.component == "controller" else config.controllers
        service, port = ("headrace-etcd", 2379) if pod.component == "controller" else ("headrace-controller", 9390)
        hosts = [f"{service}-client", *(f"{service}-{n}.{service}" for n in range(3))]
        assert [str(at) for at in asked] == [f"{host}.{chart.NAMESPACE}.svc.cluster.local:{port}" for host in hosts]


@pytest.mark.parametrize("values", ["many", "etcd of ours", "one of each", "dev"])
def test_the_audit_is_kept_on_a_disk_of_the_pod(values: str) -> None:
    given: dict[str, Any] = combinations.BY_NAME[values].get("audit", {})
    to = ["topic"] if values == "dev" else given.get("to", ["topic", "stdout"])
    for pod in services(combinations.render(values)):
        audit = settings.load(pod.component, settings.environment(pod, pod.main, 0, chart.NAMESPACE)).server.audit
        assert list(audit.to) == to
        claims = pod.owner["spec"].get("volumeClaimTemplates", [])
        if not to:
            assert audit.dir is None
            assert bool(claims) == (pod.component == "broker")
            continue
        assert audit.on_full == given.get("onFull", "refuse")
        [mount] = [m for m in pod.main["volumeMounts"] if audit.dir.is_relative_to(m["mountPath"])]
        scratch = [v for v in pod.spec["volumes"] if v["name"] == mount["name"] and "emptyDir" in v]
        assert bool(scratch) == (pod.component != "broker" and "storage" not in given)
        if "storage" in given and pod.component != "broker":
            [claim] = claims
            assert claim["metadata"]["name"] == mount["name"]
            assert claim["spec"]["resources"]["requests"]["storage"] == "1Gi"
            assert claim["spec"]["storageClassName"] == "fast"


def test_rest_is_asked_for_by_the_names_of_its_services_and_those_that_were_set() -> None:
    manifests = chart.render({"admin": {"hosts": ["headrace.example.com"]}})
    [pod] = [pod for pod in services(manifests) if pod.component == "admin"]
    hosts = settings.load("admin", settings.environment(pod, pod.main, 0, chart.NAMESPACE)).hosts
    named = [m["metadata"]["name"] for m in manifests if m["kind"] == "Service"]
    for service in ("headrace-rest", "headrace-admin"):
        assert service in named
        inside = f"{service}.{chart.NAMESPACE}"
        assert {service, inside, f"{inside}.svc", f"{inside}.svc.cluster.local"} <= {*hosts}
    assert hosts[-1] == "headrace.example.com"


@pytest.mark.parametrize("component", ["etcd", "controller"])
def test_the_service_that_they_ask_first_is_known_before_its_pods_and_leads_to_all_of_them(component: str) -> None:
    manifests = chart.render()
    [service] = [
        m for m in manifests if (m["kind"], m["metadata"]["name"]) == ("Service", f"headrace-{component}-client")
    ]
    [pods] = [m for m in manifests if (m["kind"], m["metadata"]["name"]) == ("StatefulSet", f"headrace-{component}")]
    spec = service["spec"]
    assert "clusterIP" not in spec, "it has an address of its own"
    assert spec["publishNotReadyAddresses"] is True
    assert spec["selector"] == pods["spec"]["selector"]["matchLabels"]
    [port] = spec["ports"]
    [container] = pods["spec"]["template"]["spec"]["containers"]
    assert {"name": port["targetPort"], "containerPort": port["port"]} in container["ports"]


def test_the_settings_of_processes_in_the_values_are_those_that_there_are() -> None:
    config = chart.schema()["properties"]["config"]["properties"]
    for service in SERVICES:
        wanted = settings.names(service) - OF_THE_CHART
        assert set(config[service]["properties"]) == wanted, service


def test_each_setting_of_a_process_arrives_there() -> None:
    given: dict[str, dict[str, Any]] = {}
    for service in SERVICES:
        of_schema = chart.schema()["properties"]["config"]["properties"][service]["properties"]
        given[service] = {
            name: settings.another(part, settings.defaults(service)[name], name) for name, part in of_schema.items()
        }
    for pod in services(chart.render({"config": given})):
        variables = settings.environment(pod, pod.main, 0, chart.NAMESPACE)
        for name, value in given[pod.component].items():
            text = variables[f"HEADRACE_{pod.component}_{name}".upper()]
            said = str(value).lower() if isinstance(value, bool) else str(value)
            assert text == (",".join(value) if isinstance(value, list) else said), name


@pytest.mark.parametrize("kind", ["cluster", "topics"])
def test_dynamic_settings_in_the_values_are_those_of_the_product(kind: str) -> None:
    schema = chart.schema()["properties"]
    if kind == "cluster":
        assert set(schema["config"]["properties"]["cluster"]["properties"]) == set(DYNAMIC)
    else:
        assert set(schema["topics"]["items"]["properties"]["configs"]["properties"]) == set(TOPIC_SETTINGS)


def test_the_product_takes_what_the_chart_makes_of_dynamic_settings() -> None:
    cluster, topic = settings.values_of(DYNAMIC), settings.values_of(TOPIC_SETTINGS)
    manifests = chart.render({"config": {"cluster": cluster}, "topics": [{"name": "t", "configs": topic}]})
    made = next(m for m in manifests if m["kind"] == "ConfigMap" and m["metadata"]["name"] == "headrace-apply")
    wanted = json.loads(made["data"]["cluster.json"])
    for given, sent, table in (
        (cluster, wanted["cluster"]["configs"], DYNAMIC),
        (topic, wanted["topics"][0]["configs"], TOPIC_SETTINGS),
    ):
        assert sent.keys() == given.keys()
        for name, text in sent.items():
            value = given[name]
            table[name].check(text)
            if isinstance(value, float):
                assert float(text) == value, name
            else:
                assert text == (str(value).lower() if isinstance(value, bool) else str(value)), name


def commands(manifests: Sequence[Manifest]) -> set[tuple[str, ...]]:
    """Every command of ours that a container, or what stops it, runs."""
    found = set()
    for pod in pods(manifests):
        for container in pod.all_containers:
            stop = container.get("lifecycle", {}).get("preStop", {}).get("exec", {})
            for command in (container.get("command"), stop.get("command")):
                if command and command[0] in {"python", "headrace"}:
                    found.add(tuple(command))
    return found


@functools.cache
def _help(*command: str) -> str:
    arguments = (
        [sys.executable, "-m", "headrace_cli", *command[1:]]
        if command[0] == "headrace"
        else [
            sys.executable,
            *command[1:],
        ]
    )
    done = subprocess.run([*arguments, "--help"], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


@pytest.mark.parametrize("values", ["defaults", "topics and settings", "restore", "streams", "connect"])
def test_every_command_exists_and_knows_its_options(values: str) -> None:
    found = commands(combinations.render(values))
    assert found
    for command in found:
        if command[0] == "python":
            assert importlib.util.find_spec(command[2]) is not None, command
            words = command[:3]
        else:
            words = tuple(word for word in command[: 2 if command[1] == "apply" else 3])
        options = {word.partition("=")[0] for word in command[len(words) :] if re.match(r"--?[a-z]", word)}
        if options:
            known = _help(*words)
            assert not [option for option in options if not re.search(rf"{option}\b", known)], command
