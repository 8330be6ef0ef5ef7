"""``headrace connect``: data of other systems into topics, and topics into other systems."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace_cli.commanding import command, plain_command, read_text
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.session import Session, check_reachable

if TYPE_CHECKING:
    from headrace_connect.runtime.configuring import Configured

HELP = "Connectors: data of other systems into topics, and topics into other systems"
_TAKES: Final = "YAML or JSON: name, connector.class and settings, or Kafka's {name, config}"
_SHOWN_CHARS_MAX: Final = 200

File = Annotated[str, typer.Argument(metavar="FILE", help="The connector's configuration, YAML or JSON; -: stdin")]


def register(app: typer.Typer) -> None:
    """Add the commands to ``headrace connect``."""
    command(app)(run)
    plain_command(app)(plugins)
    plain_command(app)(plugin)
    plain_command(app)(validate)
    plain_command(app)(preview)


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

    A source goes on where its last run, on any machine, has committed. Tasks that fail because something outside is
    away are started again; where the connector or its configuration is wrong, the command ends.
    """
    _check_installed()
    from headrace_connect.runtime import main
    from headrace_connect.runtime.config import RunConfig
    from headrace_connect.runtime.failing import TaskFailed

    configured = _configured(file)
    check_reachable(session.cluster)
    try:
        main.run(configured, RunConfig(session.bootstrap, group_id), until_idle=until_idle)
    except TaskFailed as failed:
        hint = "Nothing is lost: what was committed stays, and the next run goes on behind it."
        raise CommandFailed(f"{configured.config.name} has failed: {failed}", ExitCode.FAILED, hint) from None


def plugins(session: Session) -> None:
    """List the connectors that are installed. Others are named as package.module:Class or file.py:Class."""
    _check_installed()
    from headrace_connect.runtime.catalog import find_connector, list_connectors

    rows = []
    for listed in list_connectors():
        found = find_connector(listed.name)
        rows.append({"name": listed.name, "kind": _kind(found), "version": found.version, "class": listed.where})
    session.show_rows("plugins", rows, "name", "kind", "version", "class", empty="none is installed")


def plugin(session: Session, name: Annotated[str, typer.Argument(help="As connector.class has it")]) -> None:
    """Show the settings of a connector, with those that every source or sink has."""
    _check_installed()
    from headrace_connect.runtime.catalog import find_connector
    from headrace_connect.runtime.configuring import describe_plugin

    rows = [
        {
            "key": one.key + ("*" if one.family else ""),
            "type": one.type.value.lower(),
            "default": "required" if one.required else one.default,
            "importance": one.importance.value.lower(),
            "documentation": one.documentation,
        }
        for one in describe_plugin(find_connector(name))
    ]
    session.show_rows("settings", rows, "key", "type", "default", "importance", "documentation")


def validate(
    session: Session,
    file: File,
    *,
    offline: Annotated[bool, typer.Option("--offline", help="Look at the configuration alone")] = False,
) -> None:
    """
    Check every key, and whether the other system can be reached and lets it in. Nothing is written.

    Ends with 1 where something is wrong.
    """
    _check_installed()
    from headrace_connect.runtime import main
    from headrace_connect.runtime.configuring import find_config_problems

    given = _read(file)
    problems = [{"key": problem.key or None, "problem": problem.message} for problem in find_config_problems(given)]
    if not problems and not offline:
        problems = [{"key": None, "problem": said} for said in main.check(_configured(file, given))]
    session.show_rows("problems", problems, "key", "problem", empty=f"{given.get('name', file)} is sound")
    if problems:
        raise typer.Exit(ExitCode.FAILED)


def preview(
    session: Session,
    file: File,
    *,
    records: Annotated[int, typer.Option(min=1, max=10_000, help="How many records")] = 10,
) -> None:
    """Show the first records of a source, as they would be written. Nothing is written, and nothing is committed."""
    _check_installed()
    from headrace_connect.plugin import Source
    from headrace_connect.runtime import main

    configured = _configured(file)
    if not issubclass(configured.plugin, Source):
        raise CommandFailed(
            f"{configured.config.name} is a sink, and only sources can be previewed",
            ExitCode.USAGE,
            "`headrace connect validate` checks it; `headrace consume` shows what its topics have.",
        )
    shown = [{name: _text(value) for name, value in row.items()} for row in main.show(configured, records)]
    session.show_rows("records", shown, *_columns(shown), empty="the source has no records")


def _columns(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        text = value.decode(errors="replace")
        return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}…"
    return value


def _configured(file: str, given: Mapping[str, str] | None = None) -> Configured:
    from headrace_connect.runtime.configuring import configure
    from headrace_connect.settings import Secrets

    return configure(_read(file) if given is None else given, Secrets())


def _kind(found: type) -> str:
    from headrace_connect.plugin import Source

    return "source" if issubclass(found, Source) else "sink"


def _read(file: str) -> dict[str, str]:
    """
    The configuration in a file, as Kafka has it: texts by key.

    Raises:
        CommandFailed: the file has something else in it.
    """
    data = _parse(read_text(file, _TAKES), file)
    if not isinstance(data, dict):
        raise _wrong(file, f"it holds {type(data).__name__}, not keys and values")
    inner = data.get("config")
    if isinstance(inner, dict):
        more = sorted(set(data) - {"name", "config"})
        if more:
            raise _wrong(file, f"beside name and config there is {more[0]}; settings are in config")
        if "name" in data and inner.setdefault("name", data["name"]) != data["name"]:
            raise _wrong(file, f"it has two names, {data['name']} and {inner['name']}")
        data = inner
    return {str(key): _value(file, str(key), value) for key, value in data.items() if value is not None}


def _parse(text: str, file: str) -> Any:
    import yaml

    from headrace_cli.once import OnceLoader

    try:
        return yaml.load(text, OnceLoader)  # JSON is YAML, but for tabs
    except (yaml.YAMLError, RecursionError) as error:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise _wrong(file, " ".join(str(error).split()) or "it is nested too deeply") from None


def _value(file: str, key: str, value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str() | int() | float():
            return str(value)
        case list() if all(isinstance(item, str | int | float) for item in value):
            return ",".join(_value(file, key, item) for item in value)
    raise _wrong(file, f"{key} is no text, number, true, false or list of these: keys are flat, with dots")


def _wrong(file: str, what: str) -> CommandFailed:
    return CommandFailed(f"{file}: {what}", ExitCode.USAGE, f"It takes {_TAKES}.")


def _check_installed() -> None:
    if find_spec("headrace_connect") is None:
        raise CommandFailed("connectors are not installed here", ExitCode.USAGE, "pip install 'headrace-cli[connect]'")
