"""The tree of commands. Help is plain text: the rich kind would triple the time until it shows."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace_cli.commands import (
    apply,
    bench,
    broker,
    cluster,
    consume,
    debug,
    demo,
    group,
    job,
    local,
    partition,
    produce,
    topic,
    txn,
)

app = typer.Typer(
    name="headrace",
    help="Headrace: a distributed event log. Start with `headrace up`, or with `headrace demo`.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 unreachable, 5 timed out, "
    "6 degraded, 7 unavailable (status, health), 130 interrupted.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)

for module in (local, demo, produce, consume, apply):
    module.register(app)
GROUPS = {
    "topic": topic,
    "group": group,
    "txn": txn,
    "partition": partition,
    "cluster": cluster,
    "broker": broker,
    "job": job,
    "bench": bench,
    "debug": debug,
}
for name, commands in GROUPS.items():
    inner = typer.Typer(help=commands.HELP, no_args_is_help=True, rich_markup_mode=None)
    commands.register(inner)
    app.add_typer(inner, name=name)


def _version(wanted: bool) -> None:
    if wanted:
        from headrace import __version__

        typer.echo(f"headrace {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _show: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which it is")] = False,
) -> None:
    pass
