"""``headrace connect run``: one connector in this process, and what the command says of it meanwhile."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headrace_cli.commands.connect_plugins import check_installed, kind_of
from headrace_cli.connector_file import File, read_configured
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.session import Session, check_reachable

if TYPE_CHECKING:
    from headrace_connect.runtime.configuring import Configured

_TOPICS_MAX: Final = 5


def run(
    session: Session,
    file: File,
    *,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End when everything that is there now is committed")
    ] = False,
    group_id: Annotated[
        str, typer.Option(metavar="NAME", help="The Connect cluster: two runs of one connector in it fence each other")
    ] = "connect-cluster",
) -> None:
    """
    Run a connector in this process until Ctrl+C or SIGTERM; then it commits what it has read.

    A second Ctrl+C ends it at once, with 130; the next run does again what was not committed.

    A source goes on where its last run, on any machine, has committed. Tasks that fail because something outside is
    away are started again; where the connector or its configuration is wrong, the command ends.
    """
    check_installed()
    from headrace_connect.runtime import main
    from headrace_connect.runtime.config import RunConfig
    from headrace_connect.runtime.failing import TaskFailed
    from headrace_connect.runtime.running import Heard

    configured = read_configured(file)
    _check_group_id(group_id)
    check_reachable(session.cluster)
    saying = Saying(session, configured, until_idle=until_idle)
    heard = Heard(saying.tasks, saying.topic)
    try:
        main.run(configured, RunConfig(session.cluster, group_id), heard, until_idle=until_idle)
    except TaskFailed as failed:
        hint = "Nothing is lost: what was committed stays, and the next run goes on behind it."
        raise CommandFailed(f"{configured.config.name} has failed: {failed}", ExitCode.FAILED, hint) from None


class Saying:
    """Says what runs, and where to look for what it does."""

    def __init__(self, session: Session, configured: Configured, *, until_idle: bool) -> None:
        self._say = session.say
        self._configured = configured
        self._until = "until what is there now is committed" if until_idle else "until Ctrl+C"
        self._tasks: int | None = None
        self._topics: set[str] = set()

    def tasks(self, count: int) -> None:
        """So many run now; said again when there are more or fewer."""
        if count == self._tasks:
            return
        self._tasks = count
        from headrace_connect.core.names import group_of

        config = self._configured.config
        runs = f"{config.name} runs {self._until}: {config.connector_class}, {count} task{'s' * (count != 1)}"
        if kind_of(self._configured.plugin) == "sink":
            group = shlex.quote(group_of(config.name))
            self._say(f"{runs}; `headrace group describe {group}` shows how far it is")
        elif count:
            self._say(runs)
        else:
            self._say(f"{config.name} has found nothing to read yet; it looks again, {self._until}")

    def topic(self, name: str) -> None:
        """Records are written to it; of sinks: read from it."""
        if kind_of(self._configured.plugin) == "sink" or name in self._topics or len(self._topics) > _TOPICS_MAX:
            return
        self._topics.add(name)
        writes = f"{self._configured.config.name} writes {name}"
        if len(self._topics) > _TOPICS_MAX:
            self._say(f"{writes}, and maybe more: `headrace topic list` shows them")
        else:
            self._say(f"{writes}; `headrace consume {name} --from beginning` shows it")


def _check_group_id(group_id: str) -> None:
    from headrace_common.core.ids import in_ids
    from headrace_connect.core.names import CLUSTER_BYTES_MAX

    size = len(in_ids(group_id))
    if not 1 <= size <= CLUSTER_BYTES_MAX:
        raise CommandFailed(
            f"--group-id has 1 to {CLUSTER_BYTES_MAX} bytes as it stands in ids, percent-encoded, not {size}",
            ExitCode.USAGE,
        )
