"""``headrace access since-backup``: what a restore of the metadata has brought back, by the audit."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_cli.commands.audit import Files, Source
from headrace_cli.commands.starts import Since
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.output import Output, format_count
from headrace_cli.session import Session

if TYPE_CHECKING:
    from headrace import AdminClient
    from headrace_common.core.audit.since_backup import Known, SinceBackup

_COLUMNS = ("what", "name", "time", "by", "command")


def since_backup(
    session: Session,
    files: Files = None,
    *,
    keep_blocked: Annotated[
        bool, typer.Option("--keep-blocked", help="Block again who was blocked after the backup")
    ] = False,
) -> None:
    """
    Say what a restore of the metadata has brought back, by the audit. Ends with 1 while somebody may do more than
    before.
    """
    from headrace import access
    from headrace_common.core.access.changes import BATCH_MAX
    from headrace_common.core.audit.since_backup import SKEW_MS, find_since_backup

    with session.admin() as admin:
        last = admin.describe_restore()
        if last is None:
            session.say("the metadata was never restored from a backup")
            if session.output is not Output.TABLE:
                session.show({"restore": None})
            return
        source = Source(session, files)
        lines = source.read(Since(last.backup_time_ms - SKEW_MS))
        events = list(map(json.loads, lines))
        times = (last.backup_time_ms, last.restore_time_ms)
        found = find_since_backup(events, _known(admin), *times)
        kept = found.to_block if keep_blocked else []
        for begin in range(0, len(kept), BATCH_MAX):
            admin.alter_access([access.Put(access.block(one)) for one in kept[begin : begin + BATCH_MAX]])
        if kept:
            found = find_since_backup(events, _known(admin), *times)
    lacks = source.lacks(last.backup_time_ms)
    _tell(session, found, kept, times, lacks=lacks)
    if found.lets_in:
        raise CommandFailed(
            "somebody may do more than before the metadata was lost",
            ExitCode.FAILED,
            "" if not found.to_block else "--keep-blocked blocks again who was blocked.",
        )


def _known(admin: AdminClient) -> Known:
    from headrace_common.core.audit.since_backup import Known

    described = admin.describe_access()
    keys = frozenset(key.id for key in admin.list_keys())
    users = {user.name: (user.created_ms, user.password_set_ms) for user in admin.list_users()}
    return Known(described.mode, frozenset(described.blocked), keys, users)


def _tell(session: Session, found: SinceBackup, kept: list[str], times: tuple[int, int], *, lacks: bool) -> None:
    rows: list[dict[str, Any]] = [
        {
            "what": one.found.value,
            "name": one.name,
            "time": _utc(one.time_ms),
            "by": one.by,
            "command": one.command or None,
        }
        for one in found.findings
    ]
    until = None if found.known_until_ms is None else _utc(found.known_until_ms)
    if session.output is not Output.TABLE:
        backup, restore = map(_utc, times)
        facts = {"backup": backup, "restore": restore, "audit_until": until, "audit_lacks_events": lacks}
        session.show({**facts, "changed": found.changed, "blocked_again": kept, "findings": rows})
        return
    if rows:
        session.show(rows, *_COLUMNS)
    for one in kept:
        session.say(f"{one} is blocked again")
    session.say(
        f"between the backup of {_utc(times[0])} and the restore of {_utc(times[1])}: "
        f"{format_count(found.changed, 'thing')} changed, and {len(rows)} to look at now"
    )
    if until is None:
        session.say("THE AUDIT KNOWS NOTHING of that time: no controller wrote one. Look at keys and blocks yourself")
    else:
        session.say(f"the audit knows of changes until {until}; what was changed later nobody can tell")
    if lacks:
        session.say("its oldest events of that time were deleted: there may have been more")


def _utc(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1_000, UTC).isoformat(timespec="seconds")
