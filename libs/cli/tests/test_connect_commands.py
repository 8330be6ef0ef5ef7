"""``headrace connect`` without a cluster: files, plugins, validation, previews."""

from __future__ import annotations

import json
import re
import shlex
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from typer._click.exceptions import ClickException
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from headrace_cli.app import app

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    page
    for pattern in ("docs/connect*.md", "docs/connectors/*.md", "docs/postgres-to-lake.md", "deploy/helm/*/README.md")
    for page in ROOT.glob(pattern)
)
PLUGIN = '''
from dataclasses import dataclass
from headrace_connect import Chunk, source

@dataclass(frozen=True, slots=True)
class Settings:
    """Of numbers."""

    first: int
    """The first number."""

@source(settings=Settings)
def numbers(settings, after):
    """Numbers, for good."""
    at = after["at"] if after else settings.first
    while True:
        yield Chunk([{"n": at}], {"at": at + 1})
        at += 1
'''


@pytest.fixture
def plugin(tmp_path: Path) -> str:
    (tmp_path / "numbers_plugin.py").write_text(PLUGIN)
    return f"{tmp_path}/numbers_plugin.py:numbers"


def connect(*words: str) -> tuple[int, Any]:
    done = CliRunner().invoke(app, ["connect", *words, "-o", "json"])
    return done.exit_code, json.loads(done.stdout) if done.stdout.startswith("{") else done.output


def test_a_preview_shows_records_of_all_shapes_of_files(plugin: str, tmp_path: Path) -> None:
    config = {"name": "n", "connector.class": plugin, "topic": "t", "first": 5, "exactly.once": True}
    flat = tmp_path / "flat.yaml"
    flat.write_text("\n".join(f"{key}: {json.dumps(value)}" for key, value in config.items()))
    kafka = tmp_path / "kafka.json"
    kafka.write_text(json.dumps({"name": "n", "config": {k: v for k, v in config.items() if k != "name"}}))
    for file in (flat, kafka):
        code, shown = connect("preview", str(file), "--records", "2")
        assert code == 0, shown
        assert [json.loads(row["value"]) for row in shown["records"]] == [{"n": 5}, {"n": 6}]
        assert shown["records"][0]["topic"] == "t"


def test_validate_names_every_wrong_key(plugin: str, tmp_path: Path) -> None:
    file = tmp_path / "n.yaml"
    file.write_text(f"name: n\nconnector.class: {plugin}\ntopic: t\nfrist: 5\n")
    code, shown = connect("validate", str(file), "--offline")
    assert code == 1
    assert {row["key"] for row in shown["problems"]} == {"frist", "first"}
    file.write_text(f"name: n\nconnector.class: {plugin}\ntopic: t\nfirst: 5\n")
    assert connect("validate", str(file)) == (0, {"problems": []})


def test_validate_and_preview_take_the_cluster_of_the_other_commands(plugin: str, tmp_path: Path) -> None:
    file = tmp_path / "n.yaml"
    file.write_text(f"name: n\nconnector.class: {plugin}\ntopic: t\nfirst: 5\n")
    for words in (["validate", str(file)], ["preview", str(file), "--records", "1"]):
        assert connect(*words, "-b", "127.0.0.1:1")[0] == 0, "nobody is asked there"
        assert CliRunner().invoke(app, ["-b", "127.0.0.1:1", "connect", *words]).exit_code == 0


@pytest.mark.parametrize("group", ["", "/" * 34])
def test_a_cluster_that_ids_cannot_name_is_told_as_the_option_is_written(
    plugin: str, tmp_path: Path, group: str
) -> None:
    file = tmp_path / "n.yaml"
    file.write_text(f"name: n\nconnector.class: {plugin}\ntopic: t\nfirst: 5\n")
    done = CliRunner().invoke(app, ["connect", "run", str(file), "--group-id", group, "-b", "127.0.0.1:1"])
    assert done.exit_code == 2
    assert f"--group-id has 1 to 100 bytes as it stands in ids, percent-encoded, not {3 * len(group)}" in done.output


def test_plugin_shows_settings(plugin: str) -> None:
    code, shown = connect("plugin", plugin)
    assert code == 0
    by_key = {row["key"]: row for row in shown["settings"]}
    assert by_key["first"]["default"] == "required"
    assert by_key["transforms.*"]["type"] == "string"


def test_plugins_are_listed() -> None:
    code, shown = connect("plugins")
    assert code == 0
    assert {row["name"] for row in shown["plugins"]} >= {"files", "sql-sink"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a\n", "not keys and values"),
        ('{"name": "a", "config": {"name": "b"}}', "two names"),
        ('{"name": "a", "config": {}, "topic": "b"}', "settings are in config"),
        ("name: n\ndatabase:\n  host: x\n", "database is no text"),
        ("a: [", "n.yaml"),
    ],
)
def test_files_that_are_none(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "n.yaml"
    file.write_text(text)
    code, output = connect("validate", str(file))
    assert code == 2
    assert said in output


def typed_on(page: str) -> list[tuple[str, bool]]:
    """Commands on a page, and whether each is whole: those between lines are named, and may be."""
    blocks = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    whole = [part.strip() for line in lines for part in re.split(r"\s#|&&|;", line)]
    named = re.findall(r"`(headrace connect [^`]*)`", re.sub(r"```.*?```", "", page, flags=re.DOTALL))
    found = [(one, True) for one in whole if one.startswith("headrace connect ")]
    return found + [(one, False) for one in named]


@cache
def tree() -> Any:
    """All commands; to make their parser takes longer than to read most lines."""
    return get_command(app)


def parse(words: list[str], *, whole: bool) -> None:
    """As the shell's words are read, and nothing is done. Raises: ClickException."""
    command: Any = tree()
    context: Any = None
    rest = words
    while True:
        context = command.make_context(command.name, rest, parent=context, resilient_parsing=not whole)
        if not isinstance(command, TyperGroup):
            return
        left = [*context._protected_args, *context.args]
        if not left:
            return
        _, command, rest = command.resolve_command(context, left)


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in PAGES])
def test_commands_on_pages_are_those_that_there_are(page: str) -> None:
    for text, whole in typed_on((ROOT / page).read_text()):
        choices = [word.split("|") for word in shlex.split(text)[1:]]
        for words in product(*choices):
            try:
                parse(list(words), whole=whole)
            except ClickException as error:
                pytest.fail(f"{page}: {text}: {error.format_message()}")


def test_a_command_that_there_is_not_would_be_found() -> None:
    assert typed_on("```sh\nheadrace connect run a.yaml   # x\n```\n`headrace connect offsets`") == [
        ("headrace connect run a.yaml", True),
        ("headrace connect offsets", False),
    ]
    for words in (["connect", "halt", "x"], ["connect", "run", "a.yaml", "--for-good"], ["connect", "run"]):
        with pytest.raises(ClickException):
            parse(words, whole=True)
    parse(["connect", "run"], whole=False)
