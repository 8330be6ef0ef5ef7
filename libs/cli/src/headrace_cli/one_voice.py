"""Wrong usage is told as every other error is: one sentence, then what to do; without the usage line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from headrace_cli.exits import ExitCode
from headrace_cli.terminal import say_error

_UsageError: Any = typer.BadParameter.__mro__[1]
"""Typer has its parser inside and does not export what it raises; commands raise a subclass of it."""
_ASKS_FOR_HELP = "NoArgsIsHelpError"


class OneVoice(TyperGroup):
    """The root of the commands."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Read the line up to the first command."""
        with _tell_usage_errors():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Read the rest of it, and run the command."""
        with _tell_usage_errors():
            return super().invoke(ctx)


class Named(TyperCommand):
    """A command whose options' errors know which command it was."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Read its part of the line."""
        try:
            return super().make_context(info_name, args, parent, **extra)
        except _UsageError as error:
            if error.ctx is None:
                error.headrace_path = f"{parent.command_path} {info_name}" if parent is not None else info_name
            raise


@contextmanager
def _tell_usage_errors() -> Iterator[None]:
    try:
        yield
    except _UsageError as error:
        if type(error).__name__ == _ASKS_FOR_HELP:
            raise
        text = error.format_message().rstrip(".")
        path = error.ctx.command_path if error.ctx is not None else getattr(error, "headrace_path", "headrace")
        say_error(text[:1].lower() + text[1:], f"`{path} -h` shows what it takes.")
        raise typer.Exit(ExitCode.USAGE) from None
