"""What users may write into values: every key is known to the schema and does something, and a slip is refused."""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.deploy import chart, combinations, values
from tests.deploy.values import Key, dotted

pytestmark = pytest.mark.chart

TYPOS = int(os.environ.get("TYPOS", "30"))
"""Seeds that are tried."""

_BY_HELM = {("global",)}
"""Helm gives it to every chart."""


def own_keys() -> list[Key]:
    return [key for key, _ in values.walk() if key not in _BY_HELM]


def defaulted(found: Any, at: Key = ()) -> list[Key]:
    """The keys of values.yaml, down to those that have no keys of ours below them."""
    below = [key for key in own_keys() if key[: len(at)] == at and len(key) > len(at) and key[len(at)] != 0]
    if not isinstance(found, dict) or not below:
        return [at]
    return [inner for name, value in found.items() for inner in defaulted(value, (*at, name))]


def test_schema_and_values_have_the_same_keys() -> None:
    """But settings and the elements of lists, which have no default in the chart."""
    without = {key for key in own_keys() if key[0] == "config" or 0 in key}
    of_lists = {key[: key.index(0)] for key in without if 0 in key}
    wanted = (set(own_keys()) - without) | of_lists
    there = {key for key in defaulted(chart.default_values()) if key[0] != "config"}
    assert {dotted(key) for key in there} == {dotted(key) for key in wanted}
    assert set(chart.default_values()["config"]) == set(chart.schema()["properties"]["config"]["properties"])


def test_every_object_of_ours_takes_no_other_keys() -> None:
    def open_ones(part: dict[str, Any], at: str) -> list[str]:
        found = []
        if part.get("properties") and part.get("additionalProperties") is not False:
            found.append(at)
        for name, below in (*part.get("properties", {}).items(), *part.get("definitions", {}).items()):
            found += open_ones(below, f"{at}.{name}")
        if isinstance(part.get("items"), dict):
            found += open_ones(part["items"], f"{at}[]")
        return found

    assert open_ones(chart.schema(), "") == []


def test_what_templates_ask_for_is_in_the_schema() -> None:
    asked = set()
    for path in (chart.CHART / "templates").rglob("*"):
        if path.is_file():
            asked |= {tuple(found.split(".")) for found in re.findall(r"\.Values\.([A-Za-z][\w.]*)", path.read_text())}
    assert len(asked) > 20
    for key in asked:
        values.schema_at(key)


def test_comments_say_what_each_value_is() -> None:
    """The first workload's keys are explained; others refer to them."""
    text = (chart.CHART / "values.yaml").read_text().splitlines()
    repeated = set(chart.default_values()["statefulset"])
    bare = [
        line
        for before, line in itertools.pairwise(text)
        if re.match(r" *[A-Za-z]+: *\S", line) and not before.strip().startswith("#")
    ]
    names = {line.split(":")[0].strip() for line in bare}
    assert names <= repeated | set(chart.default_values()["config"]) | {"requests", "limits", "executor"}


def test_together_the_sets_of_values_have_every_key() -> None:
    missing = [key for key in own_keys() if not any(values.has(given, key) for given in values.every().values())]
    assert [dotted(key) for key in missing] == []


_SETTINGS = "config"
"""That each arrives where it is read, test_settings.py shows."""


@functools.cache
def _answer(given: str) -> str:
    try:
        return chart.text(json.loads(given))
    except chart.Refused as refused:
        return str(refused)


def _sections() -> list[str]:
    return sorted({str(key[0]) for key in own_keys() if key[0] != _SETTINGS})


@pytest.mark.parametrize("section", _sections())
def test_every_key_does_something(section: str) -> None:
    """Taken out of values that need it, it changes what is rendered, or is asked for."""
    idle = []
    sets = values.every_but_settings()
    for key in own_keys():
        having = [given for given in sets.values() if values.has(given, key)]
        if key[0] == section and having:
            changes = (
                _answer(json.dumps(given)) != _answer(json.dumps(values.without(given, key))) for given in having
            )
            if not any(changes):
                idle.append(dotted(key))
    assert not idle, "these do nothing"


@pytest.mark.parametrize("seed", range(TYPOS))
def test_a_typo_is_refused_by_its_name(seed: int) -> None:
    typo = values.typo(seed)
    with pytest.raises(chart.Refused) as refused:
        chart.text(typo.values)
    assert typo.names in str(refused.value), typo.what
    with pytest.raises(chart.Refused) as refused:
        chart.run("lint", chart.CHART, values=typo.values)
    assert typo.names in str(refused.value), typo.what


def test_typos_are_of_all_kinds_and_the_values_without_them_are_taken() -> None:
    made = [values.typo(seed).what.partition(": ")[2] for seed in range(30)]
    for kind in ("swapped", "dropped", "doubled", "case", "in place of"):
        assert any(kind in what for what in made), kind
    assert len({values.typo(seed).what for seed in range(30)}) >= 28
    assert chart.text(values.every()["all"])


@pytest.mark.parametrize("which", combinations.NAMES)
def test_lint_has_nothing_to_say(which: str) -> None:
    files = ["--values", chart.DEV] if which == "dev" else []
    said = chart.run("lint", "--strict", chart.CHART, *files, values=combinations.BY_NAME[which])
    assert "1 chart(s) linted, 0 chart(s) failed" in said
    assert "[WARNING]" not in said


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"external": {"enabled": True}}, "external.domain"),
        ({"external": {"enabled": True, "type": "Gateway", "domain": "a.b"}}, "external.gateway.parentRefs"),
        ({"etcd": {"replicas": 2}}, "replicas"),
        ({"statefulset": {"replicas": 0}}, "replicas"),
        ({"topics": [{"partitions": 3}]}, "name"),
        ({"topics": [{"name": "a b"}]}, "name"),
        ({"storage": {"size": "20 GB"}}, "size"),
        ({"image": {"pullPolicy": "ifnotpresent"}}, "pullPolicy"),
        ({"resources": {"broker": {"requests": {"cpus": 1}}}}, "cpus"),
        ({"networkPolicy": {"clients": [{"podSelectors": {}}]}}, "podSelectors"),
        ({"config": {"broker": {"flush": "never"}}}, "flush"),
        ({"config": {"cluster": {"log.retention.hours": 3}}}, "log.retention.hours"),
        ({"monitoring": {"podMonitor": {"interval": "30"}}}, "interval"),
        ({"tls": {"enabled": True, "existing": {"broker": "b", "ca": "c"}}}, "tls.existing: broker, ca alone; all of"),
        (
            {
                "tls": {"existing": combinations.OURS | {"etcd": "e", "etcdClient": "f", "streams": "i"}},
                "connect": {"enabled": True},
            },
            "all of admin, broker, ca, connect, controller, coordinator, etcd, etcdClient, or none",
        ),
        ({"etcd": {"external": {"tlsSecret": "g"}}}, "etcd.external.tlsSecret: there are no etcd.external.endpoints"),
        ({"tls": {"enabled": True, "hosts": ["a b"]}}, 'tls.hosts: "a b"'),
        ({"tls": {"enabled": True, "schedule": "0 25 * * *"}}, 'tls.schedule: "25" is no hour'),
        ({"auth": {"scram": {}}}, "scram"),
        ({"auth": {"mtls": {"enabled": True}}}, "enabled and clientCa.existingSecret are set together"),
        ({"auth": {"mtls": {"clientCa": {"existingSecret": "a"}}}}, "are set together"),
        (
            combinations.PLAIN | {"auth": {"mtls": {"enabled": True, "clientCa": {"existingSecret": "a"}}}},
            "auth.mtls.enabled: clients show certificates by TLS alone",
        ),
        (
            {"etcd": {"backup": {"encryptTo": {"secret": "a", "configMap": "b"}}}},
            "etcd.backup.encryptTo: the certificate is in a Secret or in a ConfigMap; name one",
        ),
        ({"etcd": {"restore": {"file": "headrace-1.backup"}}}, "etcd.restore.file"),  # left from a restore
        ({"etcd": {"restore": {"brokers": [0]}}}, "etcd.restore.brokers"),
        ({"etcd": {"restore": {"enabled": True, "brokers": [0, 3]}}}, "etcd.restore.brokers: there is no broker 3"),
        ({"topics": [{"name": "a"}, {"name": "b"}, {"name": "a"}]}, "topics: a is there twice"),
        ({"topics": [{"name": ".."}]}, "name"),
        (
            {"listeners": {"metrics": {"port": 9292}}},
            "listeners: grpc and metrics of broker cannot both have port 9292",
        ),
        ({"statefulset": {"extraEnv": [{"name": "HEADRACE_BROKER_DATA_DIR", "value": "/tmp"}]}}, "extraEnv of broker"),
        ({"external": {"enabled": True, "type": "LoadBalancer", "host": "one.example.com"}}, "external.host"),
        ({"etcd": {"backup": {"schedule": "0 25 * * *"}}}, 'etcd.backup.schedule: "25" is no hour; it is 0 to 23'),
        ({"etcd": {"backup": {"schedule": "*/0 * * * *"}}}, 'etcd.backup.schedule: "*/0" is no minute'),
        (
            {"sparkJobs": [{"name": "a", "job": "retention_audit", "schedule": "0 1 * * mom"}]},
            'sparkJobs.a.schedule: "mom" is no day of the week',
        ),
        (
            {"etcd": {"backup": {"schedule": "17 22-6 * * *"}}},
            "etcd.backup.schedule: the range 22-6 of hour ends before",
        ),
        ({"etcd": {"image": {"tag": ""}}}, "tag"),
        ({"listeners": {"admin": {"restPort": 80}}}, "restPort"),
        ({"resources": {"broker": {"requests": {"memory": "4Gi"}}}}, "resources.broker: requests.memory 4Gi is more"),
        ({"config": {"broker": {"otlp_endpoint": "http://otel.tracing"}}}, "config.broker.otlp_endpoint"),
        (
            {"controller": {"extraEnv": [{"name": "HEADRACE_CONTROLLER_CLUSTER", "value": "blue"}]}},
            "HEADRACE_CONTROLLER_CLUSTER is set by config.controller.cluster",
        ),
        (
            {
                "config": {"broker": {"flush": "os"}},
                "statefulset": {"extraEnv": [{"name": "HEADRACE_BROKER_FLUSH", "value": "always"}]},
            },
            "is set by config.broker.flush",
        ),
        (
            {"external": {"enabled": True, "type": "NodePort", "host": "192.0.2.7:31290"}},
            "external.host gives",
        ),
        (
            {"external": {"enabled": True, "type": "NodePort", "domain": "a.b", "nodePorts": {"broker": 65534}}},
            "broker-2 would have port 65536",
        ),
        ({"sparkJobs": [{"name": "a", "job": "retention_audit", "schedule": "@every 5"}]}, "schedule"),
        ({"external": {"sourceRanges": ["10.0.0.256/8"]}}, "sourceRanges"),
        ({"external": {"sourceRanges": ["10.0.0.0/33"]}}, "sourceRanges"),
        (
            {"external": {"enabled": True, "type": "NodePort", "domain": "a.b", "nodePorts": {"coordinator": 31293}}},
            "external.nodePorts",
        ),
        ({"config": None}, "config"),
        ({"resources": None}, "resources"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_values_that_cannot_work_are_refused_with_the_key(given: dict[str, Any], says: str) -> None:
    with pytest.raises(chart.Refused, match=re.escape(says)):
        chart.text(given)


def test_a_load_balancer_listens_where_clients_are_told() -> None:
    values = {"external": {"enabled": True, "type": "LoadBalancer", "domain": "e.com", "port": 443}}
    found = chart.render(values)
    [told] = [m["data"] for m in found if (m["kind"], m["metadata"]["name"]) == ("ConfigMap", "headrace-external")]
    assert set(told.values()) == {f"{pod}.e.com:443" for pod in told}
    services = [m for m in found if m["kind"] == "Service" and m["metadata"]["name"].endswith("-external")]
    assert len(services) == len(told) + 1
    assert {port["port"] for one in services for port in one["spec"]["ports"]} == {443}


def test_large_numbers_reach_a_job_as_they_are() -> None:
    values = {"sparkJobs": [{"name": "a", "job": "topic_to_lake", "arguments": ["--n", 10_000_000, 0.5]}]}
    [job] = [m for m in chart.render(values) if m["kind"] == "SparkApplication"]
    assert job["spec"]["arguments"][-3:] == ["--n", "10000000", "0.5"]


def test_what_cron_allows_is_taken() -> None:
    for schedule in ("*/15 0-6,22 ? JAN-mar 1-5", "5,35 7 1-31/2 12 Sun,3", "@daily", "0 0 * * 0"):
        text = chart.text({"etcd": {"backup": {"schedule": schedule}}})
        assert f'schedule: "{schedule}"' in text or f"schedule: '{schedule}'" in text, schedule


def test_a_pod_may_ask_for_all_it_is_allowed() -> None:
    equal = {"requests": {"cpu": "0.5", "memory": "2Gi"}, "limits": {"cpu": "500m", "memory": "2048Mi"}}
    assert "2048Mi" in chart.text({"resources": {"broker": equal}})


def test_sizes_are_compared_by_their_bytes(tmp_path: Path) -> None:
    """An upgrade may not change a volume's size, and Kubernetes writes sizes its own way: it keeps 1024Gi as 1Ti."""
    alike = [["1024Gi", "1Ti"], ["5120Mi", "5Gi"], ["1.5Ti", "1536Gi"], ["1.1Gi", "1181116006400m"], ["1000M", "1G"]]
    alike += [["2e9", "2G", "2000000e3", "+2E+9"], ["1Ei", "1024Pi"], ["2E", "2000P"], [".5Gi", "0.5Gi", "536870912."]]
    others = ["1Gi", "1073741825", "10Gi", "1.2Gi", "1.01Ti"]
    sizes = [*itertools.chain(*alike), *others]
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: sizes\nversion: 0.1.0\n")
    shutil.copy(chart.CHART / "templates" / "_helpers.tpl", tmp_path / "templates")
    line = 'sizes: {{ range .Values.sizes }}{{ include "headrace.bytes" . }} {{ end }}\n'
    (tmp_path / "templates" / "sizes.yaml").write_text(line)
    [shown] = [
        line for line in chart.run("template", tmp_path, values={"sizes": sizes}).splitlines() if "sizes: " in line
    ]
    found = dict(zip(sizes, shown.split()[1:], strict=True))
    assert all(found[one] == found[other] for one, *others in alike for other in others)
    assert len(set(found.values())) == len(alike) + len(others)
    assert found["1Gi"] == "1073741824.0"


@pytest.mark.parametrize("release", ["my.events", "9events"])
def test_a_release_whose_services_could_not_be_made_is_refused_at_once(release: str) -> None:
    with pytest.raises(chart.Refused, match="begin the release's name with a letter, without dots"):
        chart.text(release=release)
    assert chart.text({"fullnameOverride": "events"}, release=release)
