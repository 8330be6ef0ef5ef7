"""The node token's file: what is made, what is read, and how it changes beneath a running process."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import pytest
from libs.common.tests.kit.clock import FakeClock

from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.node_tokens import LOOK_EVERY_MS, NodeTokens, open_tokens
from headrace_common.runtime.service import ServerConfig
from headrace_common.runtime.token_file import _main, make_file, new_token, read_tokens

OLD, NEW, OTHER = ("hrn_" + letter * 43 for letter in "abc")


def tokens_of(path: Path, text: str) -> tuple[NodeTokens, FakeClock]:
    path.write_text(text)
    clock = FakeClock()
    return NodeTokens(path, clock), clock


def test_a_file_is_made_once_and_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    assert make_file(path)
    (token,) = read_tokens(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not make_file(path)
    assert read_tokens(path) == (token,)
    assert [one.name for one in tmp_path.iterdir()] == ["token"]
    assert len({new_token() for _ in range(100)}) == 100


def test_it_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    link = os.link

    def sync(number: int) -> None:
        synced.append(os.fstat(number).st_size)

    def named(one: Path, other: Path) -> None:
        assert synced == [len(OLD) + 1]
        link(one, other)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "link", named)
    assert make_file(tmp_path / "token")


def test_who_makes_it_is_told_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "token"
    assert _main([str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: a new node token\n"
    before = path.read_text()
    assert _main([str(path)]) == 0
    assert "stays as it is" in capsys.readouterr().out
    assert path.read_text() == before


def test_who_cannot_make_it_is_told_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _main([str(tmp_path / "nowhere" / "token")]) == 1
    assert "No such file or directory; its directory has to be there" in capsys.readouterr().err
    (tmp_path / "empty").touch()
    for path in (tmp_path, tmp_path / "empty"):
        assert _main([str(path)]) == 1
        assert "remove this one" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    ["", "\n", "hrn_short\n", f"{OLD}x!\n", f"{OLD}\n{NEW}\n{OTHER}\n", "é" * 60, "\0" * 60, OLD * 40],
    ids=["empty", "a line", "short", "signs", "three", "not ascii", "zeros", "long"],
)
def test_anything_else_is_refused_and_not_repeated(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    with pytest.raises(InvalidConfig, match="node token file") as raised:
        NodeTokens(path, FakeClock())
    assert "hrn_short" not in str(raised.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"cannot read the node token file .*nothing-here: No such file"):
        NodeTokens(tmp_path / "nothing-here", FakeClock())


def test_the_first_is_shown_and_both_are_taken(tmp_path: Path) -> None:
    tokens, _ = tokens_of(tmp_path / "token", f"{OLD}\n{NEW}\n")
    assert tokens.shown == OLD
    assert [tokens.takes(one) for one in (OLD, NEW, OTHER, "", OLD[:-1], f"{OLD}x", "é")] == [True, True, *[False] * 5]


async def test_a_change_is_seen_and_rubbish_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "token"
    tokens, clock = tokens_of(path, OLD)
    path.write_text(f"{NEW}\n{OLD}")
    assert tokens.shown == OLD
    await clock.advance(LOOK_EVERY_MS)
    assert tokens.shown == NEW
    assert tokens.takes(OLD)
    caplog.set_level(logging.INFO)
    path.write_text("torn")
    for _ in range(2):
        await clock.advance(LOOK_EVERY_MS)
        assert tokens.shown == NEW
    path.unlink()
    await clock.advance(LOOK_EVERY_MS)
    assert tokens.takes(NEW)
    assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == 2, "each cause once"
    path.write_text(OTHER)
    await clock.advance(LOOK_EVERY_MS)
    assert (tokens.shown, tokens.takes(NEW)) == (OTHER, False)
    assert not any(token in caplog.text for token in (OLD, NEW, OTHER))
    assert OTHER not in repr(tokens)


def test_without_a_file_there_is_none_and_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert open_tokens(ServerConfig(), FakeClock()) is None
    assert "no node token" in caplog.text
