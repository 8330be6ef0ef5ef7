"""
``python -m headrace_cli.user_secrets NAME …``: have a Secret with an API key there for each user. For Kubernetes, by a
job of the chart that has the administrator's key.

The Secret ``PREFIX-NAME`` has ``api-key``, of ``User:NAME``; ``ca.crt``; and ``client.toml``, which names both for
``HEADRACE_CONFIG`` where the Secret is mounted at ``--mounted``. One that is there stays as it is: who wants another
key deletes the Secret and runs this again, then takes the old key back (``headrace key list``).
"""

from __future__ import annotations

import argparse
import http
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace_common.core.errors import Busy, HeadraceError, NetworkFailed, RequestTimedOut
from headrace_common.runtime.kubernetes import ACCOUNT, ApiServer, ApiServerFailed, refusal

if TYPE_CHECKING:
    from headrace import AdminClient

RETRY_S: Final = 1.0
API_KEY, CA, CONFIG = "api-key", "ca.crt", "client.toml"
_INSTEAD: Final = "let the job's account get the Secrets of users and create Secrets"


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

    def make(self, admin: AdminClient, user: str) -> bool:
        """
        Have that of one user there; whether it was made.

        Raises:
            ApiServerFailed: the API server cannot be asked now.
            ApiServerRefused: it does not let this account do that.
            HeadraceError: the cluster makes no key.
        """
        name = f"{self._given.prefix}-{user}"
        if self._is_there(name):
            return False
        made = admin.create_key(f"User:{user}", lifetime=None, note=f"Secret {name} in {self._server.namespace}")
        try:
            self._create(name, made.key.reveal())
        except ApiServerFailed:
            # It may have been made all the same; a key that nobody has is worse than a Secret that is made again.
            if not self._is_there(name):
                admin.delete_keys([made.description.id])
            raise
        except HeadraceError:
            admin.delete_keys([made.description.id])
            raise
        return True

    def _is_there(self, name: str) -> bool:
        status, answer = self._server.ask("GET", f"/api/v1/namespaces/{self._server.namespace}/secrets/{name}")
        if status in (http.HTTPStatus.OK, http.HTTPStatus.NOT_FOUND):
            return status == http.HTTPStatus.OK
        raise refusal(f"tell of the Secret {name}", status, answer, _INSTEAD)

    def _create(self, name: str, key: str) -> None:
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "metadata": {"name": name, "labels": self._given.labels},
            "stringData": {API_KEY: f"{key}\n", CA: self._ca, CONFIG: self._config()},
        }
        status, answer = self._server.ask("POST", f"/api/v1/namespaces/{self._server.namespace}/secrets", secret)
        if status != http.HTTPStatus.CREATED:
            raise refusal(f"make the Secret {name}", status, answer, _INSTEAD)

    def _config(self) -> str:
        at = self._given.mounted
        return (
            'profile = "default"\n\n[default]\n'
            f'bootstrap = "{self._given.bootstrap}"\nca = "{at}/{CA}"\napi_key_file = "{at}/{API_KEY}"\n'
        )


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments, or the end of the process with a usage text."""
    parser = argparse.ArgumentParser(prog="python -m headrace_cli.user_secrets", description=__doc__)
    parser.add_argument("users", nargs="+", metavar="NAME")
    parser.add_argument("--prefix", required=True, help="what the names of the Secrets begin with")
    parser.add_argument("--bootstrap", required=True, help="HOST:PORT that client.toml names")
    parser.add_argument("--ca", type=Path, required=True, help="file with the CAs of the cluster")
    parser.add_argument("--mounted", default="/etc/headrace/user", help="where pods mount their Secret")
    parser.add_argument("--timeout", type=float, default=240.0, help="how long to wait for the cluster, in seconds")
    parser.add_argument("--label", action="append", default=[], metavar="KEY=VALUE", help="of the Secrets; repeatable")
    given = parser.parse_args(argv)
    given.labels = dict(text.split("=", 1) for text in given.label)
    return given


def run(
    given: argparse.Namespace, server: ApiServer, connect: Callable[[], AdminClient], sleep: Callable[[float], None]
) -> int:
    """Make all; a line of each, without its key. 1 if one could not be made in time."""
    secrets = UserSecrets(server, given, given.ca.read_text())
    left = max(1, int(given.timeout / RETRY_S))
    for user in given.users:
        while True:
            try:
                with connect() as admin:
                    made = secrets.make(admin, user)
                break
            except HeadraceError as error:
                left -= 1
                passes = error.retriable or isinstance(error, Busy | NetworkFailed | RequestTimedOut)
                if not passes or left <= 0:
                    sys.stderr.write(f"{user}: {error}\n")
                    return 1
                sleep(RETRY_S)
        sys.stdout.write(f"Secret {given.prefix}-{user}: {'made' if made else 'is there, and stays as it is'}\n")
    return 0


def main(argv: Sequence[str], env: Mapping[str, str], account: Path = ACCOUNT) -> int:
    """Do it; the exit code."""
    from headrace import AdminClient

    return run(parse_arguments(argv), ApiServer.of_pod(env, account), AdminClient, time.sleep)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
