"""
What every command that speaks to a cluster knows: where it is, how to print, and clients on demand.

Which cluster: ``--bootstrap``, else ``--profile``, else ``HEADRACE_BOOTSTRAP``, else ``HEADRACE_PROFILE``, else the
local cluster of ``./.headrace``, else ``127.0.0.1:9292``. Profiles are sections of ``config.toml`` in the user's
config directory::

    [staging]
    bootstrap = "b1.example.com:9292,b2.example.com:9292"
    output = "json"
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.output import Output, show
from headrace_common.core.errors import InvalidConfig, NetworkFailed
from headrace_common.core.ids import Endpoint

if TYPE_CHECKING:
    from headrace import AdminClient, Consumer, Producer
    from headrace_cli.admin_calls import AdminCalls

DEFAULT_DATA_DIR: Final = ".headrace"
DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9292"
CONNECT_SECONDS: Final = 3.0
API_TIMEOUT_MS: Final = 30_000


@dataclass(frozen=True, slots=True)
class Session:
    """One run of a command."""

    bootstrap: str
    """Addresses, with commas."""
    output: Output = Output.TABLE
    debug: bool = False

    def show(self, data: Any, *columns: str, empty: str = "nothing there") -> None:
        """Print data the way ``-o`` asks."""
        show(data, self.output, columns, empty=empty)

    def say(self, text: str) -> None:
        """A sentence for people; on stderr, so that stdout holds data alone."""
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def admin(self, **settings: Any) -> AdminClient:
        """An admin client; close it."""
        from headrace import AdminClient

        check_reachable(self.bootstrap)
        return AdminClient(self.bootstrap, **({"default_api_timeout_ms": API_TIMEOUT_MS} | settings))

    def calls(self) -> AdminCalls:
        """Calls of the admin service that ``admin()`` does not have; close them."""
        from headrace_cli.admin_calls import AdminCalls

        check_reachable(self.bootstrap)
        return AdminCalls(self.bootstrap)

    def producer(self, **settings: Any) -> Producer:
        """A producer; close it."""
        from headrace import Producer

        check_reachable(self.bootstrap)
        return Producer(self.bootstrap, **settings)

    def consumer(self, *topics: str, **settings: Any) -> Consumer:
        """A consumer without a group; close it."""
        from headrace import Consumer

        check_reachable(self.bootstrap)
        return Consumer(*topics, bootstrap_servers=self.bootstrap, **settings)


def open_session(
    bootstrap: str | None,
    profile: str | None,
    output: Output | None,
    debug: bool,
    env: Mapping[str, str],
    here: Path,
) -> Session:
    """
    Decide which cluster is meant.

    Raises:
        CommandFailed: the profile does not exist, or its file cannot be read.
    """
    named = profile or (None if bootstrap or env.get("HEADRACE_BOOTSTRAP") else env.get("HEADRACE_PROFILE"))
    section = read_profile(named, config_file(env)) if named else {}
    servers = (
        bootstrap
        or section.get("bootstrap")
        or env.get("HEADRACE_BOOTSTRAP")
        or local_bootstrap(here / DEFAULT_DATA_DIR)
        or DEFAULT_BOOTSTRAP
    )
    wanted = output if output is not None else _output(section.get("output"), named)
    return Session(servers, wanted, debug)


def check_reachable(bootstrap: str) -> None:
    """
    Say at once that nobody is there: clients are patient, a person at a terminal is not.

    Raises:
        NetworkFailed: no address takes connections; the text names each and what it said.
        InvalidConfig: an address is not host:port.
    """
    said: list[str] = []
    for text in bootstrap.split(","):
        try:
            endpoint = Endpoint.parse(text)
        except ValueError as error:
            raise InvalidConfig(str(error)) from None
        try:
            socket.create_connection((endpoint.host, endpoint.port), timeout=CONNECT_SECONDS).close()
        except OSError as error:
            said.append(f"{endpoint}: {error.strerror or error}")
        else:
            return
    raise NetworkFailed(f"no broker can be reached ({'; '.join(said)})")


def config_file(env: Mapping[str, str]) -> Path:
    """Where profiles are."""
    base = env.get("XDG_CONFIG_HOME") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".config")
    return Path(base) / "headrace" / "config.toml"


def read_profile(name: str, path: Path) -> dict[str, str]:
    """Raises: CommandFailed when there is no such profile, with those there are."""
    import tomllib

    try:
        sections = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise CommandFailed(
            f"there is no profile {name!r}, and no {path}",
            ExitCode.USAGE,
            f'Write "[{name}]" and "bootstrap = \\"HOST:PORT\\"" into that file.',
        ) from None
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise CommandFailed(f"{path} cannot be read: {error}", ExitCode.USAGE, "Mend the file.") from None
    section = sections.get(name)
    if not isinstance(section, dict):
        there = ", ".join(sorted(n for n, s in sections.items() if isinstance(s, dict))) or "none"
        raise CommandFailed(f"there is no profile {name!r} in {path}; there are: {there}", ExitCode.USAGE)
    unknown = sorted(section.keys() - {"bootstrap", "output"})
    if unknown or not all(isinstance(value, str) for value in section.values()):
        raise CommandFailed(
            f"profile {name!r} in {path} may have bootstrap and output, both texts",
            ExitCode.USAGE,
            f"Look at {', '.join(unknown) or 'their values'}.",
        )
    return section


def local_bootstrap(data_dir: Path) -> str | None:
    """The brokers of the local cluster that was last started in this directory."""
    try:
        servers = json.loads((data_dir / "cluster.json").read_text())["bootstrap_servers"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return ",".join(servers) or None


def _output(text: str | None, profile: str | None) -> Output:
    if text is None:
        return Output.TABLE
    if text not in set(Output):
        raise CommandFailed(f"profile {profile!r} has output = {text!r}; it takes table, json or yaml", ExitCode.USAGE)
    return Output(text)
