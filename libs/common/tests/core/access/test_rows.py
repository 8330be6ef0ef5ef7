"""Rows: what is written is read again, what cannot be read opens nothing."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from libs.common.tests.kit.access import ADMIN, ALICE, BOB, accesses, allow
from libs.common.tests.kit.quotas import all_quotas

from headrace_common.core.access.api_keys import ApiKey, KeyId
from headrace_common.core.access.grants import scope_of
from headrace_common.core.access.resources import EVERY_NAME, Operation, ResourceType, literal, parse_pattern, prefix
from headrace_common.core.access.rows import (
    CONFIGURED,
    GONE,
    STATE,
    Configured,
    Mode,
    Reader,
    View,
    changed_quotas,
    changed_rows,
    write_configured,
    write_key,
    write_state,
)
from headrace_common.core.access.state import Access
from headrace_common.core.image import EMPTY_IMAGE, AccessStep, ImageDelta
from headrace_common.core.quotas.entities import Clients
from headrace_common.core.quotas.kinds import Rate
from headrace_common.core.quotas.state import Quotas, alter

A = allow(ResourceType.TOPIC, literal("a"), Operation.READ)
KEY = ApiKey(KeyId("k" * 14), ALICE, bytes(range(32)), 5, 6, scope_of([A]), "for é")
FILE_KEY = ApiKey(KeyId("f" * 14), ADMIN, bytes(32), 5)


def written(access: Access, mode: Mode = Mode.CLOSED, *keys: ApiKey) -> dict[str, bytes]:
    return {
        STATE: write_state(mode, access.generation),
        CONFIGURED: write_configured(Configured(access.super_users, (FILE_KEY,))),
        **changed_rows(Access(), access),
        **dict(map(write_key, keys)),
    }


@given(accesses)
def test_what_is_written_is_read(access: Access) -> None:
    view = Reader().read(written(access, Mode.PERMISSIVE, KEY))
    assert view == View(
        Mode.PERMISSIVE, access, {KEY.id: KEY, FILE_KEY.id: FILE_KEY}, configured=frozenset({FILE_KEY.id})
    )


@given(accesses, accesses)
def test_a_change_writes_what_has_changed_and_no_more(before: Access, after: Access) -> None:
    after = replace(after, generation=2, super_users=before.super_users)
    rows, reader = written(before), Reader()
    reader.read(rows)
    changed = changed_rows(before, after)
    next_rows = {key: row for key, row in {**rows, **changed}.items() if row != GONE}
    next_rows[STATE] = write_state(Mode.CLOSED, 2)
    assert reader.read(next_rows) == Reader().read(next_rows)
    assert reader.view.access == after
    for key, row in changed.items():
        assert rows.get(key, GONE) != row


@given(accesses, accesses, st.booleans())
def test_a_step_that_is_known_reads_the_same(before: Access, after: Access, bad: bool) -> None:
    """With and without a row that cannot be read for a while."""
    after = replace(after, generation=2, super_users=before.super_users)
    image = replace(EMPTY_IMAGE, revision=1, access=written(before, Mode.CLOSED, KEY))
    reader = Reader()
    reader.read(image.access)
    steps = [
        {**changed_rows(before, after), STATE: write_state(Mode.CLOSED, 2), **({"roles/bad": b"?"} if bad else {})},
        {f"keys/{KEY.id}": GONE, "roles/bad": GONE},
    ]
    for revision, access in enumerate(steps, 2):
        image = image.apply(ImageDelta(b"", revision - 1, revision, "", access=access))
        found = reader.read(image.access, image.access_step)
        if not bad or revision > 2:
            assert found == Reader().read(image.access)
    assert found.access == after
    assert set(found.keys) == {FILE_KEY.id}


def test_a_step_from_elsewhere_is_not_followed() -> None:
    reader, other = Reader(), written(Access(1, rules={ALICE: frozenset({A})}))
    reader.read(written(Access(1, rules={BOB: frozenset({A})})))
    found = reader.read(other, AccessStep(dict(other), frozenset()))
    assert set(found.access.rules) == {ALICE}


def test_views_that_were_given_stay_as_they_were() -> None:
    access, reader = Access(1, rules={ALICE: frozenset({A})}), Reader()
    rows = written(access, Mode.CLOSED, KEY)
    view = reader.read(rows)
    reader.read({STATE: rows[STATE]})
    assert view == Reader().read(rows)


@given(all_quotas, all_quotas)
def test_quotas_are_read_as_they_were_set_and_only_those_that_changed(before: Quotas, after: Quotas) -> None:
    reader, rows = Reader(), changed_quotas(Quotas(), before)
    assert reader.read(rows).quotas == before
    changed = changed_quotas(before, after)
    assert set(changed) == {
        f"quotas/{one}"
        for one in before.values.keys() | after.values.keys()
        if before.values.get(one) != after.values.get(one)
    }
    rows = {key: row for key, row in {**rows, **changed}.items() if row != GONE}
    assert reader.read(rows).quotas == after
    kept = reader.view.quotas
    assert reader.read({**rows, STATE: write_state(Mode.CLOSED, 1)}).quotas is kept


def test_a_row_of_quotas() -> None:
    quotas = alter(
        Quotas(), [(Clients("ServiceAccount:a/b"), {Rate.CONSUMER_BYTE_RATE: 7, Rate.PRODUCER_BYTE_RATE: 5})]
    )
    row = b'{"v":1,"values":{"consumer_byte_rate":7,"producer_byte_rate":5}}'
    assert changed_quotas(Quotas(), quotas) == {"quotas/users/ServiceAccount:a%2Fb": row}


def test_no_rows_are_an_open_cluster() -> None:
    assert Reader().read({}) == View() == View(Mode.OPEN, Access(), {})


def test_the_same_rows_are_the_same_view_and_their_parts_are_kept() -> None:
    access = Access(1, rules={ALICE: frozenset({A}), BOB: frozenset({A})})
    rows, reader = written(access), Reader()
    view = reader.read(rows)
    assert reader.read(rows) is view
    other = replace(access, generation=2, rules={**access.rules, BOB: frozenset({A, replace(A, pattern=EVERY_NAME)})})
    then = reader.read({**rows, **changed_rows(access, other), STATE: write_state(Mode.CLOSED, 2)})
    assert then.access.rules[ALICE] is view.access.rules[ALICE]
    assert len(then.access.rules[BOB]) == 2


BAD = {
    "a newer form": b'{"v":2}',
    "no JSON": b"{",
    "no object": b"[]",
    "no version": b"{}",
    "no text": b"\xff",
    "what is missing": b'{"v":1}',
    "an operation of later": b'{"v":1,"rules":[["allow",["DREAM"],"TOPIC","a",null]],"bindings":[]}',
}


BAD_QUOTAS = {
    "users/*": '{"dreams":1}',
    "users/User:a": "{}",
    "users/User:b": '{"producer_byte_rate":0}',
    "users/User:c": '{"producer_byte_rate":1,"topics.max":null}',
    "clients/app": '{"topics.max":1}',
    "clients/%61": '{"producer_byte_rate":1}',
    "things/a": '{"producer_byte_rate":1}',
}


@pytest.mark.parametrize(("entity", "values"), BAD_QUOTAS.items(), ids=BAD_QUOTAS)
def test_quotas_that_cannot_be_are_faults(entity: str, values: str) -> None:
    rows = {f"quotas/{entity}": f'{{"v":1,"values":{values}}}'.encode()}
    assert len(Reader().read(rows).faults) == 1


def test_the_last_good_quotas_stay() -> None:
    quotas = alter(Quotas(), [(Clients("User:alice"), {Rate.PRODUCER_BYTE_RATE: 5})])
    rows, reader = {STATE: write_state(Mode.OPEN, 1), **changed_quotas(Quotas(), quotas)}, Reader()
    reader.read(rows)
    view = reader.read({**rows, "quotas/users/User:alice": b'{"v":2}'})
    assert view.faults
    assert view.quotas == quotas


KINDS = [
    "grants/User:alice",
    "state",
    "configured",
    "roles/x",
    f"keys/{'b' * 14}",
    "issuers/idp",
    "quotas/users/*",
    "producers",
    "odd/x",
]


@pytest.mark.parametrize("row", BAD.values(), ids=BAD)
@pytest.mark.parametrize("key", KINDS)
def test_a_row_that_cannot_be_read_opens_nothing(key: str, row: bytes) -> None:
    rows = written(Access(1, rules={ALICE: frozenset({A})}, super_users=frozenset({ADMIN})))
    view = Reader().read({**rows, key: row})
    assert view.mode is Mode.CLOSED
    assert not view.access.rules
    assert len(view.faults) == 1
    assert view.faults[0].startswith(key)
    if key != CONFIGURED:
        assert view.access.super_users == {ADMIN}
        assert set(view.keys) == view.configured == {FILE_KEY.id}


@pytest.mark.parametrize("row", BAD.values(), ids=BAD)
def test_what_was_read_last_stays(row: bytes) -> None:
    rows, reader = written(Access(1, rules={ALICE: frozenset({A})})), Reader()
    before = reader.read(rows)
    after = reader.read({**rows, "grants/User:bob": row})
    assert replace(after, faults=()) == before
    assert reader.read(rows).faults == (), "once it is gone, or read, all is as the rows say"


def test_rows_that_never_could_be_read_stay_closed_until_they_can() -> None:
    rows, reader = written(Access(1, rules={ALICE: frozenset({A})})), Reader()
    reader.read({**rows, "odd/x": b"?"})
    again = reader.read({**rows, "odd/x": b"!"})
    assert (again.mode, dict(again.access.rules)) == (Mode.CLOSED, {})
    assert reader.read(rows).access.rules


def test_a_newer_form_is_not_read_as_if_it_were_this_one() -> None:
    rows = written(Access(1, rules={ALICE: frozenset({A})}))
    newer = rows["grants/User:alice"].replace(b'{"v":1', b'{"v":2')
    assert Reader().read({**rows, "grants/User:alice": newer}).faults


def test_who_has_nothing_left_has_no_row() -> None:
    had = Access(1, rules={ALICE: frozenset({A})})
    assert changed_rows(had, Access(2)) == {"grants/User:alice": GONE}


def test_no_secret_and_no_fields_but_these_are_in_a_key() -> None:
    assert json.loads(write_key(KEY)[1]) == {
        "v": 1,
        "owner": "User:alice",
        "digest": bytes(range(32)).hex(),
        "created_ms": 5,
        "expires_ms": 6,
        "scope": [["allow", ["READ"], "TOPIC", "a", None]],
        "note": "for é",
    }


@given(st.text("a*_é", min_size=1, max_size=4))
def test_patterns_are_read_as_they_are_written(text: str) -> None:
    for pattern in [
        EVERY_NAME,
        *([] if text == "*" else [prefix(text)]),
        *([] if text[-1] == "*" else [literal(text)]),
    ]:
        assert parse_pattern(str(pattern)) == pattern
