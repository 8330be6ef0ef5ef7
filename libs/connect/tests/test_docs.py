"""
What the page about converters and transforms shows is so, and it has every name and setting; what the page about
writing connectors shows works, and passes the suite.
"""

from __future__ import annotations

import doctest
import importlib
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from typer.testing import CliRunner

from headrace_cli.app import app
from headrace_connect import converters, transforms

DOCS = Path(__file__).parents[3] / "docs"
WRITING = DOCS / "connect-writing.md"
PAGE = DOCS / "connect-transforms.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_page_is_true() -> None:
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    found = doctest.testfile(str(PAGE), module_relative=False, optionflags=options)
    assert found.failed == 0
    assert found.attempted > 15


def line_of(name: str) -> str:
    """The row of a table that begins with this name."""
    [line] = [line for line in TEXT.splitlines() if line.startswith(f"| `{name}` |")]
    return line


@pytest.mark.parametrize("name", [*transforms.TRANSFORMS, *transforms.PREDICATES])
def test_each_transform_and_predicate_is_there_with_its_settings(name: str) -> None:
    line = line_of(re.sub(r"\$\w+", "$", name))
    settings = {option.name for option in transforms.options_of(name)} - {"replace.null.with.default"}
    assert settings == {word for word in re.findall(r"`([^`]+)`", line.split("|")[2]) if word in settings}
    for option in transforms.options_of(name):
        assert set(option.choices) <= set(re.findall(r"`([^`]+)`", line.split("|")[2]))


@pytest.mark.parametrize("name", converters.NAMES)
def test_each_converter_is_there_with_its_settings(name: str) -> None:
    line = line_of(name)
    if "the registry's" in line:
        line += line_of("avro")
    assert {option.name for option in converters.options_of(name)} <= set(re.findall(r"`([^`]+)`", line))


# --- writing connectors -----------------------------------------------------------------------------------------------


def block_of(name: str) -> str:
    """The block of the page that begins with the name of its file."""
    (text,) = re.findall(rf"```\w+\n(# {re.escape(name)}\n.*?)```", WRITING.read_text(), re.DOTALL)
    return str(text)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All files of the page, where Python finds them."""
    for name in ("tickets.py", "test_tickets.py", "tickets.yaml", "ledger.py", "test_ledger.py"):
        (tmp_path / name).write_text(block_of(name))
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("tickets", "test_tickets", "ledger", "test_ledger"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_the_source_has_sixty_lines() -> None:
    assert len(block_of("tickets.py").splitlines()) <= 61, "and the name of its file"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["tickets", "ledger"])
@pytest.mark.usefixtures("directory")
def test_what_is_shown_passes_the_suite(name: str) -> None:
    run: Callable[[], None] = getattr(importlib.import_module(f"test_{name}"), f"test_{name}")
    run()


@pytest.mark.parametrize(
    ("name", "sound", "broken", "said"),
    [
        ("tickets", '{"last": last}', '{"last": last - 1}', r"rows are there more than once, such as \('sales', 4\)"),
        ("ledger", " and epoch = ? and position is ?", " and ? >= 0 and ? is not -1", "more than once"),
        ("ledger", "into tokens values (?, 1)", "into tokens values (?, 0)", "are no dead letters"),
    ],
)
@pytest.mark.timeout(300)
def test_and_where_it_is_broken_does_not(directory: Path, name: str, sound: str, broken: str, said: str) -> None:
    text = (directory / f"{name}.py").read_text()
    assert sound in text
    (directory / f"{name}.py").write_text(text.replace(sound, broken))
    run: Callable[[], None] = getattr(importlib.import_module(f"test_{name}"), f"test_{name}")
    with pytest.raises(AssertionError, match=said):
        run()


class Desk(BaseHTTPRequestHandler):
    """A help desk with five tickets in each queue."""

    def do_GET(self) -> None:
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        allowed = self.headers.get("Authorization") == "Bearer good"
        tickets = [{"number": n, "queue": query["queue"]} for n in range(int(query["after"]) + 1, 6)]
        body = json.dumps(tickets[: int(query["limit"])]).encode()
        self.send_response(200 if allowed else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def desk() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Desk) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_the_commands_of_the_page(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(directory)
    file = directory / "tickets.yaml"
    with desk() as port:
        file.write_text(file.read_text().replace(":8123", f":{port}"))

        def connect(*words: str) -> tuple[int, str]:
            done = CliRunner().invoke(app, ["connect", *words])
            return done.exit_code, done.output

        monkeypatch.setenv("DESK_TOKEN", "good")
        assert "tickets.max" in connect("plugin", "tickets.py:Tickets")[1]
        assert connect("validate", "tickets.yaml") == (0, "tickets is sound\n")
        code, shown = connect("preview", "tickets.yaml", "--records", "2")
        assert code == 0
        assert shown.count('"queue":"sales"') == 2
        monkeypatch.setenv("DESK_TOKEN", "bad")
        code, shown = connect("validate", "tickets.yaml")
        assert code == 1
        assert "token: the help desk refuses it" in shown
    assert "does not answer" in connect("validate", "tickets.yaml")[1]
