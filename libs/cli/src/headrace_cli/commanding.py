"""
What all commands have in common: the options every one takes, and the boundary where errors become exit codes.

``@command(app)`` replaces a function's first parameter, its ``Session``, by ``--bootstrap``, ``--profile``, ``-o``
and ``--debug``; ``@plain_command(app)`` is for commands without a cluster (``up``, ``down``), which get only ``-o``
and ``--debug``.
"""

from __future__ import annotations

import errno
import functools
import inspect
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from headrace.finding import DEFAULT_BOOTSTRAP, ClusterAddress
from headrace_cli import completing
from headrace_cli.exits import CommandFailed, ExitCode, exit_code_of, hint_of
from headrace_cli.interrupts import interruptible
from headrace_cli.one_voice import Named
from headrace_cli.output import Output
from headrace_cli.session import Session, open_session, open_session_anyway
from headrace_cli.terminal import say_error
from headrace_common.core.errors import HeadraceError

F = TypeVar("F", bound=Callable[..., None])

BootstrapOption = Annotated[
    str | None,
    typer.Option("--bootstrap", "-b", metavar="HOST:PORT[,...]", help="Brokers to ask first [env: HEADRACE_BOOTSTRAP]"),
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME",
        help="A section of config.toml [env: HEADRACE_PROFILE]",
        autocompletion=completing.profiles,
    ),
]
OutputOption = Annotated[Output | None, typer.Option("--output", "-o", help="How to print data; the default is table")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show a traceback with an error")]


_SHARED: Final = ("bootstrap", "profile", "output", "debug")


def command(
    app: typer.Typer, name: str | None = None, *, needs_cluster: bool = True, **settings: Any
) -> Callable[[F], F]:
    """
    Register a function whose first parameter is a ``Session`` as a command. One that has something to do without a
    cluster (``needs_cluster=False``) runs where none can be found, and fails when it asks it.
    """
    shared = [
        _keyword("bootstrap", BootstrapOption, None),
        _keyword("profile", ProfileOption, None),
        _keyword("output", OutputOption, None),
        _keyword("debug", DebugOption, False),
    ]

    def register(function: F) -> F:
        @functools.wraps(function)
        def run(ctx: typer.Context, **given: Any) -> None:
            before: dict[str, Any] = ctx.obj or {}
            where: dict[str, Any] = {key: given.pop(key) or before.get(key) for key in _SHARED}
            where["debug"] = bool(where["debug"])
            with errors_end_the_command(where["debug"]), interruptible(signal.SIGINT):
                opening = open_session if needs_cluster else open_session_anyway
                session = opening(**where, env=os.environ, here=Path.cwd())
                function(session, **given)

        app.command(name, cls=Named, **settings)(_with_parameters(run, function, shared))
        return function

    return register


def plain_command(app: typer.Typer, name: str | None = None, **settings: Any) -> Callable[[F], F]:
    """The same for a command that does not ask a cluster: its ``Session`` has no address of one."""
    shared = [_keyword("output", OutputOption, None), _keyword("debug", DebugOption, False)]

    def register(function: F) -> F:
        @functools.wraps(function)
        def run(ctx: typer.Context, **given: Any) -> None:
            before: dict[str, Any] = ctx.obj or {}
            if before.get("bootstrap") or before.get("profile"):
                raise typer.BadParameter("this command asks no cluster; leave out --bootstrap and --profile")
            output: Output | None = given.pop("output") or before.get("output")
            debug = bool(given.pop("debug") or before.get("debug"))
            with errors_end_the_command(debug), interruptible(signal.SIGINT):
                function(Session(ClusterAddress((DEFAULT_BOOTSTRAP,)), output or Output.TABLE, debug), **given)

        app.command(name, cls=Named, **settings)(_with_parameters(run, function, shared))
        return function

    return register


def add_shared_options(app: typer.Typer, help_text: str | None = None) -> None:
    """The options of every command before its name too: ``headrace -b HOST topic -o json list``. The nearest counts."""

    @app.callback(help=help_text)
    def options(
        ctx: typer.Context,
        bootstrap: BootstrapOption = None,
        profile: ProfileOption = None,
        output: OutputOption = None,
        debug: DebugOption = False,
    ) -> None:
        note_options(ctx, bootstrap=bootstrap, profile=profile, output=output, debug=debug)


def note_options(ctx: typer.Context, **given: object) -> None:
    """Keep what stands before the command's name for the command."""
    ctx.obj = {**(ctx.obj or {}), **{name: value for name, value in given.items() if value}}


class errors_end_the_command:  # noqa: N801 - reads as the statement it is
    """Turn what went wrong into one or two lines on stderr and the exit code it stands for."""

    def __init__(self, debug: bool) -> None:
        self._debug = debug

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        match error:
            case HeadraceError():
                if self._debug:
                    raise error
                say_error(str(error), hint_of(error))
                raise typer.Exit(exit_code_of(error)) from None
            case KeyboardInterrupt():
                raise typer.Exit(ExitCode.INTERRUPTED) from None
            case UnicodeEncodeError() if error.reason == "surrogates not allowed" and not self._debug:
                say_error(f"{error.object[:60]!a} is not UTF-8 text", "Names are; give it in UTF-8.")
                raise typer.Exit(ExitCode.USAGE) from None
            case BrokenPipeError():
                _drop_output()
                raise typer.Exit(ExitCode.BROKEN_PIPE) from None
            case OSError() if error.filename is not None and not self._debug:
                say_error(f"{error.filename}: {error.strerror}", "Check the path and its permissions.")
                raise typer.Exit(ExitCode.USAGE) from None
            case OSError() if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO) and not self._debug:
                _drop_output()
                say_error(f"the output cannot be written: {error.strerror}", "Make room there, or write elsewhere.")
                raise typer.Exit(ExitCode.FAILED) from None


def _drop_output() -> None:
    """Nothing more can be written; closing stdout at exit would complain once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def pairs(texts: list[str] | None, what: str) -> dict[str, str]:
    """
    ``["a=1", "b=2"]`` as a mapping.

    Raises:
        BadParameter: one has no ``=``, or a name comes twice.
    """
    found: dict[str, str] = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(f"{text!r}: write it as {what}")
        if name.strip() in found:
            raise typer.BadParameter(f"{name.strip()} is given twice")
        found[name.strip()] = value
    return found


def read_text(file: str, takes: str) -> str:
    """A file, or with - standard input. Raises: CommandFailed: it is not UTF-8."""
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
    except UnicodeDecodeError:
        raise CommandFailed(f"{file} is not text", ExitCode.USAGE, f"It takes {takes}, in UTF-8.") from None


def _keyword(name: str, annotation: Any, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _with_parameters(run: Callable[..., None], function: Any, shared: list[inspect.Parameter]) -> Callable[..., None]:
    signature = inspect.signature(function, eval_str=True)
    own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in list(signature.parameters.values())[1:]]
    context = _keyword("ctx", typer.Context, inspect.Parameter.empty)
    run.__signature__ = signature.replace(parameters=[context, *own, *shared])  # type: ignore[attr-defined] # how inspect is told
    run.__annotations__ = {p.name: p.annotation for p in [context, *own, *shared]}
    return run
