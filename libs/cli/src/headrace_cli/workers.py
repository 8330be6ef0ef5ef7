"""
A client of the REST interface of Connect workers, ours or Kafka's: one request at a time, each with an end to its wait.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar
from urllib.parse import SplitResult, quote, urlencode, urlsplit

import typer

from headrace.finding import CA_VARIABLE, CLUSTER_FILE, DATA_DIR, ClusterAddress, credentialed
from headrace.local_keys import (
    POD_TOKEN,
    find_login,
    local_keys_directory,
    logins_directory,
    read_key_file,
    read_local_keys,
)
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_common.core.ids import is_loopback
from headrace_common.core.secret import Secret

if TYPE_CHECKING:
    import ssl
    from urllib.error import HTTPError

DEFAULT_URL: Final = "http://127.0.0.1:8083"
ANSWER_SECONDS: Final = 100.0
"""Longer than a worker takes for any request."""
ANSWER_BYTES_MAX: Final = 512 << 20
_EXITS: Final[Mapping[int, ExitCode]] = {
    400: ExitCode.USAGE,
    404: ExitCode.NOT_FOUND,
    409: ExitCode.FAILED,
    429: ExitCode.UNREACHABLE,
    503: ExitCode.UNREACHABLE,
}


Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="HEADRACE_CONNECT_URL",
        help=f"Of any worker; else that of ./{DATA_DIR}, or {DEFAULT_URL}",
    ),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the connector")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")]
_NOT_NOW: Final = (409, 429, 503)
_KEY_HINT: Final = "--profile, HEADRACE_API_KEY_FILE or `headrace login` says who you are; see docs/security.md."
RETRY_SECONDS: Final = 1.0
_Done = TypeVar("_Done")


class NotNow(CommandFailed):
    """None leads, or it has too much to do, or does not answer: the same may be asked again."""


class NobodyThere(NotNow):
    """Nobody takes the connection."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Until when it is tried again."""

    end: float
    also_nobody: bool
    """Whether also while no worker is there."""

    def ask(self, do: Callable[[], _Done]) -> _Done:
        """
        What ``do`` gives.

        Raises:
            CommandFailed: the worker says no, or it is not done in time.
        """
        while True:
            try:
                return do()
            except NotNow as failed:
                waits = self.also_nobody or not isinstance(failed, NobodyThere)
                if not waits or time.monotonic() + RETRY_SECONDS >= self.end:
                    raise
            time.sleep(RETRY_SECONDS)


def find_url(here: Path) -> str:
    """The worker of the local cluster of this directory (``headrace up --connect``); where it has none, the default."""
    url = _local(here).get("connect_url")
    return url if isinstance(url, str) else DEFAULT_URL


def _local(here: Path) -> Mapping[str, Any]:
    """What the local cluster of this directory says of itself; nothing where there is none, or a copy of another."""
    data_dir = here / DATA_DIR
    try:
        local: dict[str, Any] = json.loads((data_dir / CLUSTER_FILE).read_text())
        return local if local["data_dir"] == os.path.realpath(data_dir) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _trusting() -> ssl.SSLContext | None:
    """Whom to trust: the CAs of ``HEADRACE_CA``, else of the local cluster here; None: those of the system."""
    from headrace_common.runtime.tls_contexts import make_client_context

    ca = os.environ.get(CA_VARIABLE) or _local(Path()).get("ca")
    return make_client_context(Path(ca)) if isinstance(ca, str) else None


def _shown(url: SplitResult, cluster: ClusterAddress) -> Secret | None:
    host, secure = url.hostname or "", url.scheme == "https"
    try:
        port = url.port or (443 if secure else 80)
    except ValueError:
        raise CommandFailed(f"{url.netloc!r} is no address", ExitCode.USAGE, f"Write it as {DEFAULT_URL}.") from None
    found = find_credential(cluster, host, port, os.environ) or (_pod_token() if secure else None)
    if found is not None and not secure and not is_loopback(f"{host}:{port}"):
        raise CommandFailed(
            f"the credential is not sent to {host} in plain text, where whoever is in between could read it",
            ExitCode.USAGE,
            "Have workers speak TLS and give their https:// URL, or ask one on this machine, as by `kubectl exec` or a "
            "tunnel of ssh.",
        )
    return found


def refusal(status: int, message: str) -> CommandFailed:
    """How a command ends to which a worker has said no, with a status of HTTP."""
    hints = {
        401: _KEY_HINT,
        404: "`headrace connect list` shows the connectors.",
        409: "Try again in a moment.",
    }
    kind = NotNow if status in _NOT_NOW else CommandFailed
    return kind(message, _EXITS.get(status, ExitCode.FAILED), hints.get(status, ""))


def find_credential(cluster: ClusterAddress, host: str, port: int, env: Mapping[str, str]) -> Secret | None:
    """
    What the command shows of itself to a worker of ``cluster`` that is asked at ``host``: as any client of the cluster.

    Raises:
        CommandFailed: it cannot be read, or is a password, which workers do not take.
    """
    try:
        named = credentialed(cluster, None, None, env)
        file = named.api_key_file and Path(named.api_key_file).expanduser()
        if named.api_key is not None or file:
            found = named.api_key or Secret(Path(file or "").read_text("ascii").strip())
            return _sendable(found, str(file or "the API key"))
        login = find_login(logins_directory(env), cluster)
        if login is not None:
            return _sendable(read_key_file(login)[1], str(login))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandFailed(
            f"the credential cannot be read: {type(error).__name__}", ExitCode.USAGE, _KEY_HINT
        ) from None
    if named.user is not None:
        raise CommandFailed(
            f"workers of Connect take no passwords, and {named.user.name} would log in with one",
            ExitCode.USAGE,
            f"`headrace login --user {named.user.name}` gets a key for that.",
        )
    if not is_loopback(f"{host}:{port}"):
        return None
    return read_local_keys(local_keys_directory(env)).get(
        f"127.0.0.1:{port}" if host == "localhost" else f"{host}:{port}"
    )


def _pod_token() -> Secret | None:
    """That of this pod's ServiceAccount, if it has one for the cluster; it is for TLS alone."""
    if not POD_TOKEN.exists():
        return None
    return _sendable(Secret(POD_TOKEN.read_text("ascii").strip()), str(POD_TOKEN))


def _sendable(key: Secret, where: str) -> Secret:
    text = key.reveal()
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise CommandFailed(f"{where} is no API key and no token", ExitCode.USAGE, _KEY_HINT)
    return key


class Workers:
    """Whichever worker answers at a URL; it asks the others."""

    def __init__(self, url: str | None = None, cluster: ClusterAddress | None = None) -> None:
        """
        Args:
            url: None: where ``find_url`` finds it.
            cluster: whose worker it is, which knows by what is shown who asks; None: nothing is shown.

        Raises:
            CommandFailed: it is no URL of HTTP; or what would be shown cannot be read, or would go to another machine
                in plain text.
        """
        from urllib.request import HTTPSHandler, ProxyHandler, build_opener  # most commands ask no worker

        url = find_url(Path()) if url is None else url
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
            raise CommandFailed(f"{url!r} is no URL of a worker", ExitCode.USAGE, f"Write it as {DEFAULT_URL}.")
        self._url = url.rstrip("/")
        self._shown = None if cluster is None else _shown(parts, cluster)
        # no proxy: workers are near, and a proxy of the environment may not know them
        secure = [HTTPSHandler(context=_trusting())] if parts.scheme == "https" else []
        self._opener = build_opener(ProxyHandler({}), *secure)

    def get(self, *path: str, **query: Any) -> Any:
        return self._ask("GET", path, query, None)

    def find(self, *path: str) -> Any:
        """The same; None where there is nothing."""
        try:
            return self.get(*path)
        except CommandFailed as failed:
            if failed.exit_code is ExitCode.NOT_FOUND:
                return None
            raise

    def post(self, *path: str, body: Any = None, **query: Any) -> Any:
        return self._ask("POST", path, query, body)

    def put(self, *path: str, body: Any = None) -> Any:
        return self._ask("PUT", path, {}, body)

    def patch(self, *path: str, body: Any) -> Any:
        return self._ask("PATCH", path, {}, body)

    def delete(self, *path: str) -> Any:
        return self._ask("DELETE", path, {}, None)

    def _ask(self, method: str, path: tuple[str, ...], query: Mapping[str, Any], body: Any) -> Any:
        """
        The answer's JSON; None: it has no body.

        Raises:
            CommandFailed: the worker says no, or nobody answers.
        """
        from http.client import HTTPException
        from urllib.error import HTTPError
        from urllib.request import Request

        url = "/".join([self._url, *(quote(part, safe="") for part in path)])
        asked = {name: value for name, value in query.items() if value is not None}
        url += f"?{urlencode(asked, doseq=True)}" if asked else ""
        data = None if body is None else json.dumps(body).encode()
        request = Request(url, data, {"Content-Type": "application/json"}, method=method)
        if self._shown is not None:  # to this host alone: a redirection may lead to another
            request.add_unredirected_header("Authorization", f"Bearer {self._shown.reveal()}")
        try:
            with self._opener.open(request, timeout=ANSWER_SECONDS) as answer:
                return self._read(answer.read(ANSWER_BYTES_MAX))
        except HTTPError as error:
            raise self._refused(error) from None
        except TimeoutError:
            hint = "What was asked may still happen; `headrace connect status` shows how it is."
            raise NotNow(f"{self._url} does not answer", ExitCode.TIMED_OUT, hint) from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            hint = "Is it running? --url URL or HEADRACE_CONNECT_URL names another."
            text = f"no worker can be reached at {self._url}: {reason}"
            raise NobodyThere(text, ExitCode.UNREACHABLE, hint) from None

    def _read(self, content: bytes) -> Any:
        if not content:
            return None
        try:
            return json.loads(content)
        except ValueError:
            raise CommandFailed(
                f"{self._url} does not answer as a worker does", ExitCode.FAILED, "Is it the URL of a Connect worker?"
            ) from None

    def _refused(self, error: HTTPError) -> CommandFailed:
        with error:
            content = error.read(1 << 20)
        try:
            said = json.loads(content)
            message = str(said.get("message") or said.get("detail") or error.reason)
        except (ValueError, AttributeError):
            message = f"{self._url} answers {error.code} {error.reason}"
        return refusal(error.code, message)
