"""Connect workers in the chart: what they are told, who reaches them, what applies connectors, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import PurePosixPath
from typing import Any

import pytest
from tests.deploy import chart, combinations, flows, settings
from tests.deploy.manifests import Manifest, Pod, lasting, name_of, of_kind, one, pods
from tests.deploy.networks import Peer, Policies
from tests.deploy.test_networks import CLIENT, OUTSIDE, STRANGER, peer_of
from tools.settings import OF_THE_CHART

from headrace_cli.exits import ExitCode
from headrace_cli.workers import refusal
from headrace_common.runtime.kubernetes import ACCOUNT
from headrace_connect.core.spark_application import manifest
from headrace_jobs.table_snapshot.job import parser

pytestmark = pytest.mark.chart
ENABLED: dict[str, Any] = {"enabled": True}
SHOP: dict[str, Any] = {"shop": {"connector.class": "files", "path": "/data"}}


def worker(found: list[Manifest]) -> Pod:
    [pod] = [pod for pod in lasting(found) if pod.component == "connect"]
    return pod


def rendered(**given: Any) -> list[Manifest]:
    return chart.render({"connect": ENABLED | given})


def job(found: list[Manifest]) -> Pod | None:
    return next((pod for pod in pods(found) if pod.name == "Job/headrace-connect-apply"), None)


def test_there_are_none_unless_they_are_asked_for() -> None:
    assert not [name_of(each) for each in chart.render() if "connect" in name_of(each)]
    assert not [pod for pod in lasting(chart.render()) if pod.component == "connect"]


def test_a_worker_is_a_client_whose_rest_other_workers_and_people_in_the_pod_reach() -> None:
    pod = worker(combinations.render("connect"))
    assert (pod.replicas, pod.main["image"]) == (2, "headrace/connect:0.1.0")
    assert "node-token" not in str(pod.spec)
    assert "command" not in pod.main, "the image's own"
    variables = settings.environment(pod, pod.main, 1, chart.NAMESPACE)
    of_clients = {"HEADRACE_CONNECT_URL", "HEADRACE_CA", "HEADRACE_API_KEY_FILE"}
    ours = {name for name in variables if name.startswith("HEADRACE_")} - of_clients
    assert ours <= {f"HEADRACE_CONNECT_{name.upper()}" for name in settings.names("connect")}
    config = settings.load("connect", {name: variables[name] for name in ours})
    assert config.bootstrap_servers == f"headrace-bootstrap.{chart.NAMESPACE}.svc.cluster.local:9292"
    ports = {port["name"]: port["containerPort"] for port in pod.main["ports"]}
    assert (config.http_listen.host, config.http_listen.port) == ("0.0.0.0", ports["http"])
    assert config.metrics_listen.port == ports["metrics"]
    assert config.health_listen.port == ports["health"]
    assert config.advertise_host == settings.pod_ip(1)
    assert variables["HEADRACE_CONNECT_URL"] == f"https://127.0.0.1:{ports['http']}"


def test_what_connectors_may_read_of_the_pod_are_the_secrets_that_are_named() -> None:
    pod = worker(rendered(secrets=["db", "lake.keys"]))
    config = settings.load("connect", settings.environment(pod, pod.main, 0, chart.NAMESPACE))
    assert config.reach.config_providers_file_allowed_paths == ("/etc/headrace/secrets",)
    assert config.reach.files_allowed_paths == config.reach.plugins_allowed == config.reach.env_allowed == ()
    mounts = {mount["mountPath"]: mount for mount in pod.main["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
    for secret in ("db", "lake.keys"):
        mount = mounts[f"/etc/headrace/secrets/{secret}"]
        assert mount["readOnly"]
        assert "subPath" not in mount
        assert volumes[mount["name"]]["secret"] == {"secretName": secret, "defaultMode": 0o440}


PLUGINS = [{"name": "weather", "image": "registry.example/weather:1"}, {"name": "tides", "image": "tides:2"}]


def test_environments_of_plugins_are_copied_in_to_where_they_were_made() -> None:
    assert "initContainers" not in worker(rendered()).spec
    pod = worker(rendered(plugins=PLUGINS, pluginsScratch="7Gi"))
    found = [(each["name"], each["image"], each["command"]) for each in pod.spec["initContainers"]]
    assert found == [
        (f"plugin-{one['name']}", one["image"], ["cp", "-a", f"/opt/plugins/{one['name']}", "/plugins/"])
        for one in PLUGINS
    ]
    assert {"name": "plugins", "emptyDir": {"sizeLimit": "7Gi"}} in pod.spec["volumes"]
    assert {"name": "plugins", "mountPath": "/opt/plugins", "readOnly": True} in pod.main["volumeMounts"]
    for each in pod.spec["initContainers"]:
        assert each["volumeMounts"] == [{"name": "plugins", "mountPath": "/plugins"}]
        assert each["securityContext"] == pod.main["securityContext"]
        assert each["resources"] == pod.main["resources"]
    config = settings.load("connect", settings.environment(pod, pod.main, 0, chart.NAMESPACE))
    assert config.processes.plugin_path == ("/opt/plugins",)
    given = {"connect": ENABLED | {"plugins": PLUGINS}, "config": {"connect": {"plugin_path": "/srv/a,/srv/b"}}}
    pod = worker(chart.render(given))
    config = settings.load("connect", settings.environment(pod, pod.main, 0, chart.NAMESPACE))
    assert config.processes.plugin_path == ("/opt/plugins", "/srv/a", "/srv/b")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"plugins": [PLUGINS[0], {**PLUGINS[0], "image": "b:1"}]}, "connect.plugins has weather twice"),
        ({"plugins": [{"name": "../x", "image": "a:1"}]}, "plugins"),
        ({"plugins": [{"name": "x"}]}, "image"),
    ],
)
def test_plugins_that_cannot_be(given: dict[str, Any], says: str) -> None:
    with pytest.raises(chart.Refused) as found:
        rendered(**given)
    assert says in str(found.value)


def test_what_does_not_fit_in_memory_has_a_disk_with_an_end() -> None:
    pod = worker(rendered(scratch="9Gi"))
    variables = settings.environment(pod, pod.main, 0, chart.NAMESPACE)
    [name] = [m["name"] for m in pod.main["volumeMounts"] if m["mountPath"] == variables["TMPDIR"]]
    assert {"name": name, "emptyDir": {"sizeLimit": "9Gi"}} in pod.spec["volumes"]


def test_rest_is_known_by_the_names_of_its_service() -> None:
    found = rendered(hosts=["connect.example.com"])
    service = one(found, "Service/headrace-connect-rest")
    assert service["spec"]["ports"] == [{"name": "http", "port": 8083, "targetPort": "http"}]
    pod = worker(found)
    hosts = settings.load("connect", settings.environment(pod, pod.main, 0, chart.NAMESPACE)).hosts
    inside = f"headrace-connect-rest.{chart.NAMESPACE}"
    names = ("headrace-connect-rest", inside, f"{inside}.svc", f"{inside}.svc.cluster.local", "connect.example.com")
    assert hosts == names


# --- connectors -----------------------------------------------------------------------------------------------------


def test_a_job_applies_each_connector_under_its_name_with_texts() -> None:
    found = combinations.render("connect")
    data = one(found, "ConfigMap/headrace-connect-apply")["data"]
    assert {name: json.loads(text) for name, text in data.items()} == {
        "shop-in.json": {
            "name": "shop-in",
            "connector.class": "files",
            "path": "/data",
            "format": "lines",
            "topic": "shop",
            "tasks.max": "2",
        },
        "shop.out.json": {
            "name": "shop.out",
            "connector.class": "sql-sink",
            "topics": "shop",
            "connection.url": "postgresql://db/shop",
        },
    }
    applies = job(found)
    assert applies is not None
    command = applies.main["command"]
    [mounted] = [m["mountPath"] for m in applies.main["volumeMounts"] if m["name"] == "connectors"]
    assert command[:5] == ["headrace", "connect", "apply", f"{mounted}/shop-in.json", f"{mounted}/shop.out.json"]
    assert "--prune" not in command
    variables = settings.environment(applies, applies.main, 0, chart.NAMESPACE)
    url = command[command.index("--url") + 1].replace("$(POD_NAMESPACE)", variables["POD_NAMESPACE"])
    assert url == f"https://headrace-connect-rest.{chart.NAMESPACE}.svc.cluster.local:8083"
    annotations = applies.owner["metadata"]["annotations"]
    assert annotations["helm.sh/hook"] == "post-install,post-upgrade"
    assert int(annotations["helm.sh/hook-weight"]) > 0, "topics come first"
    assert float(command[command.index("--timeout") + 1]) < applies.owner["spec"]["activeDeadlineSeconds"]


def test_what_a_worker_refuses_is_not_asked_again() -> None:
    """Helm says it at once, and not after four pods that each took longer to come."""
    applies = job(rendered(connectors=SHOP))
    assert applies is not None
    [rule] = applies.owner["spec"]["podFailurePolicy"]["rules"]
    codes = {"containerName": applies.main["name"], "operator": "In", "values": [int(ExitCode.USAGE)]}
    assert rule == {"action": "FailJob", "onExitCodes": codes}
    assert applies.spec["restartPolicy"] == "Never", "else Kubernetes takes no such policy"
    assert refusal(400, "no").exit_code is ExitCode.USAGE
    assert applies.owner["spec"]["backoffLimit"] > 0, "what else fails is tried again"


def test_only_prune_deletes() -> None:
    assert job(rendered()) is None
    pruned = job(rendered(prune=True, connectors=SHOP))
    assert pruned is not None
    assert pruned.main["command"][-2:] == ["--prune", "--yes"]
    every = job(rendered(prune=True))
    assert every is not None
    assert not [word for word in every.main["command"] if word.endswith(".json")]


def test_large_numbers_come_whole() -> None:
    found = rendered(connectors={"a": SHOP["shop"] | {"retention": 86400000, "on": True, "of": ["a", 1]}})
    config = json.loads(one(found, "ConfigMap/headrace-connect-apply")["data"]["a.json"])
    assert (config["retention"], config["on"], config["of"]) == ("86400000", "true", "a,1")


def test_nothing_is_applied_where_no_worker_runs() -> None:
    assert job(rendered(replicas=0, connectors=SHOP)) is None
    restore = {"etcd": {"restore": {"enabled": True}}, "connect": ENABLED | {"connectors": SHOP}}
    assert job(chart.render(restore)) is None
    assert worker(chart.render(restore)).replicas == 0


# --- jobs of Spark that workers start --------------------------------------------------------------------------------


def with_snapshots(**given: Any) -> list[Manifest]:
    values = {"sparkJobs": [combinations.SNAPSHOTS | given]}
    return chart.render(values | {"connect": ENABLED | {"secrets": ["db", "lake.keys"]}})


def application(found: list[Manifest]) -> dict[str, Any]:
    """What workers read."""
    made: dict[str, Any] = json.loads(one(found, "ConfigMap/headrace-connect-spark")["data"]["table_snapshot.json"])
    return made


def test_workers_have_no_rights_unless_a_job_is_theirs() -> None:
    pod = worker(rendered())
    assert str(ACCOUNT) not in {mount["mountPath"] for mount in pod.main["volumeMounts"]}, "no token for the API server"
    assert not [m for m in rendered() if m["kind"] in {"Role", "RoleBinding"} and "connect" in name_of(m)]
    config = settings.load("connect", settings.environment(pod, pod.main, 0, chart.NAMESPACE))
    assert config.processes.spark_application == ""
    policies = Policies(rendered(), chart.NAMESPACE)
    assert not any(policies.allow(peer_of(pod), OUTSIDE, port) for port in flows.API_SERVER)


def test_workers_that_start_snapshots_have_an_account_for_that_alone() -> None:
    found = with_snapshots()
    pod = worker(found)
    account = pod.spec["serviceAccountName"]
    assert account == one(found, "ServiceAccount/headrace-connect")["metadata"]["name"]
    assert pod.spec["automountServiceAccountToken"] is False
    [binding] = [m for m in of_kind(found, "RoleBinding") if name_of(m) == "RoleBinding/headrace-connect"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account}]
    assert binding["roleRef"]["name"] == one(found, "Role/headrace-connect")["metadata"]["name"]
    volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in pod.main["volumeMounts"]}
    sources = volumes[mounts[str(ACCOUNT)]["name"]]["projected"]["sources"]
    paths = [source["serviceAccountToken"]["path"] for source in sources if "serviceAccountToken" in source]
    paths += [item["path"] for source in sources for item in source.get("configMap", {}).get("items", ())]
    paths += [item["path"] for source in sources for item in source.get("downwardAPI", {}).get("items", ())]
    assert sorted(paths) == ["ca.crt", "namespace", "token"]
    config = settings.load("connect", settings.environment(pod, pod.main, 0, chart.NAMESPACE))
    path = PurePosixPath(config.processes.spark_application)
    assert volumes[mounts[str(path.parent)]["name"]]["configMap"]["name"] == "headrace-connect-spark"
    assert path.name in one(found, "ConfigMap/headrace-connect-spark")["data"]
    assert not of_kind(found, "SparkApplication", "ScheduledSparkApplication"), "workers make them"


def test_what_workers_start_is_an_application_of_the_chart_without_a_name() -> None:
    given = {
        "arguments": ["--range-pages", 65536],
        "executor": {"instances": 9},
        "volumes": [{"name": "certificates", "secret": {"secretName": "ca"}}],
        "volumeMounts": [{"name": "certificates", "mountPath": "/etc/ca"}],
        "env": [{"name": "LEVEL", "value": "info"}],
    }
    made = application(with_snapshots(**given))
    other = chart.render({"sparkJobs": [given | {"name": "snapshots", "job": "topic_copy", "restart": "OnFailure"}]})
    plain = one(other, "SparkApplication/headrace-snapshots")
    assert (made["apiVersion"], made["kind"]) == (plain["apiVersion"], plain["kind"])
    assert made["metadata"] == {"labels": plain["metadata"]["labels"]}
    spec, wanted = made["spec"], plain["spec"]
    secrets = [volume for volume in spec["volumes"] if volume["name"].startswith("secret-")]
    assert [volume["secret"]["secretName"] for volume in secrets] == ["db", "lake.keys"]
    pod = worker(with_snapshots())
    for part in ("driver", "executor"):
        mounts = [mount for mount in spec[part]["volumeMounts"] if mount["name"].startswith("secret-")]
        assert mounts == [mount for mount in pod.main["volumeMounts"] if mount["name"].startswith("secret-")]
        spec[part]["volumeMounts"] = [mount for mount in spec[part]["volumeMounts"] if mount not in mounts]
    spec["volumes"] = [volume for volume in spec["volumes"] if volume not in secrets]
    assert spec.pop("mainApplicationFile") == "local:///opt/headrace/jobs/table_snapshot.py"
    assert wanted.pop("mainApplicationFile")
    assert wanted.pop("suspend") is False
    assert spec == wanted


def test_a_worker_makes_an_application_of_it_that_the_job_takes() -> None:
    made = manifest(application(with_snapshots()), "x", "c", {"name": "shop"}, ["--point", "{}"])
    args = parser().parse_args(made["spec"]["arguments"])
    assert (args.connector_json, args.point) == ('{"name":"shop"}', "{}")
    assert args.bootstrap == f"headrace-bootstrap.{chart.NAMESPACE}.svc.cluster.local:9292"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"sparkJobs": [combinations.SNAPSHOTS]}, "started by workers of Connect; set connect.enabled=true"),
        (
            {"connect": ENABLED, "sparkJobs": [combinations.SNAPSHOTS, combinations.SNAPSHOTS | {"name": "more"}]},
            "snapshots, more are table_snapshot; one says how all of them run",
        ),
        (
            {"connect": ENABLED, "sparkJobs": [combinations.SNAPSHOTS | {"schedule": "@daily", "suspend": True}]},
            "table_snapshot has no schedule, suspend",
        ),
    ],
)
def test_snapshots_that_cannot_be(given: dict[str, Any], says: str) -> None:
    with pytest.raises(chart.Refused) as found:
        chart.text(given)
    assert says in str(found.value)


# --- networks -------------------------------------------------------------------------------------------------------


def test_clients_of_the_cluster_are_no_clients_of_rest() -> None:
    """Whoever reaches it may run connectors, so it is open to those that are named."""
    found = combinations.render("connect")
    rest = peer_of(worker(found))
    policies = Policies(found, chart.NAMESPACE)
    for stranger in (CLIENT, STRANGER, OUTSIDE):
        assert not policies.allow(stranger, rest, flows.CONNECT_REST), stranger.name
    named = rendered(clients=[{"podSelector": {"matchLabels": CLIENT.labels}}])
    assert Policies(named, chart.NAMESPACE).allow(CLIENT, rest, flows.CONNECT_REST)
    assert not Policies(named, chart.NAMESPACE).allow(CLIENT, rest, flows.METRICS)
    assert not Policies(named, chart.NAMESPACE).allow(STRANGER, rest, flows.CONNECT_REST)


def test_connectors_reach_what_the_values_open_and_nothing_else() -> None:
    found = combinations.render("connect")
    policies, source = Policies(found, chart.NAMESPACE), peer_of(worker(found))
    database, other = Peer("database", address="192.0.2.7"), Peer("other", address="192.0.2.8")
    assert policies.allow(source, database, 5432)
    assert not policies.allow(source, database, 22)
    assert not policies.allow(source, other, 5432)
    [broker] = [peer_of(pod) for pod in lasting(found) if pod.component == "broker"]
    assert not policies.allow(broker, database, 5432), "workers alone"


def test_without_policies_somebody_has_to_say_that_others_are_kept_out() -> None:
    values = {"networkPolicy": {"enabled": False}, "connect": ENABLED}
    with pytest.raises(chart.Refused, match="whoever reaches the port of REST may run connectors"):
        chart.text(values)
    assert worker(chart.render(values | {"connect": ENABLED | {"unprotected": True}}))
    assert not of_kind(chart.render(values | {"connect": ENABLED | {"unprotected": True}}), "NetworkPolicy")


# --- settings, and what is refused ----------------------------------------------------------------------------------


def test_the_settings_in_the_values_are_those_that_there_are() -> None:
    of_workers = chart.schema()["properties"]["config"]["properties"]["connect"]["properties"]
    assert set(of_workers) == settings.names("connect") - OF_THE_CHART


def test_each_setting_of_a_worker_arrives_there() -> None:
    parts = chart.schema()["properties"]["config"]["properties"]["connect"]["properties"]
    given = {name: settings.another(part, settings.defaults("connect")[name], name) for name, part in parts.items()}
    values = {"config": {"connect": given}, "connect": ENABLED | {"terminationGracePeriodSeconds": 3_600}}
    pod = worker(chart.render(values))
    variables = settings.environment(pod, pod.main, 0, chart.NAMESPACE)
    for name, value in given.items():
        text = ",".join(value) if isinstance(value, list) else str(value)
        assert variables[f"HEADRACE_CONNECT_{name}".upper()] == text, name
    del variables["HEADRACE_CONNECT_URL"]
    settings.load("connect", {name: text for name, text in variables.items() if name.startswith("HEADRACE_CONNECT")})


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"connect": {"connectors": SHOP}}, "connect.connectors: shop would be run by nobody"),
    ({"connect": ENABLED | {"connectors": {"a/b": SHOP["shop"]}}}, "a/b"),
    ({"connect": ENABLED | {"connectors": {"a": {"path": "/data"}}}}, "connector.class"),
    ({"connect": ENABLED | {"connectors": {"a": SHOP["shop"] | {"transforms": {"type": "x"}}}}}, "transforms"),
    (
        {"connect": ENABLED | {"connectors": {"a": SHOP["shop"] | {"name": "b"}}}},
        "connect.connectors.a.name: its name is its key",
    ),
    ({"connect": ENABLED | {"terminationGracePeriodSeconds": 30}}, "connect.terminationGracePeriodSeconds"),
    (
        {"connect": ENABLED, "config": {"connect": {"task_stop_ms_max": 60_000}}},
        "a worker may take 140 s to stop, by config.connect.task_stop_ms_max",
    ),
    ({"connect": ENABLED | {"egress": [{}]}}, "egress"),
    (
        {"connect": ENABLED | {"egress": [{"to": [{"ipBlock": {"cidr": "192.0.2.7"}}]}]}},
        "cidr",
    ),
    (
        {"connect": ENABLED | {"egress": [{"to": [{"ipBlock": {"cidr": "192.0.2.300/32"}}]}]}},
        'connect.egress.0.to: "192.0.2.300/32" is no network',
    ),
    ({"connect": ENABLED | {"clients": [{}]}}, "connect.clients: each has an ipBlock alone"),
    ({"connect": ENABLED | {"secrets": ["a", "a"]}}, "secrets"),
    ({"connect": ENABLED, "config": {"connect": {"http_listen": "0.0.0.0:1"}}}, "http_listen"),
    (
        {"connect": ENABLED | {"extraEnv": [{"name": "HEADRACE_CONNECT_HOSTS", "value": "*"}]}},
        "extraEnv of connect: HEADRACE_CONNECT_HOSTS is set by the chart",
    ),
    ({"listeners": {"connect": {"port": 9100}}, "connect": ENABLED}, "cannot both have port 9100"),
]


@pytest.mark.parametrize(("given", "says"), REFUSED, ids=lambda given: given if isinstance(given, str) else "")
def test_what_cannot_work_is_refused_with_the_key(given: dict[str, Any], says: str) -> None:
    with pytest.raises(chart.Refused) as found:
        chart.text(given)
    assert says in re.sub(r"'/([^']*)'", lambda key: key[1].replace("/", "."), str(found.value))
