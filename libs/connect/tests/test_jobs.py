"""Jobs of sources: told to a person, or Spark applications that an API server of Kubernetes keeps."""

from __future__ import annotations

import json
import logging
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import pytest
from libs.common.tests.kit.api_server import BEARER, NAMESPACE, make_account, make_certificates, serving

from headrace_common.core.errors import InvalidConfig
from headrace_connect.core.jobs import Job, JobFailed, JobState
from headrace_connect.core.names import SPARK_APPLICATION
from headrace_connect.core.spark_application import OWNER, in_argument, manifest, name_of, owner_of, state_of
from headrace_connect.plugin import RetriableError
from headrace_connect.runtime.adapters.jobs import SparkApplications, ToldCommands, find_jobs

CLUSTER: Final = "broker:9292 connect-cluster"
PASSWORD: Final = "${dir:/etc/headrace/secrets/db:password}"
CONFIG: Final = {"name": "shop", "connector.class": "postgres-cdc", "database.password": PASSWORD}
JOB: Final = Job("table_snapshot", ("--point", '{"snapshot":"00000003-1"}'))
LATER: Final = Job("table_snapshot", ("--point", '{"snapshot":"00000003-2"}'))
TEMPLATE: Final[dict[str, Any]] = {
    "apiVersion": "sparkoperator.k8s.io/v1beta2",
    "kind": "SparkApplication",
    "metadata": {"labels": {"app.kubernetes.io/name": "headrace"}},
    "spec": {"type": "Python", "arguments": ["--bootstrap", "broker:9292"], "driver": {"cores": 1}},
}
PATH: Final = f"/apis/sparkoperator.k8s.io/v1beta2/namespaces/{NAMESPACE}/sparkapplications"


# --- the application --------------------------------------------------------------------------------------------------


def test_a_name_follows_from_connector_and_snapshot() -> None:
    names = [
        name_of("table_snapshot", cluster, connector, job.arguments)
        for cluster in (CLUSTER, "other")
        for connector in ("shop", "Shop", "s/hop", "x" * 80, "Ü", "shop-" * 9)
        for job in (JOB, LATER)
    ]
    assert len(set(names)) == len(names), "each is another one"
    assert names[0] == name_of("table_snapshot", CLUSTER, "shop", JOB.arguments), "and always the same"
    assert names[0].startswith("table-snapshot-shop-")
    for name in names:
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
        assert "--" not in name
        assert len(f"{name}-driver") <= 63


def test_a_manifest_is_the_template_with_the_connector() -> None:
    made = manifest(TEMPLATE, "a-name", CLUSTER, CONFIG, JOB.arguments)
    metadata = made["metadata"]
    assert metadata["name"] == "a-name"
    assert metadata["labels"] == {"app.kubernetes.io/name": "headrace", OWNER: owner_of(CLUSTER, "shop")}
    assert metadata["annotations"] == {"headrace.io/connector-name": "shop"}
    spec = made["spec"]
    assert spec["arguments"][:2] == ["--bootstrap", "broker:9292"]
    assert spec["arguments"][2] == "--connector-json"
    assert json.loads(spec["arguments"][3]) == CONFIG
    assert spec["arguments"][4:] == list(JOB.arguments)
    assert spec["driver"] == {"cores": 1}
    assert spec["timeToLiveSeconds"] > 0
    assert TEMPLATE["metadata"] == {"labels": {"app.kubernetes.io/name": "headrace"}}, "the template stays"


def test_a_template_says_how_long_one_stays() -> None:
    template = {**TEMPLATE, "spec": {**TEMPLATE["spec"], "timeToLiveSeconds": 5}}
    assert manifest(template, "n", CLUSTER, CONFIG, ())["spec"]["timeToLiveSeconds"] == 5


def test_kubernetes_finds_no_variables_in_arguments() -> None:
    """It would put the value of HOME there, and that of a secret."""
    config = {**CONFIG, "table.include.list": "a$(HOME)|b[$]", "topic.prefix": "\U0001f9ca"}
    made = manifest(TEMPLATE, "n", CLUSTER, config, ("--point", '{"a":"$(HOME)"}'))
    arguments = made["spec"]["arguments"]
    assert not any("$" in argument for argument in arguments)
    assert all(argument.isascii() for argument in arguments)
    assert json.loads(arguments[3]) == config
    assert json.loads(arguments[5]) == {"a": "$(HOME)"}
    assert in_argument("--point") == "--point"


@pytest.mark.parametrize(
    ("found", "says", "ended"),
    [
        (None, "was deleted", True),
        ({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, "was deleted", True),
        ({}, "waits for the Spark operator", False),
        ({"status": {}}, "waits for the Spark operator", False),
        ({"status": {"applicationState": {"state": ""}}}, "waits for the Spark operator", False),
        *(
            ({"status": {"applicationState": {"state": state}}}, f"is {state}", False)
            for state in (
                "SUBMITTED",
                "RUNNING",
                "FAILING",
                "PENDING_RERUN",
                "SUBMISSION_FAILED",
                "SUCCEEDING",
                "UNKNOWN",
            )
        ),
        ({"status": {"applicationState": {"state": "COMPLETED"}}}, "is COMPLETED", True),
        (
            {"status": {"applicationState": {"state": "FAILED", "errorMessage": "driver: exit code 2"}}},
            "is FAILED: driver: exit code 2",
            True,
        ),
    ],
)
def test_what_its_status_says(found: Any, says: str, ended: bool) -> None:
    state = state_of("a-name", found)
    assert state.ended is ended
    assert state.text.startswith("the SparkApplication a-name ")
    assert says in state.text


def test_a_long_reason_is_cut() -> None:
    found = {"status": {"applicationState": {"state": "FAILED", "errorMessage": "x" * 10_000}}}
    assert len(state_of("a-name", found).text) < 1_000


# --- who runs them ----------------------------------------------------------------------------------------------------


@dataclass
class Api:
    """Keeps applications, as an API server with the operator's CRD does for an account that may do it."""

    applications: dict[str, dict[str, Any]] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    """By method: instead of what it would say."""

    def answer(self, method: str, path: str, bearer: str | None, body: Any) -> tuple[int, Any]:
        self.calls.append((method, path.removeprefix(PATH)))
        parts = urlsplit(path)
        if method in self.answers:
            return self.answers[method]
        if bearer != f"Bearer {BEARER}":
            return 401, {"kind": "Status", "reason": "Unauthorized"}
        assert parts.path.startswith(PATH)
        name = parts.path.removeprefix(PATH).removeprefix("/")
        return getattr(self, method.lower())(name, parse_qs(parts.query), body)  # type: ignore[no-any-return]

    def get(self, name: str, query: dict[str, list[str]], _: Any) -> tuple[int, Any]:
        if name:
            return (200, self.applications[name]) if name in self.applications else self.none(name)
        key, _, value = query["labelSelector"][0].partition("=")
        items = [one for one in self.applications.values() if one["metadata"]["labels"].get(key) == value]
        return 200, {"kind": "SparkApplicationList", "items": items}

    def post(self, _: str, __: Any, body: Any) -> tuple[int, Any]:
        name = body["metadata"]["name"]
        if name in self.applications:
            return 409, {"kind": "Status", "reason": "AlreadyExists"}
        self.applications[name] = body
        return 201, body

    def delete(self, name: str, _: Any, __: Any) -> tuple[int, Any]:
        return (200, self.applications.pop(name)) if name in self.applications else self.none(name)

    def none(self, name: str) -> tuple[int, Any]:
        return 404, {"kind": "Status", "reason": "NotFound", "message": f"{name} not found"}

    def say(self, state: str, reason: str = "") -> None:
        """What the operator writes of the only one."""
        [one] = self.applications.values()
        one["status"] = {"applicationState": {"state": state, "errorMessage": reason}}


@dataclass
class Pod:
    """Of a worker."""

    api: Api
    env: dict[str, str]
    account: Path
    template: Path

    def jobs(self, cluster: str = CLUSTER, **config: str) -> SparkApplications:
        found = find_jobs(cluster, {**CONFIG, **config}, self.env, self.account)
        assert isinstance(found, SparkApplications)
        return found


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    files = make_certificates(tmp_path / "certificates")
    template = tmp_path / "application.json"
    template.write_text(json.dumps(TEMPLATE))
    api = Api()
    with serving(api.answer, files) as env:
        env[SPARK_APPLICATION] = str(template)
        yield Pod(api, env, make_account(tmp_path / "account", files), template)


async def test_without_an_application_a_person_is_told_the_command() -> None:
    jobs = find_jobs(CLUSTER, CONFIG, {})
    assert isinstance(jobs, ToldCommands)
    told = await jobs.start(JOB)
    assert told.startswith("run: headrace job run table_snapshot -- --connector FILE --point ")
    assert shlex.split(told)[-1] == JOB.arguments[1]
    assert await jobs.look(JOB) is None
    await jobs.end(JOB)


async def test_one_run_is_one_application_however_often_it_is_started(pod: Pod) -> None:
    first = await pod.jobs().start(JOB)
    assert await pod.jobs().start(JOB) == first
    [(name, made)] = pod.api.applications.items()
    assert first == f"it is the SparkApplication {name} of the namespace {NAMESPACE}"
    assert made == manifest(TEMPLATE, name, CLUSTER, CONFIG, JOB.arguments)
    assert PASSWORD in json.loads(made["spec"]["arguments"][3])["database.password"], "a reference"
    assert [call for call in pod.api.calls if call[0] == "DELETE"] == []


async def test_what_an_earlier_task_has_left_is_deleted_and_nothing_of_others(pod: Pod) -> None:
    await pod.jobs().start(JOB)
    await pod.jobs(name="other").start(JOB)
    await pod.jobs(cluster="another").start(JOB)
    before = set(pod.api.applications)
    await pod.jobs().start(LATER)
    assert len(before & set(pod.api.applications)) == 2
    assert len(pod.api.applications) == 3


async def test_how_it_is_and_its_end(pod: Pod) -> None:
    jobs = pod.jobs()
    await jobs.start(JOB)
    [name] = pod.api.applications
    assert await jobs.look(JOB) == state_of(name, {})
    pod.api.say("RUNNING")
    assert await jobs.look(JOB) == JobState(f"the SparkApplication {name} is RUNNING")
    pod.api.say("FAILED", "exit code 3")
    assert await jobs.look(JOB) == JobState(f"the SparkApplication {name} is FAILED: exit code 3", ended=True)
    await jobs.end(JOB)
    assert not pod.api.applications
    assert await jobs.look(JOB) == JobState(f"the SparkApplication {name} was deleted", ended=True)
    await jobs.end(JOB)


FORBIDDEN: Final = (403, {"reason": "Forbidden", "message": "sparkapplications is forbidden"})
REFUSED: Final[list[tuple[str, Any, type[Exception], str]]] = [
    ("POST", FORBIDDEN, JobFailed, "is forbidden; in the chart's values an entry of sparkJobs with job: table_snap"),
    ("GET", FORBIDDEN, JobFailed, "sparkJobs with job: table_snapshot gives workers"),
    ("POST", (401, {"reason": "Unauthorized"}), JobFailed, "sparkJobs with job: table_snapshot gives workers"),
    ("GET", (404, {"reason": "NotFound"}), JobFailed, "install the Spark operator"),
    ("POST", (422, {"reason": "Invalid", "message": "spec.driver: Required"}), JobFailed, "422 Invalid: spec.driver"),
    ("POST", (409, {"reason": "Conflict", "message": "quota"}), RetriableError, "409 Conflict: quota"),
    ("POST", (429, {"reason": "TooManyRequests"}), RetriableError, "429"),
    ("POST", (500, {"reason": "InternalError"}), RetriableError, "500 InternalError"),
    ("POST", (201, b"<html>"), RetriableError, "no answer"),
    ("POST", (201, []), RetriableError, "no object"),
    ("POST", (307, {}), JobFailed, "307"),
]


@pytest.mark.parametrize(("method", "answer", "error", "says"), REFUSED, ids=lambda given: str(given)[:20])
async def test_answers_that_are_none(pod: Pod, method: str, answer: Any, error: type[Exception], says: str) -> None:
    pod.api.answers[method] = answer
    with pytest.raises(error, match=says):
        await pod.jobs().start(JOB)
    assert not pod.api.applications


@pytest.mark.parametrize("answer", [FORBIDDEN, (500, {}), (200, b"<html>")])
async def test_while_it_cannot_be_seen_nothing_is_known(
    pod: Pod, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The job may go on: the snapshot is kept for it."""
    jobs = pod.jobs()
    await jobs.start(JOB)
    pod.api.answers = {"GET": answer, "DELETE": answer}
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert await jobs.look(JOB) is None
        await jobs.end(JOB)
    [seen, left] = [record.getMessage() for record in caplog.records]
    [name] = pod.api.applications
    assert f"{name} is cannot be seen for now" in seen
    assert f"{name} may still be there; delete it" in left
    pod.api.answers = {}
    assert await jobs.look(JOB) is not None
    (pod.account / "token").unlink()
    with caplog.at_level(logging.WARNING):
        assert await jobs.look(JOB) is None
    assert "has no account" in caplog.messages[-1]
    await jobs.end(JOB)


async def test_secrets_go_nowhere(pod: Pod) -> None:
    with pytest.raises(InvalidConfig, match=r"allow\.plain\.secrets: .*refer to secrets"):
        await pod.jobs(**{"allow.plain.secrets": " True", "database.password": "tiger"}).start(JOB)
    assert pod.api.calls == []
    await pod.jobs(**{"allow.plain.secrets": "false"}).start(JOB)


async def test_what_cannot_be_an_application_is_said_before_anything_is_asked(pod: Pod) -> None:
    with pytest.raises(InvalidConfig, match="as an argument; 100000 fit"):
        await pod.jobs(**{"table.include.list": "x" * 100_000}).start(JOB)
    for text in ("{", "[]", "{}", '{"metadata": 1, "spec": 2}'):
        pod.template.write_text(text)
        with pytest.raises(InvalidConfig, match=f"{SPARK_APPLICATION}: .*no SparkApplication in JSON"):
            await pod.jobs().start(JOB)
    pod.template.unlink()
    with pytest.raises(InvalidConfig, match="no SparkApplication in JSON"):
        await pod.jobs().start(JOB)
    assert pod.api.calls == []


async def test_outside_of_a_pod_it_says_so(pod: Pod) -> None:
    del pod.env["KUBERNETES_SERVICE_HOST"]
    with pytest.raises(InvalidConfig, match="this is no pod"):
        await pod.jobs().start(JOB)
