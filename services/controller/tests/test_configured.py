"""What the controllers' settings say of access: the file of keys, and the rows that are due."""

from __future__ import annotations

from pathlib import Path

import pytest
from libs.common.tests.kit.access import ADMIN, ALICE

from headrace_common.core.access.api_keys import digest_of, format_key, parse_key
from headrace_common.core.access.rows import CONFIGURED, STATE, Mode, Reader, write_state
from headrace_common.core.errors import InvalidConfig, Rejected
from headrace_controller.adapters.admin_key_file import read_admin_keys
from headrace_controller.core.configured import KEYS_MAX, AccessSettings, make_configured, parse_admin_keys

TEXT = format_key(bytes(10), bytes(32))
ID, SECRET = parse_key(TEXT)
LINE = f"{ID} {digest_of(SECRET).hex()}"


def test_a_key_of_the_file_is_the_administrator_s_and_makes_it_a_super_user() -> None:
    (key,) = keys = parse_admin_keys(f"\n{LINE}\n\n")
    assert (key.id, key.owner, key.expires_ms, key.scope, key.matches(SECRET)) == (ID, ADMIN, None, None, True)
    assert make_configured(frozenset({ALICE}), keys).super_users == {ALICE, ADMIN}
    assert make_configured(frozenset({ALICE}), parse_admin_keys("\n")).super_users == {ALICE}
    assert parse_admin_keys(LINE) == keys, "the same file gives the same row, whenever it is read"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TEXT, "line 1 is not ID SHA256HEX"),
        (f"{LINE}\n{ID} abc", "line 2 is not"),
        (f"short {digest_of(SECRET).hex()}", "line 1 is not"),
        (f"{LINE} more", "line 1 is not"),
        (f"{LINE}\n{LINE}", "line 2 has the id of a line before"),
        ("\n".join(f"{n:014} {'0' * 64}" for n in range(KEYS_MAX + 1)), f"{KEYS_MAX + 1} keys"),
    ],
)
def test_another_file_is_refused_and_nothing_of_it_is_repeated(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(InvalidConfig, match=says) as caught:
        read_admin_keys(path)
    assert f"admin_key_file {path}" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_file_that_is_not_there_is_an_error_and_none_is_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="cannot be read"):
        read_admin_keys(tmp_path / "missing")
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(InvalidConfig, match="cannot be read"):
        read_admin_keys(tmp_path / "bytes")
    assert read_admin_keys(None) == ()


SET = AccessSettings(Mode.PERMISSIVE, make_configured(frozenset({ALICE}), parse_admin_keys(LINE)))


def test_rows_are_due_once_and_make_it_so() -> None:
    rows = SET.due_rows({})
    view = Reader().read(rows)
    assert (view.mode, view.access.generation, view.access.super_users) == (Mode.PERMISSIVE, 1, {ALICE, ADMIN})
    assert list(view.keys) == [ID]
    assert SET.due_rows(rows) == {}


def test_the_mode_is_raised_and_never_lowered() -> None:
    closed = {**SET.due_rows({}), STATE: write_state(Mode.CLOSED, 7)}
    assert SET.due_rows(closed) == {}
    gone = AccessSettings().due_rows(closed)
    assert set(gone) == {STATE, CONFIGURED}
    view = Reader().read({**closed, **gone})
    assert (view.mode, view.access.generation, view.access.super_users, view.keys) == (Mode.CLOSED, 8, set(), {})
    risen = AccessSettings(Mode.CLOSED, SET.configured).due_rows(SET.due_rows({}))
    assert set(risen) == {STATE}, "what is as it is set is not written again"


def test_a_cluster_where_nothing_is_set_has_no_rows() -> None:
    assert AccessSettings().due_rows({}) == {}


def test_a_new_cluster_begins_as_it_is_set_unless_it_is_open() -> None:
    assert SET.first_rows() == SET.due_rows({})
    assert AccessSettings(Mode.OPEN, SET.configured).first_rows() == {}


def test_a_state_of_a_newer_version_is_not_guessed_at() -> None:
    with pytest.raises(Rejected, match="cannot be read by this version"):
        SET.due_rows({STATE: b'{"v":9}'})
