"""``headrace access``: who may do what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace_cli.commanding import command
from headrace_cli.commands.since_backup import since_backup
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.output import Output
from headrace_cli.session import Session

if TYPE_CHECKING:
    from headrace.access import Change
    from headrace.admin_access_types import (
        AccessChanged,
        HolderInfo,
        ObservedAccess,
        RuleInfo,
        SeenRefusal,
        SeenStranger,
        SeenTimes,
    )
    from headrace_common.core.access.changes import Item

HELP = "Who may do what: rules, roles, blocks, and how closed the cluster is"

Who = Annotated[str, typer.Argument(metavar="PRINCIPAL", help="User:alice, Group:staff, or User:* for all users")]
Operations = Annotated[str, typer.Argument(metavar="OPERATIONS", help="read,write,...; all")]
Type = Annotated[
    str, typer.Argument(metavar="TYPE", help="topic, group, transactional_id, cluster, principal or connector")
]
Name = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="A name, or '*' for all; of cluster it may be left out")
]
Prefix = Annotated[str | None, typer.Option("--prefix", metavar="NAME", help="All names that begin so")]
Host = Annotated[str | None, typer.Option("--host", metavar="ADDRESS", help="Only calls from this IP address")]
Within = Annotated[
    int | None,
    typer.Option("--within", metavar="MINUTES", min=1, max=1_440, help="Look so far back instead of a day"),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Only say who would gain and lose what, and what of the last day would be refused"),
]
RoleName = Annotated[str, typer.Argument(metavar="ROLE", help="superuser, operator, security, auditor, developer, ...")]
On = Annotated[
    list[str] | None, typer.Option("--on", metavar="TYPE=PATTERN", help="On these resources, as topic=orders*")
]
ForRole = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="What built-in roles cover: a prefix, an app, a Connect cluster")
]
_ALL_NEEDED: Final = "every rule was needed; of roles that are bound this tells nothing"


def register(app: typer.Typer) -> None:
    """Add the commands to ``headrace access``."""
    changes = (allow, deny, remove, bind, unbind, role, block, unblock)
    for function in (show, *changes, check, who_can, why, mode, report, observed, since_backup):
        command(app)(function)


def show(
    session: Session,
    principal: Annotated[
        str | None, typer.Argument(metavar="[PRINCIPAL]", help="Only what is said of this one")
    ] = None,
) -> None:
    """Show the mode, rules, roles that are bound, and who is blocked."""
    with session.admin() as admin:
        found = admin.describe_access(principal)
    if session.output is not Output.TABLE:
        session.show(_json(found.wire))
        return
    session.say(f"mode {found.mode}, generation {found.generation}")
    rules = [_rule_row(rule) for rule in found.rules]
    bindings = [
        {
            "principal": bound.principal,
            "says": "role",
            "operations": bound.role,
            "type": ",".join(sorted({target.type for target in bound.targets})) or "all",
            "pattern": ",".join(sorted({target.pattern for target in bound.targets})) or "*",
            "host": "any",
        }
        for bound in found.bindings
    ]
    session.show(
        [*rules, *bindings],
        empty="no rules that you may see; without one, super users alone may do anything in a closed cluster",
    )
    for what, names in (("super users", found.super_users), ("blocked", found.blocked), ("unreadable", found.faults)):
        if names:
            session.say(f"{what}: {', '.join(names)}")


def allow(
    session: Session,
    principal: Who,
    operations: Operations,
    type: Type,
    name: Name = None,
    *,
    prefix: Prefix = None,
    host: Host = None,
    dry_run: DryRun = False,
) -> None:
    """Allow somebody some operations on some resources."""
    from headrace import access

    _change(session, [access.Put(_rule("allow", principal, operations, type, name, prefix, host))], dry_run=dry_run)


def deny(
    session: Session,
    principal: Who,
    operations: Operations,
    type: Type,
    name: Name = None,
    *,
    prefix: Prefix = None,
    host: Host = None,
    dry_run: DryRun = False,
) -> None:
    """Deny somebody some operations, whatever else allows them."""
    from headrace import access

    _change(session, [access.Put(_rule("deny", principal, operations, type, name, prefix, host))], dry_run=dry_run)


def remove(
    session: Session,
    effect: Annotated[str, typer.Argument(metavar="allow|deny", help="Which rule")],
    principal: Who,
    operations: Operations,
    type: Type,
    name: Name = None,
    *,
    prefix: Prefix = None,
    host: Host = None,
    dry_run: DryRun = False,
) -> None:
    """Remove a rule, given exactly as it was made."""
    from headrace import access

    _change(session, [access.Remove(_rule(effect, principal, operations, type, name, prefix, host))], dry_run=dry_run)


def bind(
    session: Session, principal: Who, role: RoleName, name: ForRole = None, on: On = None, dry_run: DryRun = False
) -> None:
    """Give somebody a role."""
    from headrace import access

    _change(session, [access.Put(access.bind(principal, role, name, on=_targets(on)))], dry_run=dry_run)


def unbind(
    session: Session, principal: Who, role: RoleName, name: ForRole = None, on: On = None, dry_run: DryRun = False
) -> None:
    """Take a role from somebody, given exactly as it was bound."""
    from headrace import access

    _change(session, [access.Remove(access.bind(principal, role, name, on=_targets(on)))], dry_run=dry_run)


def role(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The role, which is one of your own")],
    gives: Annotated[
        list[str] | None, typer.Option("--gives", metavar="TYPE=OPERATIONS", help="As topic=read,describe; repeatable")
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete it instead")] = False,
    cascade: Annotated[bool, typer.Option("--cascade", help="With --delete: take it from all who have it")] = False,
    dry_run: DryRun = False,
) -> None:
    """Make a role of your own, change what it gives, or delete it."""
    from headrace import access

    if delete == bool(gives) or (cascade and not delete):
        raise typer.BadParameter("give --gives TYPE=OPERATIONS, or --delete (with --cascade or without)")
    if delete:
        anything = access.role(name, {"topic": ["all"]})  # of a role that is deleted the name counts
        _change(session, [access.Remove(anything, cascade=cascade)], dry_run=dry_run)
        return
    operations = {type: words.split(",") for type, words in _pairs(gives, "--gives TYPE=OPERATIONS")}
    _change(session, [access.Put(access.role(name, operations))], dry_run=dry_run)


def block(session: Session, principal: Who, dry_run: DryRun = False) -> None:
    """Let somebody do nothing any more, at once; connections that are open are cut off."""
    from headrace import access

    _change(session, [access.Put(access.block(principal))], dry_run=dry_run)


def unblock(session: Session, principal: Who, dry_run: DryRun = False) -> None:
    """Take a block back."""
    from headrace import access

    _change(session, [access.Remove(access.block(principal))], dry_run=dry_run)


def check(
    session: Session,
    principal: Who,
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help="One, such as read")],
    type: Type,
    name: Name = None,
    host: Host = None,
) -> None:
    """Say whether somebody may do something, why, and what would allow it. Ends with 1 where it may not."""
    with session.admin() as admin:
        found = admin.explain_access(principal, operation, type, name or "", host=host)
    if session.output is not Output.TABLE:
        session.show(_json(found.wire))
    else:
        session.say(f"{principal} may{'' if found.allowed else ' not'}: {found.reason}")
        for source in found.sources:
            session.say(f"  {source}")
        if found.remedy:
            session.say(f"to allow it: {found.remedy}")
    if not found.allowed:
        raise typer.Exit(ExitCode.FAILED)


def who_can(
    session: Session,
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help="One, such as read")],
    type: Type,
    name: Name = None,
) -> None:
    """Show who may do something: principals, groups, and everyone of a type; and who would but for a block or deny."""
    with session.admin() as admin:
        found = admin.who_can(operation, type, name or "")
    if session.output is not Output.TABLE:
        session.show(_json(found.wire))
        return
    session.show([_holder_row(one) for one in found.holders], empty="nobody whom you may know of")
    if found.more:
        session.say("and more")


def why(
    session: Session,
    id: Annotated[str, typer.Argument(metavar="ID", help="As the text of the refusal has it")],
) -> None:
    """Say of a refusal, by the id in its text, what was refused to whom, where, when, why, and what would allow it."""
    with session.admin() as admin:
        found = admin.why_refused(id)
    if session.output is not Output.TABLE:
        session.show(_json(found.wire))
        return
    for one in found.refusals:
        groups = f", of {', '.join(one.groups)}," if one.groups else ""
        what = f"{one.operation} {one.type} {one.name}"
        session.say(f"{one.principal}{groups} from {one.host or 'somewhere'} may not {what}: {one.reason}")
        session.say(
            f"  at {one.node}, {_time(one.seen.last_ms)}; {one.seen.count} times since {_time(one.seen.first_ms)}"
        )
        for source in one.sources:
            session.say(f"  {source}")
        if one.narrowed:
            session.say("  its key is for some things only")
        if one.allowed:
            session.say("meanwhile rules allow it")
        elif one.remedy:
            session.say(f"to allow it: {one.remedy}")
    for node in found.nodes:
        if node.fault is not None:
            session.say(f"{node.node} cannot be asked: {node.fault}")


def _holder_row(one: HolderInfo) -> dict[str, Any]:
    return {
        "principal": one.principal,
        "may": {"super_user": "yes, super user", "allowed": "yes"}.get(one.reason, f"no, {one.reason}"),
        "from": _places(one.anywhere, one.hosts),
        "by": "; ".join(one.sources) or "-",
    }


def _places(anywhere: bool, hosts: Sequence[str]) -> str:
    names = ", ".join(hosts)
    if not anywhere:
        return names
    return f"anywhere but {names}" if names else "anywhere"


def mode(
    session: Session,
    wanted: Annotated[
        str | None, typer.Argument(metavar="[permissive|closed]", help="The mode from now on; it never falls")
    ] = None,
    dry_run: DryRun = False,
    accept_loss_of: Annotated[
        list[str] | None,
        typer.Option("--accept-loss-of", metavar="NAME", help="A principal or address that may be refused; repeatable"),
    ] = None,
    accept_loss: Annotated[bool, typer.Option("--accept-loss", help="Whoever it is may be refused")] = False,
    within: Within = None,
) -> None:
    """Show how closed the cluster is, or close it, where nobody is cut off by that who was seen lately."""
    if wanted is None:
        with session.admin() as admin:
            found = admin.describe_access()
        session.show({"mode": found.mode, "generation": found.generation})
        return
    losing = {"within": _minutes(within), "accept_loss_of": accept_loss_of or (), "accept_loss": accept_loss}
    _change(session, [], dry_run=dry_run, mode=wanted, **losing)


def report(session: Session, within: Within = None) -> None:
    """Say who comes without a credential, and what a closed cluster would refuse. Ends with 1 where there is some."""
    with session.admin() as admin:
        found = admin.observed_access(within=_minutes(within))
    if session.output is not Output.TABLE:
        session.show(_json(found.wire))
    else:
        _say_looked(session, found)
        session.show(
            [*map(_stranger, found.strangers), *map(_refusal, found.refusals)],
            empty="nobody came without a credential or a right, of those that you may see",
        )
        for line in dict.fromkeys(one.remedy for one in found.refusals if one.remedy):
            session.say(f"to allow it: {line}")
        if any(one.plain for one in found.strangers):
            session.say("who comes in plain text needs the file of the cluster's CA: HEADRACE_CA")
        if any(not one.plain for one in found.strangers):
            session.say("a caller gets a key with: headrace key create --owner User:NAME --file FILE")
        if found.more:
            session.say("and more")
    if found.strangers or found.refusals or found.more:
        raise typer.Exit(ExitCode.FAILED)


def observed(
    session: Session,
    within: Within = None,
    unused: Annotated[bool, typer.Option("--unused", help="Rules that nothing needed, instead")] = False,
) -> None:
    """Show which rights were used in the last day, or which rules nobody needed."""
    with session.admin() as admin:
        found = admin.observed_access(within=_minutes(within))
    if session.output is not Output.TABLE:
        session.show(_json(found.wire))
        return
    _say_looked(session, found)
    if unused:
        session.show([_rule_row(rule) for rule in found.unused], empty=_ALL_NEEDED)
        return
    session.show(
        [
            {
                "principal": use.principal,
                "operation": use.operation,
                "type": use.type,
                "name": use.name,
                "last": _time(use.seen.last_ms),
                "count": use.seen.count,
            }
            for use in found.uses
        ],
        empty="no right was used",
    )


def _say_looked(session: Session, found: ObservedAccess) -> None:
    """How much of the truth this is."""
    session.say(f"mode {found.mode}")
    for node in found.nodes:
        if node.fault is not None:
            session.say(f"{node.node} cannot be asked: {node.fault}")
        elif node.since_ms is None:
            session.say(f"{node.node} does not look: make the cluster permissive with headrace access mode permissive")
    if found.since_ms is not None:
        session.say(f"all nodes look since {_time(found.since_ms)}")


def _stranger(one: SeenStranger) -> dict[str, Any]:
    what = "a credential that is not valid" if one.wrong else "no credential"
    principal = "unknown" if one.plain else "User:ANONYMOUS"
    what = "plain text" if one.plain else what
    return {"principal": principal, "host": one.host or "unknown", "what": what, **_seen(one.seen)}


def _refusal(one: SeenRefusal) -> dict[str, Any]:
    what = f"{one.operation} {one.type} {one.name}"
    return {"principal": one.principal, "host": one.host or "unknown", "what": what, **_seen(one.seen)}


def _seen(seen: SeenTimes) -> dict[str, Any]:
    return {"last": _time(seen.last_ms), "count": seen.count}


def _time(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _minutes(within: int | None) -> timedelta | None:
    return None if within is None else timedelta(minutes=within)


def _change(
    session: Session, changes: Sequence[Change], *, dry_run: bool, mode: str | None = None, **losing: Any
) -> None:
    with session.admin() as admin:
        done = admin.alter_access(changes, mode=mode, validate_only=dry_run, **losing)
    if session.output is not Output.TABLE:
        session.show(_json(done.wire) | {"dry_run": dry_run})
        return
    for line in _lines(done):
        session.say(line)
    if dry_run:
        _say_refused(session, done)
    session.say("nothing was changed: --dry-run" if dry_run else f"done; generation {done.generation}")


def _say_refused(session: Session, done: AccessChanged) -> None:
    """What was done in the last day and would be refused, and of which nodes that is not known."""
    for use in done.refuses:
        host = "" if use.host is None else f" from {use.host}"
        what = f"{use.operation} {use.type} {use.name}"
        session.say(f"would be refused{host}: {use.principal} {what}, last done {_time(use.seen.last_ms)}")
    if done.refuses_more:
        session.say("and more that was done in the last day")
    if done.nodes and not done.refuses:
        session.say("nothing that was seen in the last day would be refused")
    for node in done.nodes:
        if node.fault is not None:
            session.say(f"{node.node} cannot be asked what it has seen: {node.fault}")
        elif node.since_ms is None:
            session.say(f"{node.node} does not look what is done: the cluster is open")


def _lines(done: AccessChanged) -> list[str]:
    """Who gains and loses what."""
    lines = [
        f"{shift.principal} {word} {reach}"
        for shift in done.shifts
        for word, some in (("gains", shift.gains), ("loses", shift.loses))
        for reach in some
    ]
    return [*lines, "and more"] if done.more else lines


def _rule(
    effect: str, principal: str, operations: str, type: str, name: str | None, prefix: str | None, host: str | None
) -> Item:
    from headrace import access

    make: dict[str, Callable[..., Item]] = {"allow": access.allow, "deny": access.deny}
    if effect not in make:
        raise typer.BadParameter(f"{effect!r}: a rule is removed as `remove allow ...` or `remove deny ...`")
    if prefix is not None and name is not None:
        raise typer.BadParameter("give NAME or --prefix, not both")
    pattern = name if prefix is None else f"{prefix}*"
    if pattern is None and type.upper() != "CLUSTER":
        raise CommandFailed(f"which {type}?", ExitCode.USAGE, "Give its NAME, --prefix NAME, or '*' for all.")
    given = () if pattern is None else (pattern,)
    return make[effect](principal, operations.split(","), type, *given, host=host)


def _rule_row(rule: RuleInfo) -> dict[str, Any]:
    return {
        "principal": rule.principal,
        "says": "deny" if rule.grant.deny else "allow",
        "operations": ",".join(rule.grant.operations),
        "type": rule.grant.type,
        "pattern": rule.grant.pattern,
        "host": rule.grant.host or "any",
    }


def _targets(on: list[str] | None) -> list[tuple[str, str]]:
    return _pairs(on, "--on TYPE=PATTERN")


def _pairs(texts: list[str] | None, what: str) -> list[tuple[str, str]]:
    pairs = [text.partition("=") for text in texts or []]
    wrong = [type for type, equals, rest in pairs if not (type and equals and rest)]
    if wrong:
        raise typer.BadParameter(f"{wrong[0]!r}: write it as {what}")
    return [(type, rest) for type, _, rest in pairs]


def _json(message: Any) -> dict[str, Any]:
    from headrace_common.rpc.json_form import json_of

    return json_of(message)
