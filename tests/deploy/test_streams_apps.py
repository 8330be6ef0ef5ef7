"""Apps of streams in the chart: what their workers are told, where their programs come from, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.deploy import chart, combinations, settings
from tests.deploy.manifests import Manifest, Pod, lasting, name_of, one

pytestmark = pytest.mark.chart

WORDS: dict[str, Any] = {"name": "words", "app": "words.py", "programs": {"words.py": "app = App('words')"}}


def pod(found: list[Manifest], name: str = "words") -> Pod:
    [app] = [pod for pod in lasting(found) if pod.labels.get("headrace.io/app") == name]
    return app


def rendered(**given: Any) -> Pod:
    return pod(chart.render({"streamsApps": [WORDS | given]}))


def option(of: Pod, name: str) -> str:
    words: list[str] = of.main["command"]
    return words[words.index(name) + 1]


@pytest.mark.parametrize("name", ["billing", "words"])
def test_a_worker_is_a_client_that_keeps_its_state_on_its_own_volume(name: str) -> None:
    app = pod(combinations.render("streams"), name)
    assert app.main["command"][:3] == ["headrace", "streams", "run"]
    assert "node-token" not in str(app.spec)
    variables = settings.environment(app, app.main, 0, chart.NAMESPACE)
    assert variables["HEADRACE_BOOTSTRAP"] == f"headrace-bootstrap.{chart.NAMESPACE}.svc.cluster.local:9292"
    known = {f"HEADRACE_STREAMS_{setting.upper()}" for setting in settings.names("streams")}
    known |= {"HEADRACE_BOOTSTRAP", "HEADRACE_CA", "HEADRACE_API_KEY_FILE"}
    assert {variable for variable in variables if variable.startswith("HEADRACE_")} <= known
    [data] = [mount["mountPath"] for mount in app.main["volumeMounts"] if mount["name"] == "data"]
    assert option(app, "--state-dir").startswith(f"{data}/")
    ports = {port["name"]: port["containerPort"] for port in app.main["ports"]}
    assert option(app, "--health-listen") == f"0.0.0.0:{ports['health']}"
    assert option(app, "--metrics-listen") == f"0.0.0.0:{ports['metrics']}"
    assert option(app, "--query-listen") == f"0.0.0.0:{ports['grpc']}"
    assert variables["HEADRACE_STREAMS_ADVERTISE_HOST"] == settings.pod_ip(0), "others ask it for its state there"


def test_the_image_is_that_of_the_app_or_ours() -> None:
    found = combinations.render("streams")
    assert pod(found, "billing").main["image"] == "registry.example.com/billing:1.4"
    assert pod(found).main["image"] == "headrace/streams:0.1.0"


def test_a_program_of_the_values_is_where_the_worker_runs_and_another_one_restarts_it() -> None:
    manifests = chart.render({"streamsApps": [WORDS]})
    assert one(manifests, "ConfigMap/headrace-streams-words")["data"] == WORDS["programs"]
    app = pod(manifests)
    [mounted] = [mount["mountPath"] for mount in app.main["volumeMounts"] if mount["name"] == "programs"]
    assert app.main["workingDir"] == mounted
    other = rendered(programs={"words.py": "app = App('words2')"})
    assert other.metadata["annotations"] != app.metadata["annotations"]
    assert rendered(replicas=3).metadata == app.metadata, "more workers restart nobody"


TOPICS: dict[str, Any] = {"topics": [{"name": "lines"}]}


def apply_job(found: list[Manifest]) -> Manifest:
    [job] = [each for each in found if each["kind"] == "Job" and "-apply" in each["metadata"]["name"]]
    return job


def test_topics_of_apps_are_made_before_helm_waits_for_workers() -> None:
    """A hook would come when all workers are ready, which they are when the topics are there."""
    job = apply_job(chart.render(TOPICS | {"streamsApps": [WORDS]}))
    assert "annotations" not in job["metadata"]
    assert "ttlSecondsAfterFinished" not in job["spec"], "who keeps to what is rendered would run it again each hour"
    hook = apply_job(chart.render(TOPICS))
    assert hook["metadata"]["annotations"]["helm.sh/hook"] == "post-install,post-upgrade"
    assert hook["metadata"]["name"] == "headrace-apply"
    assert job["spec"]["template"] == hook["spec"]["template"]


def test_a_job_that_is_no_hook_has_another_name_for_other_values() -> None:
    """A Job cannot be changed."""
    values = TOPICS | {"streamsApps": [WORDS]}
    name = apply_job(chart.render(values))["metadata"]["name"]
    assert re.fullmatch(r"headrace-apply-1-[0-9a-f]{8}", name)
    assert apply_job(chart.render(values))["metadata"]["name"] == name
    assert apply_job(chart.render(values | {"statefulset": {"replicas": 5}}))["metadata"]["name"] != name


def test_an_app_without_programs_runs_where_its_image_says() -> None:
    found = combinations.render("streams")
    assert "workingDir" not in pod(found, "billing").main
    assert "ConfigMap/headrace-streams-billing" not in [name_of(each) for each in found]


def test_standbys_are_on_other_nodes_or_in_other_racks() -> None:
    assert option(rendered(standbys=2), "--standbys") == "2"
    app = rendered()
    assert settings.environment(app, app.main, 0, chart.NAMESPACE)["HEADRACE_STREAMS_ZONE"] == "node-0"
    racks = {
        "rackAwareness": {"enabled": True, "podLabel": "rack"},
        "streamsApps": [WORDS | {"podLabels": {"rack": "r1"}}],
    }
    app = pod(chart.render(racks))
    assert settings.environment(app, app.main, 0, chart.NAMESPACE)["HEADRACE_STREAMS_ZONE"] == "r1"


def test_each_setting_of_a_worker_arrives_there() -> None:
    given = {"commit_interval_ms": 20, "acceptable_recovery_lag": 2**53 - 1}
    app = rendered(settings=given)
    config = settings.load("streams", settings.environment(app, app.main, 0, chart.NAMESPACE))
    assert {name: getattr(config, name) for name in given} == given


def test_the_settings_in_the_values_are_those_that_there_are() -> None:
    of_apps = chart.schema()["properties"]["streamsApps"]["items"]["properties"]["settings"]["properties"]
    of_the_chart = {"bootstrap_servers", "state_dir", "standbys", "zone", "health_listen", "metrics_listen"}
    of_the_chart |= {"query_listen", "advertise_host"} | {f"query_tls_{name}" for name in ("cert", "key", "ca", "mode")}
    assert set(of_apps) == settings.names("streams") - of_the_chart


def test_an_app_can_be_stopped_and_is_while_metadata_is_restored() -> None:
    assert rendered(replicas=0).replicas == 0
    assert rendered().replicas == 1
    restore = {"etcd": {"restore": {"enabled": True}}, "streamsApps": [WORDS | {"replicas": 2}]}
    assert pod(chart.render(restore)).replicas == 0


def test_resources_and_more_are_an_apps_own_if_it_says_so() -> None:
    asked = {"requests": {"cpu": 2, "memory": "4Gi"}, "limits": {"memory": "8Gi"}}
    app = rendered(
        resources=asked, podLabels={"team": "data"}, env=[{"name": "RATES", "value": "r"}], storage={"size": "9Gi"}
    )
    assert app.main["resources"] == asked
    assert app.labels["team"] == "data"
    assert {"name": "RATES", "value": "r"} in app.main["env"]
    [claim] = app.owner["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "9Gi"
    assert rendered().main["resources"] == chart.default_values()["resources"]["streams"]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"app": "--workers"}, "streamsApps.0.app"),
    ({"app": "a b.py"}, "streamsApps.0.app"),
    ({"app": "words.py:"}, "streamsApps.0.app"),
    ({"app": "other.py"}, "streamsApps.words.app: there is no other.py among its programs, which are words.py"),
    ({"app": "other:app"}, "streamsApps.words.app: there is no other.py among its programs"),
    ({"programs": {"a/b.py": ""}}, "streamsApps.0.programs"),
    ({"programs": {"words.py": 1}}, "streamsApps.0.programs.words.py"),
    ({"name": "Words"}, "streamsApps.0.name"),
    ({"name": "w" * 36}, "streamsApps.0.name"),
    ({"image": "billing"}, "streamsApps.0.image"),
    ({"image": "Billing:1"}, "streamsApps.0.image"),
    ({"replicas": -1}, "streamsApps.0.replicas"),
    ({"standbys": 17}, "streamsApps.0.standbys"),
    ({"workers": 2}, "workers"),
    ({"settings": {"commit_interval": 20}}, "commit_interval"),
    ({"settings": {"commit_interval_ms": 600_001}}, "streamsApps.0.settings.commit_interval_ms"),
    ({"settings": {"state_dir": "/data"}}, "state_dir"),
    ({"terminationGracePeriodSeconds": 30}, "streamsApps.0.terminationGracePeriodSeconds"),
    ({"storage": {"size": 1}}, "streamsApps.words.storage.size: 1 is less than 1M"),
    (
        {"resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}},
        "streamsApps.words.resources: requests.memory 2Gi is more",
    ),
    (
        {"readinessProbe": {"tcpSocket": {"port": 1}, "exec": {"command": ["a"]}}},
        "streamsApps.words.readinessProbe: one of grpc",
    ),
    (
        {"env": [{"name": "HEADRACE_BOOTSTRAP", "value": "elsewhere:9292"}]},
        "streamsApps.words.env: HEADRACE_BOOTSTRAP is set by the chart",
    ),
    (
        {"settings": {"commit_rows": 5}, "env": [{"name": "HEADRACE_STREAMS_COMMIT_ROWS", "value": "6"}]},
        "streamsApps.words.env: HEADRACE_STREAMS_COMMIT_ROWS is set by streamsApps.words.settings.commit_rows",
    ),
]


@pytest.mark.parametrize(("given", "says"), REFUSED, ids=lambda given: given if isinstance(given, str) else "")
def test_an_app_that_cannot_run_is_refused_with_the_key(given: dict[str, Any], says: str) -> None:
    with pytest.raises(chart.Refused) as found:
        chart.text({"streamsApps": [WORDS | given]})
    assert says in re.sub(r"'/([^']*)'", lambda key: key[1].replace("/", "."), str(found.value))


def test_names_are_there_once_and_fit() -> None:
    with pytest.raises(chart.Refused, match='streamsApps: two apps are called "words"'):
        chart.text({"streamsApps": [WORDS, WORDS]})
    long = {"fullnameOverride": "h" * 40, "streamsApps": [WORDS | {"name": "words"}]}
    with pytest.raises(
        chart.Refused, match=r"streamsApps\.words: its StatefulSet would be called h+-streams-words, which is 54"
    ):
        chart.text(long)


@pytest.mark.parametrize("app", ["words.py", "words.py:app", "words", "words:app"])
def test_a_program_is_a_file_or_a_module(app: str) -> None:
    assert rendered(app=app).main["command"][3] == app


@pytest.mark.parametrize("app", ["/srv/billing.py", "shop/billing.py:app", "shop.billing", "shop.billing:app"])
def test_a_program_of_an_image_is_anywhere_in_it(app: str) -> None:
    found = chart.render({"streamsApps": [{"name": "billing", "app": app, "image": "shop:1"}]})
    assert pod(found, "billing").main["command"][3] == app
