"""
``python -m headrace_cli.user_secrets NAME=DAYS …``: have a Secret with an API key there for each user. For Kubernetes,
by a job of the chart that has the administrator's key.

The Secret ``PREFIX-NAME`` has ``api-key``, of ``User:NAME``; ``ca.crt``; and ``client.toml``, which names both for
``HEADRACE_CONFIG`` where the Secret is mounted at ``--mounted``. One that is there stays as it is, until less than a
third of its key's life is left: then it gets another key, and the old one still counts until its end. Who wants another
one at once deletes the Secret and runs this again, then takes the old key back (``headrace key list``).
"""

from __future__ import annotations

import argparse
import http
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace_common.core.errors import Busy, HeadraceError, NetworkFailed, RequestTimedOut
from headrace_common.runtime.kubernetes import ACCOUNT, ApiServer, ApiServerFailed, refusal

if TYPE_CHECKING:
    from headrace import AdminClient

RETRY_S: Final = 1.0
DAYS: Final = 365
LEFT_AT_LEAST: Final = 1 / 3
"""Of its life; a key with less of it is followed by another one."""
API_KEY, CA, CONFIG = "api-key", "ca.crt", "client.toml"
KEY_ID: Final = "headrace.io/key-id"
"""Annotation of a Secret: which key it has."""
EXPIRES: Final = "headrace.io/key-expires"
"""Annotation of a Secret: when that key ends, as ISO time; it is not there for one that does not."""
_INSTEAD: Final = "let the job's account create Secrets, and get and update those of users"


class UserSecrets:
    """What makes them. Blocks."""

    def __init__(self, server: ApiServer, given: argparse.Namespace, ca: str) -> None:
        """
        Args:
            ca: the CAs of the cluster, in PEM.
        """
        self._server = server
        self._given = given
        self._ca = ca

    def make(self, admin: AdminClient, user: str, days: int, now: datetime) -> str:
        """
        Have that of one user there, with a key that lasts; what became of it.

        Args:
            days: how long a key that is made counts; 0: for ever.

        Raises:
            ApiServerFailed: the API server cannot be asked now.
            ApiServerRefused: it does not let this account do that.
            HeadraceError: the cluster makes no key.
        """
        name = f"{self._given.prefix}-{user}"
        found = self._find(name)
        if found is not None:
            end = _end_of(found)
            if end is None:
                return "is there, and stays as it is"
            if end - now >= timedelta(days=days) * LEFT_AT_LEAST:
                return f"is there, with a key until {end:%Y-%m-%d}"
        lifetime = timedelta(days=days) if days else None
        made = admin.create_key(f"User:{user}", lifetime=lifetime, note=f"Secret {name} in {self._server.namespace}")
        key = made.description
        try:
            self._write(found, name, made.key.reveal(), key.id, key.expires_ms)
        except ApiServerFailed:
            # It may have been written all the same; a key that nobody has is worse than a Secret that is made again.
            if _annotations(self._find(name)).get(KEY_ID) != key.id:
                admin.delete_keys([key.id])
            raise
        except HeadraceError:
            admin.delete_keys([key.id])
            raise
        return "made" if found is None else "has another key; the one before counts until its end"

    def _find(self, name: str) -> Mapping[str, Any] | None:
        status, answer = self._server.ask("GET", f"{self._path}/{name}")
        if status in (http.HTTPStatus.OK, http.HTTPStatus.NOT_FOUND):
            return answer if status == http.HTTPStatus.OK else None
        raise refusal(f"tell of the Secret {name}", status, answer, _INSTEAD)

    def _write(self, found: Mapping[str, Any] | None, name: str, key: str, key_id: str, expires_ms: int | None) -> None:
        """One that was found keeps what is not of the key."""
        before = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque"} if found is None else found
        named = {"name": name, "labels": self._given.labels} if found is None else found["metadata"]
        annotations = {**_annotations(found), KEY_ID: key_id}
        if expires_ms is not None:
            annotations[EXPIRES] = datetime.fromtimestamp(expires_ms // 1_000, UTC).isoformat()
        secret = {
            **before,
            "metadata": {**named, "annotations": annotations},
            "stringData": {API_KEY: f"{key}\n", CA: self._ca, CONFIG: self._config()},
        }
        method, path = ("POST", self._path) if found is None else ("PUT", f"{self._path}/{name}")
        status, answer = self._server.ask(method, path, secret)
        if status not in (http.HTTPStatus.CREATED, http.HTTPStatus.OK):
            raise refusal(f"make the Secret {name}", status, answer, _INSTEAD)

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self._server.namespace}/secrets"

    def _config(self) -> str:
        at = self._given.mounted
        return (
            'profile = "default"\n\n[default]\n'
            f'bootstrap = "{self._given.bootstrap}"\nca = "{at}/{CA}"\napi_key_file = "{at}/{API_KEY}"\n'
        )


def _annotations(secret: Mapping[str, Any] | None) -> dict[str, str]:
    return {} if secret is None else dict(secret.get("metadata", {}).get("annotations") or {})


def _end_of(secret: Mapping[str, Any]) -> datetime | None:
    """None: its key does not end, or nobody here knows."""
    try:
        end = datetime.fromisoformat(_annotations(secret).get(EXPIRES, ""))
    except ValueError:
        return None
    return end if end.tzinfo else end.replace(tzinfo=UTC)


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments, or the end of the process with a usage text."""
    parser = argparse.ArgumentParser(prog="python -m headrace_cli.user_secrets", description=__doc__)
    parser.add_argument(
        "users", nargs="+", metavar="NAME=DAYS", help="how long a key counts; 0: for ever; without it a year"
    )
    parser.add_argument("--prefix", required=True, help="what the names of the Secrets begin with")
    parser.add_argument("--bootstrap", required=True, help="HOST:PORT that client.toml names")
    parser.add_argument("--ca", type=Path, required=True, help="file with the CAs of the cluster")
    parser.add_argument("--mounted", default="/etc/headrace/user", help="where pods mount their Secret")
    parser.add_argument("--timeout", type=float, default=240.0, help="how long to wait for the cluster, in seconds")
    parser.add_argument("--label", action="append", default=[], metavar="KEY=VALUE", help="of the Secrets; repeatable")
    given = parser.parse_args(argv)
    given.labels = dict(text.split("=", 1) for text in given.label)
    users = [text.partition("=") for text in given.users]
    if not all(days.isdecimal() or not sign for _, sign, days in users):
        parser.error("a user is NAME or NAME=DAYS")
    given.users = {name: int(days) if sign else DAYS for name, sign, days in users}
    return given


def run(
    given: argparse.Namespace,
    server: ApiServer,
    connect: Callable[[], AdminClient],
    sleep: Callable[[float], None],
    now: datetime,
) -> int:
    """Make all; a line of each, without its key. 1 if one could not be made in time."""
    secrets = UserSecrets(server, given, given.ca.read_text())
    left = max(1, int(given.timeout / RETRY_S))
    for user, days in given.users.items():
        while True:
            try:
                with connect() as admin:
                    said = secrets.make(admin, user, days, now)
                break
            except HeadraceError as error:
                left -= 1
                passes = error.retriable or isinstance(error, Busy | NetworkFailed | RequestTimedOut)
                if not passes or left <= 0:
                    sys.stderr.write(f"{user}: {error}\n")
                    return 1
                sleep(RETRY_S)
        sys.stdout.write(f"Secret {given.prefix}-{user}: {said}\n")
    return 0


def main(argv: Sequence[str], env: Mapping[str, str], account: Path = ACCOUNT) -> int:
    """Do it; the exit code."""
    from headrace import AdminClient

    return run(parse_arguments(argv), ApiServer.of_pod(env, account), AdminClient, time.sleep, datetime.now(UTC))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
