"""``headrace user``: users with passwords; and ``headrace login``: a key of some hours for who has one."""

from __future__ import annotations

import asyncio
import http
import os
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.errors import CredentialInPlainText
from headrace.local_keys import find_login, logins_directory, read_key_file, write_local_key
from headrace_cli.commanding import command
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.output import Output
from headrace_cli.session import Session, check_reachable
from headrace_common.core.errors import HeadraceError
from headrace_common.core.secret import Secret

if TYPE_CHECKING:
    from headrace._renewing import Issued

HELP = "Users with passwords"

Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the principal User:NAME")]
PasswordFile = Annotated[
    str | None,
    typer.Option("--password-file", metavar="FILE", help="Read it from a file, - for stdin; else you are asked"),
]
Password = Annotated[
    str | None, typer.Option("--password", metavar="TEXT", help="Other users of this machine can read it there")
]


def register(app: typer.Typer) -> None:
    """Add the commands to ``headrace user``."""
    command(app)(create)
    command(app)(passwd)
    command(app, "list")(list_)
    command(app)(remove)


def register_logins(app: typer.Typer) -> None:
    """Add ``headrace login`` and ``headrace logout``."""
    command(app)(login)
    command(app)(logout)


def create(session: Session, name: Name, *, password_file: PasswordFile = None, password: Password = None) -> None:
    """Make a user. The password stays here: the cluster keeps verifiers of it."""
    given = _password(session, password_file, password, new=True)
    with session.admin() as admin:
        admin.create_user(name, given)
    session.report({"user": name}, f"User:{name} was made; give it rights with headrace access allow User:{name} ...")


def passwd(
    session: Session,
    name: Name,
    *,
    grace: Annotated[
        int, typer.Option("--grace", metavar="S", min=0, max=604_800, help="How long the old one still counts")
    ] = 0,
    password_file: PasswordFile = None,
    password: Password = None,
) -> None:
    """Give a user another password. Its sessions and logins end when the old one does."""
    given = _password(session, password_file, password, new=True)
    with session.admin() as admin:
        admin.change_password(name, given, grace=timedelta(seconds=grace) if grace else None)
    until = f"; the old one counts for {grace} s" if grace else ""
    session.report({"user": name, "grace_s": grace}, f"User:{name} has another password{until}")


def list_(session: Session) -> None:
    """List users."""
    from headrace_common.rpc.json_form import json_of

    with session.admin() as admin:
        rows = [json_of(user.wire) for user in admin.list_users()]
    for row in rows:
        row.pop("parameters", None)
    if session.output is Output.TABLE:
        rows = [row | {"password_of": _day(row["password_set_ms"])} for row in rows]
    session.show_rows("users", rows, "name", "password_of", "blocked", empty="there are none")


def remove(
    session: Session,
    name: Name,
    *,
    cascade: Annotated[
        bool, typer.Option("--cascade", help="Its rules, roles, keys and block go too; else there may be none")
    ] = False,
) -> None:
    """Take a user away: what is connected with its password is cut off."""
    with session.admin() as admin:
        admin.delete_user(name, cascade=cascade)
    session.report({"removed": name}, f"User:{name} was removed")


def login(
    session: Session,
    *,
    user: Annotated[str | None, typer.Option("--user", metavar="NAME", help="Of the principal User:NAME")] = None,
    oidc: Annotated[
        str | None,
        typer.Option("--oidc", metavar="PROVIDER", help="The issuer to log in at, by its name in the cluster"),
    ] = None,
    device: Annotated[
        bool, typer.Option("--device", help="Log in with a browser of another machine, by a code; with --oidc")
    ] = False,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65_535, help="Where the browser comes back to; 0: any free one")
    ] = 0,
    password_file: PasswordFile = None,
    password: Password = None,
) -> None:
    """Log in, by password for 12 hours or at a provider: clients of this user here show what that gives."""
    if (user is None) == (oidc is None):
        raise typer.BadParameter("give --user NAME, or --oidc PROVIDER")
    if oidc is not None:
        _log_in_at(session, oidc, device=device, port=port)
        return
    assert user is not None, "it was looked at"
    given = _password(session, password_file, password, new=False)
    with session.admin(username=user, password=given) as admin:
        made = admin.log_in(user, given)
    file = write_local_key(logins_directory(os.environ), _file_name(session), list(session.cluster), made.key)
    expires_ms = made.description.expires_ms
    assert expires_ms is not None, "a login ends"
    session.report(
        {"user": user, "key_id": made.description.id, "expires_ms": expires_ms, "file": str(file)},
        f"logged in at {session.bootstrap} as User:{user} until {_day(expires_ms)}",
    )


def _log_in_at(session: Session, alias: str, *, device: bool, port: int) -> None:
    """Nothing is written before the cluster has taken the token."""
    from headrace._logging_in import describe_sign_on
    from headrace._renewing import issue, write_issued
    from headrace.securing import trust_in
    from headrace_cli import signing_on
    from headrace_common.core.ids import is_loopback

    ca = session.cluster.ca
    for address in session.cluster:
        if ca is None and not is_loopback(address):
            raise CredentialInPlainText.to(address, "token")
    check_reachable(session.cluster)
    trust = trust_in(None if ca is None else Path(ca))
    sign_on = asyncio.run(describe_sign_on(list(session.cluster), trust, alias))
    provider = signing_on.ask_provider(sign_on)
    if device or (not signing_on.has_browser() and provider.device is not None):
        tokens = signing_on.log_in_by_device(provider, sign_on, session.say, Event().wait)
    else:
        tokens = signing_on.log_in_by_browser(provider, sign_on, session.say, port=port)
    with session.admin(api_key=tokens.bearer) as admin:
        who = admin.who_am_i()
    login = issue(tuple(session.cluster), sign_on, tokens, provider.token, provider.revocation)
    file = write_issued(logins_directory(os.environ), _file_name(session), login)
    renewed = "; clients renew it" if tokens.refresh is not None else ""
    session.report(
        {
            "principal": who.principal,
            "issuer": alias,
            "expires_ms": tokens.expires_ms,
            "renewed": tokens.refresh is not None,
            "file": str(file),
        },
        f"logged in at {session.bootstrap} as {who.principal} until {_day(tokens.expires_ms)}{renewed}",
    )


def _log_out_at(session: Session, login: Issued) -> None:
    """What renews the login is taken back at the issuer, if it can be; the token ends by itself."""
    from headrace._issuer_calls import post_form

    alias, refresh = login.sign_on.alias, login.tokens.refresh
    if refresh is not None and login.revocation_endpoint is not None:
        form = {
            "token": refresh.reveal(),
            "token_type_hint": "refresh_token",
            "client_id": login.sign_on.client_id,
        }
        try:
            status, _ = post_form(login.revocation_endpoint, form)
            if status != http.HTTPStatus.OK:
                session.say(f"{alias} did not take back what renews the login: it answers {status}")
        except HeadraceError as error:
            session.say(f"{alias} may not have taken back what renews the login: {error}")
    session.say(f"the token of {alias} is forgotten here; it ends by itself at {_day(login.tokens.expires_ms)}")


def logout(session: Session) -> None:
    """Take the key of ``headrace login`` back, and forget it; a token of a provider is forgotten."""
    from headrace._renewing import read_issued
    from headrace_common.core.access.api_keys import parse_key

    file = find_login(logins_directory(os.environ), session.cluster)
    if file is None:
        raise CommandFailed(f"nobody is logged in at {session.bootstrap}", ExitCode.NOT_FOUND)
    _, key = read_key_file(file)
    issued = read_issued(file)
    if issued is not None:
        file.unlink(missing_ok=True)
        file.with_suffix(".lock").unlink(missing_ok=True)
        _log_out_at(session, issued)
        session.report({"file": str(file)}, f"logged out at {session.bootstrap}")
        return
    try:
        with session.admin(api_key=key) as admin:
            admin.delete_keys([parse_key(key.reveal()).id])
    except HeadraceError as error:
        session.say(f"the key could not be taken back, and ends by itself: {error}")
    file.unlink(missing_ok=True)
    session.report({"file": str(file)}, f"logged out at {session.bootstrap}")


def _password(session: Session, file: str | None, text: str | None, *, new: bool) -> Secret:
    """From where it is given; never shown."""
    from headrace._credentials import read_password

    if file is not None and text is not None:
        raise typer.BadParameter("give --password-file or --password, not both")
    if text is not None:
        session.say("warning: a password on a command line can be read by others; better --password-file, or be asked")
        return Secret(text)
    if file == "-":
        return Secret(sys.stdin.readline().rstrip("\r\n"))
    if file is not None:
        return read_password(Path(file).expanduser())
    return Secret(typer.prompt("Password", hide_input=True, confirmation_prompt=new, err=True))


def _file_name(session: Session) -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "_", session.cluster[0])


def _day(unix_ms: Any) -> str:
    return datetime.fromtimestamp(unix_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M UTC")
