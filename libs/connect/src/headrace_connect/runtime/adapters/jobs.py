"""
Who runs a source's jobs: the Spark operator where a worker is told how applications look, else a person, who is told
the command.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from headrace_common.core.errors import HeadraceError
from headrace_common.runtime.clock import limit_ms
from headrace_common.runtime.kubernetes import ACCOUNT, ApiServer, ApiServerFailed
from headrace_common.runtime.threads import run_in_thread
from headrace_connect.core import spark_application as core
from headrace_connect.core.jobs import Job, JobFailed, JobState
from headrace_connect.core.names import SPARK_APPLICATION
from headrace_connect.plugin import Jobs, RetriableError
from headrace_connect.settings import Problem, invalid

API_S: Final = 5.0
"""For each step of a call of the API server."""
END_MS: Final = 10_000
"""For the end of a job: a task that stops does not wait longer for it."""
_SNAPSHOT: Final = "table_snapshot"
_PLAIN: Final = "allow.plain.secrets"
_MESSAGE_CHARS_MAX: Final = 600
_log: Final = logging.getLogger(__name__)


def find_jobs(
    cluster: str, config: Mapping[str, str], env: Mapping[str, str] | None = None, account: Path = ACCOUNT
) -> Jobs:
    """
    Args:
        cluster: which Connect cluster of which cluster.
        config: of the connector, with references in the place of secrets.
        env: of the process; None: its own.
        account: of the pod.
    """
    env = os.environ if env is None else env
    template = env.get(SPARK_APPLICATION, "")
    return SparkApplications(cluster, config, Path(template), env, account) if template else ToldCommands()


class ToldCommands:
    """Satisfies ``Jobs``: a person runs them."""

    async def start(self, job: Job) -> str:
        """See ``Jobs``."""
        return f"run: headrace job run {job.name} -- --connector FILE {shlex.join(job.arguments)}"

    async def look(self, job: Job) -> JobState | None:
        """See ``Jobs``: nobody knows."""
        del job
        return None

    async def end(self, job: Job) -> None:
        """See ``Jobs``: who runs it sees that it is of no use."""


class SparkApplications:
    """
    Satisfies ``Jobs``: the Spark operator runs them, in the namespace of this pod. Of each run there is one object,
    however often it is started; it is deleted at the end.
    """

    def __init__(
        self, cluster: str, config: Mapping[str, str], template: Path, env: Mapping[str, str], account: Path
    ) -> None:
        """
        Args:
            template: the file with the application without a name, as JSON.
        """
        self._cluster = cluster
        self._config = config
        self._template = template
        self._env = env
        self._account = account
        self._seen = True
        """Whether the last look has seen something; else that is logged."""

    async def start(self, job: Job) -> str:
        """See ``Jobs``."""
        self._check_secrets()
        server, made = self._server(), self._manifest(job)
        name = made["metadata"]["name"]
        for found in await self._list(server):
            if found != name:
                await self._ask(server, "DELETE", f"/{found}", absent=True)
        await self._ask(server, "POST", "", made)
        return f"it is the SparkApplication {name} of the namespace {server.namespace}"

    async def look(self, job: Job) -> JobState | None:
        """See ``Jobs``. While nobody answers nothing is known: the job may go on all the same."""
        name = self._name(job)
        try:
            found = await self._ask(self._server(), "GET", f"/{name}", absent=True)
        except (RetriableError, JobFailed, HeadraceError) as error:
            if self._seen:
                _log.warning("how the SparkApplication %s is cannot be seen for now: %s", name, error)
            self._seen = False
            return None
        self._seen = True
        return core.state_of(name, found)

    async def end(self, job: Job) -> None:
        """See ``Jobs``."""
        name = self._name(job)
        try:
            async with limit_ms(END_MS):
                await self._ask(self._server(), "DELETE", f"/{name}", absent=True)
        except (RetriableError, JobFailed, HeadraceError, TimeoutError) as error:
            _log.warning("the SparkApplication %s may still be there; delete it: %s", name, error or "no answer")

    # --- what is sent -----------------------------------------------------------------------------------------------

    def _check_secrets(self) -> None:
        """Raises: InvalidConfig: there may be secrets in what would be written down."""
        if self._config.get(_PLAIN, "").strip().lower() == "true":
            text = (
                f"{_PLAIN}: with snapshot.engine=spark the configuration stands in a SparkApplication, which others "
                "may read; refer to secrets, as ${dir:DIRECTORY:FILE}, and leave it out"
            )
            raise invalid([Problem(_PLAIN, text)])

    def _manifest(self, job: Job) -> Mapping[str, Any]:
        """Raises: InvalidConfig: there is no such template, or the configuration is too large."""
        try:
            template = json.loads(self._template.read_text(encoding="utf-8"))
            made = core.manifest(template, self._name(job), self._cluster, self._config, job.arguments)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            text = f"{SPARK_APPLICATION}: {self._template} has no SparkApplication in JSON: {error!r}"
            raise invalid([Problem("", text)]) from error
        longest = max(len(argument) for argument in made["spec"]["arguments"])
        if longest > core.TEXT_BYTES_MAX:
            text = f"the configuration has {longest} bytes as an argument; {core.TEXT_BYTES_MAX} fit"
            raise invalid([Problem("", text)])
        return made

    def _name(self, job: Job) -> str:
        return core.name_of(job.name, self._cluster, self._config["name"], job.arguments)

    # --- the API server ---------------------------------------------------------------------------------------------

    def _server(self) -> ApiServer:
        """Raises: InvalidConfig: this is no pod with an account."""
        return ApiServer.of_pod(self._env, self._account, API_S)

    async def _list(self, server: ApiServer) -> list[str]:
        """Names of all of this connector."""
        owner = core.owner_of(self._cluster, self._config["name"])
        found = await self._ask(server, "GET", f"?labelSelector={quote(f'{core.OWNER}={owner}', safe='')}")
        return [str(one["metadata"]["name"]) for one in (found or {}).get("items", ())]

    async def _ask(
        self, server: ApiServer, method: str, what: str, body: Mapping[str, Any] | None = None, *, absent: bool = False
    ) -> Mapping[str, Any] | None:
        """
        What is answered; None: there is no such application. One that is to be made may be there.

        Args:
            what: behind the path of all applications: ``/NAME``, a query, or nothing.
            absent: whether there need not be one of the name.

        Raises:
            RetriableError: no answer, or one of a server in trouble.
            JobFailed: it refuses.
        """
        path = f"{core.API}/{server.namespace}/sparkapplications{what}"
        try:
            status, found = await run_in_thread(server.ask, method, path, body)
        except ApiServerFailed as error:
            raise RetriableError(str(error)) from error
        reason = found.get("reason")
        if 200 <= status < 300 or (status == HTTPStatus.CONFLICT and reason == "AlreadyExists"):
            return found
        if absent and status == HTTPStatus.NOT_FOUND:
            return None
        said = f"the API server answers {method} of SparkApplications in {server.namespace} with {status} {reason}"
        message = str(found.get("message", ""))[:_MESSAGE_CHARS_MAX]
        match status:
            case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
                raise JobFailed(
                    f"{said}: {message}; in the chart's values an entry of sparkJobs with job: {_SNAPSHOT} gives "
                    "workers the right"
                )
            case HTTPStatus.NOT_FOUND:
                raise JobFailed(f"{said}: the cluster does not know them; install the Spark operator")
            case HTTPStatus.CONFLICT | HTTPStatus.TOO_MANY_REQUESTS:
                raise RetriableError(f"{said}: {message}")
        raise (RetriableError if status >= 500 else JobFailed)(f"{said}: {message}")
