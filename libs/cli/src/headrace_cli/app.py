"""The tree of commands. Help is plain text: the rich kind would triple the time until it shows."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.main import get_command_name
from typer.models import CommandInfo

from headrace_cli.commanding import (
    BootstrapOption,
    DebugOption,
    OutputOption,
    ProfileOption,
    add_shared_options,
    note_options,
)
from headrace_cli.commands import (
    access,
    apply,
    audit,
    bench,
    broker,
    cluster,
    connect,
    consume,
    debug,
    demo,
    group,
    job,
    key,
    local,
    partition,
    produce,
    quota,
    streams,
    tls,
    topic,
    txn,
    user,
    verify,
)
from headrace_cli.commands import profile as profile_commands
from headrace_cli.one_voice import OneVoice
from headrace_cli.terminal import help_width

app = typer.Typer(
    name="headrace",
    cls=OneVoice,
    help="Headrace: a distributed event log. Start with `headrace up`, or with `headrace demo`.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 unreachable, 5 timed out, "
    "6 degraded, 7 unavailable (status, health), 130 interrupted.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": help_width(sys.stdout),
        "terminal_width": help_width(sys.stdout),
    },
)

for module in (local, demo, produce, consume, apply):
    module.register(app)
key.register_whoami(app)
user.register_logins(app)
GROUPS = {
    "topic": topic,
    "group": group,
    "txn": txn,
    "partition": partition,
    "cluster": cluster,
    "broker": broker,
    "job": job,
    "streams": streams,
    "connect": connect,
    "access": access,
    "key": key,
    "user": user,
    "quota": quota,
    "tls": tls,
    "audit": audit,
    "profile": profile_commands,
    "bench": bench,
    "verify": verify,
    "debug": debug,
}
for name, commands in GROUPS.items():
    inner = typer.Typer(help=commands.HELP, no_args_is_help=True, rich_markup_mode=None)
    commands.register(inner)
    add_shared_options(inner, commands.HELP)
    app.add_typer(inner, name=name)


def _version(wanted: bool) -> None:
    if wanted:
        from headrace import __version__

        typer.echo(f"headrace {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    ctx: typer.Context,
    bootstrap: BootstrapOption = None,
    profile: ProfileOption = None,
    output: OutputOption = None,
    debug: DebugOption = False,
    _show: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version")
    ] = False,
) -> None:
    note_options(ctx, bootstrap=bootstrap, profile=profile, output=output, debug=debug)


def build_only(argv: Sequence[str]) -> None:
    """
    Leave out what this line does not call: the parser is made for all commands before the line is read, and that is a
    quarter of a short command's work. A line that does not begin with a command's name, in full, is left its choice.
    """
    named = next(iter(argv), "")
    if named not in GROUPS:
        return
    app.registered_commands = []
    app.registered_groups = [group for group in app.registered_groups if group.name == named]
    (inner,) = (group.typer_instance for group in app.registered_groups)
    wanted = [info for info in inner.registered_commands if _name_of(info) in argv[1:2]] if inner else []
    if inner and wanted:
        inner.registered_commands = wanted


def _name_of(info: CommandInfo) -> str:
    return info.name or get_command_name(info.callback.__name__ if info.callback else "")
