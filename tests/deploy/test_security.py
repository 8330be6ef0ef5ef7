"""Closed clusters: who shows which key, who knows the administrator by what, and what Helm never has."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from tests.deploy import chart, combinations
from tests.deploy.manifests import SERVICES, Manifest, Pod, name_of, of_kind, one, pod_of, pods, read_all

from headrace.local_keys import POD_TOKEN
from headrace_cli import user_secrets
from headrace_cli.wanted import parse
from headrace_common.core.access.roles import Binding, targets_for
from headrace_common.core.features import ACCESS
from headrace_controller import admin_key_secret, new_secret

pytestmark = pytest.mark.chart

KEY_FILE = "HEADRACE_API_KEY_FILE"
OPEN = {"security": {"mode": "open"}}


def secret_keys(pod: Pod) -> dict[str, tuple[str, list[str]]]:
    """By the directory where the container finds them: the Secret, and which of its keys; empty: all of them."""
    volumes = {volume["name"]: volume["secret"] for volume in pod.spec.get("volumes", []) if "secret" in volume}
    return {
        mount["mountPath"]: (
            volumes[mount["name"]]["secretName"],
            [f"{item['key']}={item['path']}" for item in volumes[mount["name"]].get("items", [])],
        )
        for mount in pod.main.get("volumeMounts", [])
        if mount["name"] in volumes
    }


def shown(manifests: Sequence[Manifest]) -> dict[str, str]:
    """The Secret with the key that each pod shows, of those that show one; each finds it where it is told to look."""
    found = {}
    for pod in pods(manifests):
        told = {variable["name"]: variable.get("value") for variable in pod.main.get("env") or []}
        mounted = secret_keys(pod).get("/etc/headrace/api-key")
        assert (told.get(KEY_FILE) is None) == (mounted is None), pod.name
        if mounted is not None:
            assert told[KEY_FILE] == "/etc/headrace/api-key/api-key"
            assert told["HEADRACE_CA"], "a key is sent over TLS alone"
            assert mounted[1] == ["api-key=api-key"], pod.name
            found[pod.name] = mounted[0]
    return found


def told(manifests: Sequence[Manifest]) -> dict[str, str]:
    """What controllers are told of access."""
    pod = pod_of(one(manifests, "StatefulSet/headrace-controller"))
    assert pod is not None
    names = ("ACCESS_MODE", "SUPER_USERS", "ADMIN_KEY_FILE")
    given = {variable["name"].removeprefix("HEADRACE_CONTROLLER_"): variable for variable in pod.main["env"]}
    return {name: given[name]["value"] for name in names if name in given}


def accounts(manifests: Sequence[Manifest]) -> dict[str, str]:
    """The account whose token each pod shows, of those that show one; it is there, and the pod has no other token."""
    found = {}
    for pod in pods(manifests):
        tokens = [volume for volume in pod.spec.get("volumes", []) if volume["name"] == "token"]
        for volume in tokens:
            assert volume["projected"]["sources"] == [
                {
                    "serviceAccountToken": {
                        "path": "token",
                        "audience": f"headrace:{chart.NAMESPACE}/headrace",
                        "expirationSeconds": 3600,
                    }
                }
            ]
            [mount] = [mount for mount in pod.main["volumeMounts"] if mount["name"] == "token"]
            assert f"{mount['mountPath']}/token" == str(POD_TOKEN), "where clients look"
            assert KEY_FILE not in {variable["name"] for variable in pod.main["env"]}, "it would be shown instead"
            assert pod.spec["automountServiceAccountToken"] is False
            account = pod.spec["serviceAccountName"]
            assert one(manifests, f"ServiceAccount/{account}")["automountServiceAccountToken"] is False
            found[pod.name] = account
    return found


def test_pods_that_use_the_cluster_have_a_key_or_a_token_of_their_own_and_few_are_the_administrator() -> None:
    apps = [combinations.STREAMS_APPS[0] | {"apiKeySecret": "of-billing"}, combinations.STREAMS_APPS[1]]
    manifests = chart.render(combinations.BY_NAME["closed"] | {"streamsApps": apps})
    [apply] = [m for m in of_kind(manifests, "Job") if name_of(m).startswith("Job/headrace-apply-")]
    assert shown(manifests) == {
        "StatefulSet/headrace-streams-billing": "of-billing",
        name_of(apply): "headrace-admin",
        "Pod/headrace-test": "headrace-admin",
        "Deployment/headrace-client": "headrace-admin",
    }
    assert accounts(manifests) == {
        "StatefulSet/headrace-streams-words": "headrace-streams-words",
        "StatefulSet/headrace-connect": "headrace-connect",
        "Job/headrace-connect-apply": "headrace-connect",
    }


def test_where_tokens_of_pods_are_not_taken_they_are_the_administrator() -> None:
    values = combinations.BY_NAME["closed"] | {"auth": {"kubernetes": {"enabled": False}}}
    manifests = chart.render(values)
    assert accounts(manifests) == {}
    assert shown(manifests)["StatefulSet/headrace-streams-words"] == "headrace-admin"
    assert shown(manifests)["StatefulSet/headrace-connect"] == "headrace-admin"


def test_workers_that_wait_for_their_rights_do_not_wait_for_a_hook() -> None:
    """Helm runs hooks when all is ready, if it is told to wait."""

    def hooks(values: Mapping[str, Any]) -> list[bool]:
        jobs = [job for job in of_kind(chart.render(values), "Job") if name_of(job).startswith("Job/headrace-apply")]
        return ["helm.sh/hook" in job["metadata"].get("annotations", {}) for job in jobs]

    topics = {"topics": [{"name": "orders"}]}
    assert hooks(topics) == [True]
    assert hooks(topics | combinations.CONNECT) == hooks(combinations.CONNECT) == [False]
    own = {"connect": combinations.CONNECT["connect"] | {"apiKeySecret": "of-connect"}}
    assert (hooks(own), hooks(topics | own)) == ([], [True])


def test_accounts_get_the_rights_of_an_app_of_workers_and_what_the_values_add() -> None:
    words = {"name": "words", "app": "words.py", "id": "shop.words", "access": [{"role": "consumer", "name": "lines"}]}
    connect = combinations.CONNECT["connect"] | {"access": [{"role": "producer", "name": "shop."}], "prune": True}
    values = {
        "streamsApps": [words, {"name": "plain", "app": "plain.py"}],
        "connect": connect,
        "config": {"connect": {"group_id": "of shop.eu"}},
        "access": {"bindings": [{"principal": "User:a", "role": "viewer", "name": "x"}]},
    }
    wanted = parse(one(chart.render(values), "ConfigMap/headrace-apply")["data"]["cluster.json"], "cluster.json")
    of = f"ServiceAccount:{chart.NAMESPACE}/headrace"
    bindings = [item for item in wanted.access if isinstance(item, Binding)]
    bound = {(str(each.grantee), each.role) for each in bindings}
    assert bound == {
        ("User:a", "viewer"),
        (f"{of}-streams-words", "streams"),
        (f"{of}-streams-words", "consumer"),
        (f"{of}-streams-plain", "streams"),
        (f"{of}-connect", "connect"),
        (f"{of}-connect", "producer"),
    }
    rules = {str(item) for item in wanted.access if not isinstance(item, Binding)}
    assert len(rules) == 2, rules
    apps = {each.targets for each in bindings if each.role == "streams"}
    assert apps == {targets_for("streams", "shop.words"), targets_for("streams", "plain")}
    [workers] = [each for each in bindings if each.role == "connect"]
    assert workers.targets == targets_for("connect", "of shop.eu")


def test_and_all_of_them_may_have_one() -> None:
    assert shown(combinations.render("closed with keys of ours")) == {
        "StatefulSet/headrace-streams-billing": "of-billing",
        "StatefulSet/headrace-streams-words": "of-words",
        "StatefulSet/headrace-connect": "of-connect",
        "Pod/headrace-test": "the-admin",
        "Deployment/headrace-client": "the-admin",
    }


def test_workers_of_connect_are_shown_no_key_that_may_do_more_than_theirs() -> None:
    connect = {"connect": combinations.CONNECT["connect"] | {"apiKeySecret": "of-connect"}}
    assert shown(chart.render(connect))["Job/headrace-connect-apply"] == "of-connect"


def test_driver_and_executors_of_spark_show_one_too() -> None:
    jobs = [*combinations.SPARK_JOBS, combinations.SNAPSHOTS | {"apiKeySecret": "of-snapshots"}]
    values = combinations.BY_NAME["closed"] | {"sparkJobs": jobs}
    specs = spark_specs(chart.render(values))
    assert [spark_shows(spec) for spec in specs] == ["headrace-admin", "headrace-admin", "of-snapshots"]
    open_ = chart.render(values | OPEN)
    assert [spark_shows(spec) for spec in spark_specs(open_)] == [None, None, None]


def spark_specs(manifests: Sequence[Manifest]) -> list[dict[str, Any]]:
    """Of the application of each job, then of those that workers of Connect make."""
    made = of_kind(manifests, "SparkApplication") + [
        {"spec": scheduled["spec"]["template"]} for scheduled in of_kind(manifests, "ScheduledSparkApplication")
    ]
    by_workers = one(manifests, "ConfigMap/headrace-connect-spark")["data"]["table_snapshot.json"]
    return [application["spec"] for application in (*made, json.loads(by_workers))]


def spark_shows(spec: dict[str, Any]) -> str | None:
    """The Secret with the key that both kinds of pods show; they trust the CA too."""
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["tls"]["configMap"]["name"] == "headrace-ca"
    found = set()
    for part in (spec["driver"], spec["executor"]):
        where = {mount["name"]: mount["mountPath"] for mount in part["volumeMounts"]}
        env = {variable["name"]: variable.get("value") for variable in part["env"]}
        assert (where["tls"], env["HEADRACE_CA"]) == ("/etc/headrace/tls", "/etc/headrace/tls/ca.crt")
        assert where.get("api-key") == (env.get(KEY_FILE) and "/etc/headrace/api-key")
        assert env.get(KEY_FILE) in {None, "/etc/headrace/api-key/api-key"}
        found.add(volumes["api-key"]["secret"]["secretName"] if KEY_FILE in env else None)
    [shows] = found
    assert ("api-key" in volumes) == (shows is not None)
    return shows


def test_who_takes_brokers_away_is_asked_as_the_administrator(tmp_path: Path) -> None:
    brokers = {"spec": {"replicas": 5}}
    found = installed(tmp_path, "scale-in.yaml", '"%s-broker" $name', brokers, {})
    assert shown(found)["Job/headrace-scale-in"] == "headrace-admin"


@pytest.mark.parametrize("values", ["closed", "permissive", "closed with keys of ours"])
def test_controllers_know_the_administrator_and_are_not(values: str) -> None:
    manifests = combinations.render(values)
    secret = "the-admin" if values == "closed with keys of ours" else "headrace-admin"
    pod = pod_of(one(manifests, "StatefulSet/headrace-controller"))
    assert pod is not None
    assert secret_keys(pod)["/etc/headrace/admin-key"] == (secret, ["verifier=verifier"])
    assert told(manifests)["ADMIN_KEY_FILE"] == "/etc/headrace/admin-key/verifier"
    assert told(manifests)["ACCESS_MODE"] == ("permissive" if values == "permissive" else "closed")
    for other in pods(manifests):
        of_admin = [keys for name, keys in secret_keys(other).values() if name == secret]
        assert other.component != "controller" or of_admin == [["verifier=verifier"]]
        assert all(keys in (["verifier=verifier"], ["api-key=api-key"]) for keys in of_admin), "never both"
        assert not of_admin or other.component not in {"broker", "coordinator", "admin", "etcd"}, other.name


@pytest.mark.parametrize("service", SERVICES)
def test_no_service_holds_the_cluster_where_it_is_open(service: str) -> None:
    assert chart.text({"config": {service: {"feature_level_max": ACCESS.level}}})
    held = {"config": {service: {"feature_level_max": ACCESS.level - 1}}}
    with pytest.raises(chart.Refused, match=rf"security.mode: config.{service}.feature_level_max=6 .* not closed"):
        chart.text(held)
    assert chart.text(held | OPEN)


def test_super_users_are_told() -> None:
    assert (
        told(combinations.render("closed with keys of ours"))["SUPER_USERS"] == "User:alice,ServiceAccount:shop/orders"
    )
    assert "SUPER_USERS" not in told(combinations.render("closed"))


def test_what_the_job_applies_is_what_the_command_reads() -> None:
    text = one(combinations.render("rights"), "ConfigMap/headrace-apply")["data"]["cluster.json"]
    assert [str(item) for item in parse(text, "the chart").access][:1] == ["Role:reader"]
    assert len(parse(text, "the chart").access) == 3
    assert parse(text, "the chart").quotas == {"users/User:billing": {"producer_byte_rate": 100 << 20}}
    assert shown(combinations.render("rights"))["Job/headrace-apply"] == "headrace-admin"


def test_users_get_secrets_by_a_job_that_is_the_administrator() -> None:
    manifests = combinations.render("rights")
    pod = pod_of(one(manifests, "Job/headrace-users"))
    assert pod is not None
    assert shown(manifests)["Job/headrace-users"] == "headrace-admin"
    given = user_secrets.parse_arguments(pod.main["command"][3:])
    assert (given.users, given.prefix) == ({"billing": 365, "shop": 30}, "headrace-user")
    assert str(given.ca) == "/etc/headrace/tls/ca.crt"
    assert given.labels["app.kubernetes.io/instance"] == "headrace"
    assert given.bootstrap == "headrace-bootstrap.$(POD_NAMESPACE).svc.cluster.local:9292"


def test_the_job_makes_the_secret_that_pods_mount() -> None:
    pod = pod_of(one(combinations.render("closed"), "Job/headrace-admin-key"))
    assert pod is not None
    command = pod.main["command"]
    assert command[:3] == ["python", "-m", admin_key_secret.SECRET.program]
    assert new_secret.parse_arguments(admin_key_secret.SECRET, command[3:]).name == "headrace-admin"
    assert admin_key_secret.API_KEY == "api-key"
    assert admin_key_secret.VERIFIER == "verifier"
    assert "admin_key_secret" not in chart.text(combinations.BY_NAME["closed with keys of ours"])


def test_helm_has_no_secret_and_renders_the_same_each_time() -> None:
    values = combinations.BY_NAME["closed"]
    text = chart.text(values)
    assert text == chart.text(values)
    assert not of_kind(combinations.render("closed"), "Secret")
    assert "hrk_" not in text


def test_where_it_is_open_there_is_nothing_of_it() -> None:
    text = chart.text(OPEN | {"connect": {"enabled": True, "apiKeySecret": "of-connect"}})
    for part in ("api-key", "API_KEY", "admin-key", "ACCESS_MODE", "of-connect", "headrace-admin-key", "AUDIENCE"):
        assert part not in text


@pytest.mark.parametrize(("was", "now"), [("closed", "open"), ("closed", "permissive"), ("permissive", "open")])
def test_what_a_cluster_has_become_it_stays(was: str, now: str, tmp_path: Path) -> None:
    with pytest.raises(chart.Refused, match=f"security.mode is {was} and cannot become {now}.*set security.mode={was}"):
        upgraded(tmp_path, was, now)


@pytest.mark.parametrize(
    ("was", "now"),
    [("open", "open"), ("open", "permissive"), ("permissive", "permissive"), ("permissive", "closed")],
)
def test_it_may_become_more(was: str, now: str, tmp_path: Path) -> None:
    assert upgraded(tmp_path, was, now)


def test_one_that_is_open_becomes_permissive_first(tmp_path: Path) -> None:
    with pytest.raises(chart.Refused, match=r"security.mode is open .* leave it as it is: --set security.mode=open\."):
        upgraded(tmp_path, "open", "closed")


def test_defaults_leave_a_release_alone_that_runs_in_plain_text(tmp_path: Path) -> None:
    """It says which two values keep it as it was; who has stopped its pods, or gives these, is let through."""
    with pytest.raises(chart.Refused, match=r"without TLS.*--set tls.enabled=false,security.mode=open\."):
        upgraded(tmp_path / "a", "open", "closed", tls=False)
    assert upgraded(tmp_path / "b", "open", "open", tls=False, values=combinations.PLAIN)
    assert upgraded(tmp_path / "c", "open", "permissive", tls=False, running=0)


def test_a_volume_for_the_audit_does_not_come_by_an_upgrade_alone(tmp_path: Path) -> None:
    """Kubernetes refuses it, in the middle of an upgrade; so the chart does before."""
    audit = {"audit": {"to": ["topic"], "storage": {"size": "1Gi"}}}
    with pytest.raises(chart.Refused, match=r"audit.storage.size cannot become \"1Gi\".*--cascade=orphan"):
        upgraded(tmp_path, "closed", "closed", values=audit)


def upgraded(
    directory: Path,
    was: str,
    now: str,
    *,
    tls: bool = True,
    running: int = 3,
    values: Mapping[str, Any] = MappingProxyType({}),
) -> list[Manifest]:
    """What becomes of a release whose controllers have that mode, TLS or not, and run. Raises: chart.Refused."""
    env = [{"name": "HEADRACE_CONTROLLER_ACCESS_MODE", "value": was}] if was != "open" else []
    env += [{"name": "HEADRACE_CONTROLLER_TLS_CERT", "value": "/etc/headrace/tls/tls.crt"}] if tls else []
    found: dict[str, Any] = {"spec": {"template": {"spec": {"containers": [{"env": env}]}}}, "status": {}}
    if running:
        found["status"]["replicas"] = running
    given = {"security": {"mode": now}, **values}
    return installed(directory, "checks-live.yaml", '"%s-controller" $name', found, given)


def installed(directory: Path, template: str, name: str, found: Any, values: dict[str, Any]) -> list[Manifest]:
    """What is rendered where ``template`` finds that StatefulSet on the cluster. Raises: chart.Refused."""
    copy = directory / "headrace"
    shutil.copytree(chart.CHART, copy)
    asks = f'lookup "apps/v1" "StatefulSet" .Release.Namespace (printf {name})'
    text = (copy / "templates" / template).read_text()
    assert text.count(asks) == 1
    (copy / "templates" / template).write_text(text.replace(asks, ".Values.global.found"))
    given = values | {"global": {"found": found}}
    made = chart.run("template", "headrace", copy, "--namespace", chart.NAMESPACE, values=given)
    return read_all(made)
