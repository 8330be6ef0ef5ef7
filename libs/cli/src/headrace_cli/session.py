"""
What every command that speaks to a cluster knows: where it is, how to print, and clients on demand.

Which cluster: ``--bootstrap``, else ``--profile``, else what ``headrace.finding`` finds, as all clients do.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack

from headrace.finding import DATA_DIR, ClusterAddress, find_cluster
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.output import Output, show
from headrace_cli.terminal import visible
from headrace_common.core.errors import InvalidConfig, NetworkFailed
from headrace_common.core.ids import Endpoint

if TYPE_CHECKING:
    from headrace import AdminClient, Consumer, Producer
    from headrace.setting_types import AdminSettingsDict, ConsumerSettingsDict, ProducerSettingsDict

DEFAULT_DATA_DIR: Final = DATA_DIR
CONNECT_SECONDS: Final = 3.0
API_TIMEOUT_MS: Final = 30_000


@dataclass(frozen=True, slots=True)
class Session:
    """One run of a command."""

    cluster: ClusterAddress
    output: Output = Output.TABLE
    debug: bool = False

    @property
    def bootstrap(self) -> str:
        """Addresses, with commas."""
        return str(self.cluster)

    def show(self, data: Any, *columns: str, empty: str = "nothing there") -> None:
        """Print data the way ``-o`` asks."""
        show(data, self.output, columns, empty=empty)

    def show_rows(self, name: str, rows: Sequence[Any], *columns: str, empty: str = "nothing there") -> None:
        """Print rows: a table for people; for programs an object with them as its member ``name``, as REST answers."""
        self.show(rows if self.output is Output.TABLE else {name: rows}, *columns, empty=empty)

    def say(self, text: str) -> None:
        """A sentence for people; on stderr, so that stdout holds data alone."""
        sys.stderr.write(f"{visible(text)}\n")
        sys.stderr.flush()

    def report(self, done: Any, text: str) -> None:
        """What was done: a sentence for people, or data the way ``-o`` asks."""
        if self.output is Output.TABLE:
            self.say(text)
        else:
            self.show(done)

    def admin(self, **settings: Unpack[AdminSettingsDict]) -> AdminClient:
        from headrace import AdminClient

        check_reachable(self.cluster)
        settings.setdefault("default_api_timeout_ms", API_TIMEOUT_MS)
        return AdminClient(self.cluster, **settings)

    def producer(self, **settings: Unpack[ProducerSettingsDict]) -> Producer:
        from headrace import Producer

        check_reachable(self.cluster)
        return Producer(self.cluster, **settings)

    def consumer(self, *topics: str, **settings: Unpack[ConsumerSettingsDict]) -> Consumer:
        """A consumer without a group; close it."""
        from headrace import Consumer

        check_reachable(self.cluster)
        return Consumer(*topics, bootstrap_servers=self.cluster, **settings)


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
        InvalidConfig: an address is not host:port; the profile does not exist, or its file cannot be read.
        CommandFailed: the profile asks for an output that there is not.
    """
    cluster = find_cluster(bootstrap, profile, env, lambda: here)
    return Session(cluster, output if output is not None else _output(cluster.output), debug)


def open_session_anyway(
    bootstrap: str | None,
    profile: str | None,
    output: Output | None,
    debug: bool,
    env: Mapping[str, str],
    here: Path,
) -> Session:
    """
    The same; where no cluster can be found the session has no address, and says why when it is to ask it.

    Raises:
        InvalidConfig, CommandFailed: what was given on the line is wrong.
    """
    try:
        return open_session(bootstrap, profile, output, debug, env, here)
    except InvalidConfig as error:
        if bootstrap or profile:
            raise
        return Session(ClusterAddress((), str(error)), output or Output.TABLE, debug)


def check_reachable(cluster: ClusterAddress) -> None:
    """
    Say at once that nobody is there: clients are patient, a person at a terminal is not.

    Raises:
        NetworkFailed: no address takes connections; the text names each and what it said.
        InvalidConfig: no cluster could be found; the text says why.
    """
    if not cluster:
        raise InvalidConfig(cluster.source)
    said: list[str] = []
    for text in cluster:
        endpoint = Endpoint.parse(text)
        try:
            socket.create_connection((endpoint.host, endpoint.port), timeout=CONNECT_SECONDS).close()
        except OSError as error:
            said.append(f"{endpoint}: {error.strerror or error}")
        else:
            return
    raise NetworkFailed(f"no broker can be reached ({'; '.join(said)}); {cluster.source} named it")


def _output(text: str | None) -> Output:
    if text is None:
        return Output.TABLE
    if text not in set(Output):
        raise CommandFailed(f"the profile has output = {text!r}; it takes table, json or yaml", ExitCode.USAGE)
    return Output(text)
