"""``headrace apply``: topics and settings as a file wants them, for installers and pipelines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace_cli.commanding import command, read_text
from headrace_cli.commands.partition import DryRun
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.output import Output, format_count
from headrace_cli.session import API_TIMEOUT_MS, Session
from headrace_cli.wanted import Change, Wanted, cluster_changes, list_unmet, parse, topic_changes
from headrace_cli.wanted_access import missing_access, say
from headrace_cli.wanted_quotas import differing_quotas
from headrace_common.core.errors import HeadraceError, NetworkFailed, RequestTimedOut, TopicAlreadyExists

if TYPE_CHECKING:
    from headrace import AdminClient
    from headrace.admin_types import TopicDescription
    from headrace_common.core.access.changes import Item

RETRY_SECONDS: Final = 1.0
TELL_SECONDS: Final = 10.0


def register(app: typer.Typer) -> None:
    """Add the command to ``headrace``."""
    command(app)(apply)


def apply(
    session: Session,
    *,
    file: Annotated[str, typer.Option("--file", "-f", metavar="FILE", help="YAML or JSON; - for standard input")],
    brokers: Annotated[int, typer.Option(min=1, help="First wait until so many brokers are up")] = 1,
    timeout: Annotated[float, typer.Option(min=1, help="How long to wait for the cluster, in seconds")] = 60,
    dry_run: DryRun = False,
) -> None:
    """
    Create the topics that are missing, add partitions, set what a file says, and give its roles, rules and quotas.

    Nothing is deleted, taken away or made smaller. Given again it changes what differs. What the file does not name
    stays as it is.
    """
    wanted = parse(read_text(file, "YAML or JSON"), "standard input" if file == "-" else file)
    end = time.monotonic() + timeout
    waiting = _Waiting(session)
    while True:
        try:
            with session.admin(default_api_timeout_ms=_patience_ms(end)) as admin:
                _check_brokers(admin, brokers)
                done, notes = _bring(admin, wanted, dry_run=dry_run)
            break
        except HeadraceError as error:
            if not _passes(error):
                raise
            if time.monotonic() + RETRY_SECONDS >= end:
                raise _too_late(error, timeout) from error
            waiting.tell(error)
            time.sleep(RETRY_SECONDS)
    _report(session, done, notes, dry_run=dry_run)


class _NotYet(CommandFailed):
    """The cluster is still starting."""


class _Waiting:
    """Says on stderr now and then what is waited for."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._told: float | None = None

    def tell(self, error: HeadraceError) -> None:
        now = time.monotonic()
        if self._told is None or now - self._told >= TELL_SECONDS:
            self._session.say(f"waiting: {error}")
            self._told = now


def _patience_ms(end: float) -> int:
    return max(1_000, min(API_TIMEOUT_MS, int((end - time.monotonic()) * 1_000)))


def _passes(error: HeadraceError) -> bool:
    """May the same be well in a moment? All that is done here can be done again."""
    return error.retriable or isinstance(error, _NotYet | NetworkFailed | RequestTimedOut | TopicAlreadyExists)


def _too_late(error: HeadraceError, timeout: float) -> CommandFailed:
    code = ExitCode.UNREACHABLE if isinstance(error, NetworkFailed) else ExitCode.TIMED_OUT
    return CommandFailed(
        f"not done after {timeout:.0f} s: {error}", code, "Give the command again; what is done stays done."
    )


def _check_brokers(admin: AdminClient, wanted: int) -> None:
    """Topics are made with as many replicas as there are brokers, so these must be there first."""
    up = sum(not broker.fenced for broker in admin.list_brokers())
    if up < wanted:
        raise _NotYet(f"{format_count(up, 'broker')} up, {wanted} wanted")


def _bring(admin: AdminClient, wanted: Wanted, *, dry_run: bool) -> tuple[list[Change], list[str]]:
    """Settings first: topics are created with their defaults."""
    done: list[Change] = []
    notes: list[str] = []
    for change in cluster_changes(wanted, admin.describe_configs()) if wanted.cluster_configs else []:
        admin.alter_configs(change.configs, validate_only=dry_run)
        done.append(change)
    there = {topic.name for topic in admin.list_topics(include_internal=True)}
    for topic in wanted.topics:
        present = admin.describe_topic(topic.name) if topic.name in there else None
        for change in topic_changes(topic, present):
            notes += [f"{topic.name}: {note}" for note in _carry_out(admin, change, dry_run=dry_run)]
            done.append(change)
        notes += [] if present is None else list_unmet(topic, present)
    if wanted.access:
        missing = missing_access(wanted.access, admin.describe_access())
        _give(admin, missing, dry_run=dry_run)
        done += [Change("give access", None, {}, access=item) for item in missing]
    quotas = differing_quotas(wanted.quotas, admin.describe_quotas()) if wanted.quotas else {}
    if quotas:
        admin.alter_quotas(quotas, validate_only=dry_run)
    for entity, limits in quotas.items():
        done.append(Change("set quotas", None, {name: str(value) for name, value in limits.items()}, entity=entity))
    return done, notes


def _give(admin: AdminClient, missing: list[Item], *, dry_run: bool) -> None:
    from headrace import access
    from headrace_common.core.access.changes import BATCH_MAX

    for begin in range(0, len(missing), BATCH_MAX):
        admin.alter_access(map(access.Put, missing[begin : begin + BATCH_MAX]), validate_only=dry_run)


def _carry_out(admin: AdminClient, change: Change, *, dry_run: bool) -> tuple[str, ...]:
    topic = change.topic
    assert topic is not None, "a change of a topic"
    made: TopicDescription
    match change.kind:
        case "create topic":
            configs = {name: value for name, value in change.configs.items() if value is not None}
            made = admin.create_topic(
                topic.name, topic.partitions, topic.replication_factor, configs, validate_only=dry_run
            )
            return made.notes
        case "add partitions":
            assert change.total is not None, "a number of partitions is wanted"
            admin.add_partitions(topic.name, change.total, validate_only=dry_run)
        case _:
            admin.alter_configs(change.configs, topic=topic.name, validate_only=dry_run)
    return ()


def _report(session: Session, done: list[Change], notes: list[str], *, dry_run: bool) -> None:
    for note in notes:
        session.say(f"note: {note}")
    if session.output is not Output.TABLE:
        session.show({"changes": [change.as_row() for change in done]})
        return
    for line in _lines(done):
        session.say(f"would {line}" if dry_run else line)
    if not done:
        session.say("nothing to change: all is as the file wants it")


def _lines(done: list[Change]) -> Iterator[str]:
    for change in done:
        about: list[Any] = [] if change.access is None else [say(change.access)]
        about += [named for named in (change.entity, change.topic and change.topic.name) if named]
        about += [] if change.total is None else [format_count(change.total, "partition")]
        about += [f"{name}={'(default)' if value is None else value}" for name, value in change.configs.items()]
        yield f"{change.kind}: {', '.join(about)}"
