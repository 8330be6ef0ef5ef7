"""The file with issuers, and the rows that are due of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from libs.common.tests.kit.issuer import NOW_MS, SigningIssuer, jwk, key_set, make_key

from headrace_common.core.access.issuers import DEFAULT_ALGORITHMS, Issuer, IssuerKeys, SignOn
from headrace_common.core.access.key_sets import PublicKey, read_key_set
from headrace_common.core.access.rows import GONE, Mode, Reader, View, write_issuer
from headrace_common.core.errors import InvalidConfig
from headrace_controller.adapters.issuers_file import read_issuers
from headrace_controller.core.issuing import (
    CONFIRM_EVERY_MS,
    Address,
    Fetched,
    InFile,
    WantedIssuer,
    due_rows,
    of_kubernetes,
    parse_issuers,
)

IDP = {
    "alias": "idp",
    "iss": "https://login.example.com",
    "audiences": ["headrace"],
    "jwks": "https://login.example.com/keys",
}
ONE, TWO, THREE = (read_key_set(key_set(jwk(make_key(algorithm))))[0] for algorithm in ("ES256", "ES384", "EdDSA"))
(WANTED,) = parse_issuers(json.dumps([IDP]))
KUBERNETES = of_kubernetes("headrace:streams/main")
API_SERVER = "https://kubernetes.default.svc"


def view_of(*known: IssuerKeys) -> View:
    return View(Mode.CLOSED, issuers={one.issuer.alias: one for one in known})


def fetched(*keys: PublicKey, at_ms: int = NOW_MS, iss: str = "") -> Fetched:
    return Fetched(keys, at_ms, iss)


# --- The file


def test_an_issuer_as_short_as_it_may_be() -> None:
    assert (
        WantedIssuer(
            Issuer("idp", "https://login.example.com", frozenset({"headrace"}), DEFAULT_ALGORITHMS),
            Address("login.example.com", 443, "/keys"),
        )
        == WANTED
    )


def test_an_issuer_with_everything() -> None:
    more = {
        "jwks": "https://[::1]:8443/a/b?c=d&e",
        "ca_file": "/etc/ca.crt",
        "algorithms": ["PS512"],
        "principal_claim": "email",
        "groups_claim": "roles",
        "groups_prefix": "idp:",
    }
    (wanted,) = parse_issuers(json.dumps([{**IDP, **more}]))
    assert wanted.source == Address("::1", 8443, "/a/b?c=d&e", "/etc/ca.crt")
    assert wanted.issuer == Issuer(
        "idp",
        IDP["iss"],
        frozenset({"headrace"}),
        frozenset({"PS512"}),
        principal_claim="email",
        groups_claim="roles",
        groups_prefix="idp:",
    )


def test_keys_may_be_in_a_file_or_at_the_root_of_a_host() -> None:
    in_file, at_root = parse_issuers(
        json.dumps([{**IDP, "jwks": "file:///etc/keys.json"}, {**IDP, "jwks": "https://x"}])
    )
    assert (in_file.source, at_root.source) == (InFile("/etc/keys.json"), Address("x", 443, "/"))


BAD: dict[str, tuple[Any, str]] = {
    "no list": (IDP, "no list"),
    "no object": (["idp"], "issuer 1: it is no object"),
    "an unknown field": ([{**IDP, "secret": "x"}], "issuer 1: there is no secret; there are algorithms"),
    "nothing": ([{}], "issuer 1: it has no alias, iss, audiences, jwks"),
    "an iss that is a number": ([{**IDP, "iss": 5}], "iss is a text"),
    "an audience that is a text": ([{**IDP, "audiences": "headrace"}], "audiences is a list"),
    "an audience that is a number": ([{**IDP, "audiences": [5]}], "audiences is a list"),
    "no audience": ([{**IDP, "audiences": []}], "audiences has 1 to"),
    "an algorithm with a secret": ([{**IDP, "algorithms": ["HS256"]}], "algorithms has HS256"),
    "the second": ([IDP, {**IDP, "alias": "A"}], "issuer 2: issuer 'A': its alias"),
    "the alias of pods": ([{**IDP, "alias": "kubernetes"}], "see kubernetes_audience"),
    "plain HTTP": ([{**IDP, "jwks": "http://login.example.com/keys"}], "https://HOST/PATH"),
    "no scheme": ([{**IDP, "jwks": "login.example.com/keys"}], "https://HOST/PATH"),
    "no host": ([{**IDP, "jwks": "https:///keys"}], "https://HOST/PATH"),
    "a user": ([{**IDP, "jwks": "https://a:b@login.example.com/keys"}], "a user"),
    "a fragment": ([{**IDP, "jwks": "https://x/keys#a"}], "a fragment"),
    "a port that is none": ([{**IDP, "jwks": "https://x:99999/keys"}], "https://HOST/PATH"),
    "a line in it": ([{**IDP, "jwks": "https://x/keys\r\nHost: y"}], "without spaces"),
    "a space": ([{**IDP, "jwks": "https://x/a b"}], "without spaces"),
    "other letters": ([{**IDP, "jwks": "https://ä/keys"}], "other letters"),
    "a file that is relative": ([{**IDP, "jwks": "file:keys.json"}], "https://HOST/PATH"),
    "a file elsewhere": ([{**IDP, "jwks": "file://host/keys.json"}], "https://HOST/PATH"),
    "a CA of a file": ([{**IDP, "jwks": "file:///keys.json", "ca_file": "ca"}], "ca_file is for keys"),
    "an alias twice": ([IDP, {**IDP, "iss": "https://x"}], "two issuers have the alias 'idp'"),
    "an iss twice": ([IDP, {**IDP, "alias": "b"}], "two issuers have the iss"),
    "too many": ([{**IDP, "alias": f"a{n}", "iss": f"https://{n}"} for n in range(33)], "33 issuers; 32"),
}


@pytest.mark.parametrize(("written", "said"), BAD.values(), ids=BAD)
def test_a_file_that_says_something_else_is_refused(tmp_path: Path, written: Any, said: str) -> None:
    path = tmp_path / "issuers.json"
    path.write_text(json.dumps(written))
    with pytest.raises(InvalidConfig) as raised:
        read_issuers(path, None)
    assert str(raised.value).startswith(f"oidc_issuers_file {path}: ")
    assert said in str(raised.value)


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b"[" * 100_000], ids=repr)
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "issuers.json"
    for wanted in (None, raw):
        if wanted is not None:
            path.write_bytes(wanted)
        with pytest.raises(InvalidConfig, match="oidc_issuers_file"):
            read_issuers(path, None)


def test_kubernetes_is_one_more(tmp_path: Path) -> None:
    path = tmp_path / "issuers.json"
    path.write_text(json.dumps([IDP]))
    assert read_issuers(path, "headrace:streams/main") == (WANTED, KUBERNETES)
    assert read_issuers(None, "headrace:streams/main") == (KUBERNETES,)
    assert read_issuers(None, None) == ()


# --- Rows


def test_an_issuer_has_a_row_once_its_keys_are_there() -> None:
    assert due_rows([WANTED], view_of(), {}) == {}
    known = IssuerKeys(WANTED.issuer, (ONE,), NOW_MS)
    assert due_rows([WANTED], view_of(), {"idp": fetched(ONE)}) == dict([write_issuer(known)])


@pytest.mark.parametrize(
    ("keys", "later_ms", "written"),
    [
        ((ONE, TWO), CONFIRM_EVERY_MS - 1, False),
        ((TWO, ONE), CONFIRM_EVERY_MS - 1, False),
        ((ONE, TWO), CONFIRM_EVERY_MS, True),
        ((ONE, TWO), -CONFIRM_EVERY_MS, True),
        ((ONE,), 1, True),
        ((ONE, TWO, THREE), 1, True),
    ],
)
def test_a_row_is_written_when_keys_change_or_once_an_hour(
    keys: tuple[PublicKey, ...], later_ms: int, written: bool
) -> None:
    view = view_of(IssuerKeys(WANTED.issuer, (ONE, TWO), NOW_MS))
    due = due_rows([WANTED], view, {"idp": fetched(*keys, at_ms=NOW_MS + later_ms)})
    assert bool(due) is written
    if written:
        assert due == dict([write_issuer(IssuerKeys(WANTED.issuer, keys, NOW_MS + later_ms))])


def test_what_is_configured_otherwise_is_so_at_once_with_the_keys_that_are_there() -> None:
    known = IssuerKeys(WANTED.issuer, (ONE,), NOW_MS)
    other = replace(WANTED, issuer=replace(WANTED.issuer, audiences=frozenset({"other"})))
    assert due_rows([other], view_of(known), {}) == dict([write_issuer(replace(known, issuer=other.issuer))])
    assert due_rows([WANTED], view_of(known), {}) == {}


def test_keys_of_one_issuer_are_never_those_of_another_by_its_alias() -> None:
    known = IssuerKeys(WANTED.issuer, (ONE,), NOW_MS)
    other = replace(WANTED, issuer=replace(WANTED.issuer, iss="https://other.example.com"))
    assert due_rows([other], view_of(known), {}) == {"issuers/idp": GONE}
    found = due_rows([other], view_of(known), {"idp": fetched(TWO)})
    assert found == dict([write_issuer(IssuerKeys(other.issuer, (TWO,), NOW_MS))])


def test_who_is_not_configured_any_more_has_no_row() -> None:
    known, own = IssuerKeys(WANTED.issuer, (ONE,), NOW_MS), IssuerKeys(KUBERNETES.named(API_SERVER), (TWO,), NOW_MS)
    assert due_rows([], view_of(known, own), {}) == {"issuers/idp": GONE, "issuers/kubernetes": GONE}
    assert due_rows([KUBERNETES], view_of(known, own), {"idp": fetched(ONE)}) == {"issuers/idp": GONE}


def test_an_api_server_says_what_it_is_called() -> None:
    found = {"kubernetes": fetched(ONE, iss=API_SERVER)}
    known = IssuerKeys(replace(KUBERNETES.issuer, iss=API_SERVER), (ONE,), NOW_MS)
    assert due_rows([KUBERNETES], view_of(), found) == dict([write_issuer(known)])
    assert due_rows([KUBERNETES], view_of(known), {}) == {}, "a controller that has not asked yet leaves it"
    moved = {"kubernetes": fetched(ONE, iss="https://other")}
    assert due_rows([KUBERNETES], view_of(known), moved)
    other = of_kubernetes("headrace:streams/other")
    (row,) = due_rows([other], view_of(known), {}).values()
    assert json.loads(row)["audiences"] == ["headrace:streams/other"]
    assert json.loads(row)["iss"] == API_SERVER


ISSUERS = [
    WANTED,
    replace(WANTED, issuer=replace(WANTED.issuer, audiences=frozenset({"other"}))),
    replace(WANTED, issuer=replace(WANTED.issuer, iss="https://other")),
    replace(WANTED, issuer=replace(WANTED.issuer, alias="b", iss="https://b")),
    KUBERNETES,
]
KEYS = st.lists(st.sampled_from([ONE, TWO, THREE]), min_size=1, unique=True).map(tuple)
FOUND = st.builds(Fetched, KEYS, st.integers(NOW_MS, NOW_MS + 2 * CONFIRM_EVERY_MS), st.just(API_SERVER))
ROWS = st.dictionaries(st.sampled_from(["idp", "b", "kubernetes"]), FOUND)
CONFIGURED = st.lists(st.sampled_from(ISSUERS), unique_by=lambda one: one.issuer.alias)


@given(st.lists(st.tuples(CONFIGURED, ROWS), max_size=5))
def test_rows_are_of_who_is_configured_and_nothing_is_due_twice(
    steps: list[tuple[list[WantedIssuer], Mapping[str, Fetched]]],
) -> None:
    reader, rows = Reader(), dict[str, bytes]()
    for wanted, found in steps:
        changed = due_rows(wanted, reader.view, found)
        assert all(rows.get(name) != row for name, row in changed.items())
        rows = {name: row for name, row in {**rows, **changed}.items() if row != GONE}
        view = reader.read(rows)
        assert due_rows(wanted, view, found) == {}
        configured = {one.issuer.alias: one for one in wanted}
        assert set(view.issuers) <= set(configured)
        for alias, known in view.issuers.items():
            assert known.issuer == configured[alias].named(API_SERVER)
        assert {alias for alias in found if alias in configured} <= set(view.issuers)


def test_the_row_is_what_nodes_verify_by() -> None:
    idp = SigningIssuer(WANTED.issuer)
    rows = due_rows([WANTED], view_of(), {"idp": fetched(*idp.known.keys)})
    assert dict(Reader().read(rows).issuers) == idp.all


# --- How people log in there

SIGN_ON = {**IDP, "audiences": ["cli"], "client_id": "cli"}


def test_people_log_in_where_the_issuer_has_a_client_for_it() -> None:
    (short,), (long,) = (
        parse_issuers(json.dumps([SIGN_ON | more]))
        for more in ({}, {"audiences": ["api"], "scopes": ["api/.default"], "token": "access_token"})
    )
    assert WANTED.sign_on is None
    assert short.sign_on == SignOn("cli", ("openid",), "id_token")
    assert long.sign_on == SignOn("cli", ("api/.default",), "access_token")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"client_id": None}, "client_id is a text"),
        ({"client_id": ""}, "what the issuer calls"),
        ({"scopes": []}, "1 to 32 words"),
        ({"scopes": ["openid profile"]}, "1 to 32 words"),
        ({"scopes": ["openid"] * 33}, "1 to 32 words"),
        ({"scopes": ["profile"]}, "no openid"),
        ({"scopes": "openid"}, "list of texts"),
        ({"token": "refresh_token"}, "id_token or access_token"),
        ({"audiences": ["api"]}, "audiences needs cli"),
        ({"iss": "login.example.com"}, "begin with https"),
        ({"iss": "http://login.example.com"}, "begin with https"),
    ],
    ids=repr,
)
def test_how_people_cannot_log_in(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        parse_issuers(json.dumps([SIGN_ON | fields]))
    for alone in ("scopes", "token"):
        with pytest.raises(InvalidConfig, match="needs client_id"):
            parse_issuers(json.dumps([IDP | {alone: ["openid"] if alone == "scopes" else "id_token"}]))


def test_how_people_log_in_is_in_the_row_and_a_change_of_it_takes_back_no_token() -> None:
    (wanted,) = parse_issuers(json.dumps([SIGN_ON]))
    known = IssuerKeys(wanted.issuer, (ONE,), NOW_MS)
    for found in ({}, {"idp": fetched(ONE, at_ms=NOW_MS + 1)}):
        row = due_rows([wanted], view_of(known), found)["issuers/idp"]
        view = Reader().read({"issuers/idp": row})
        assert view.issuers["idp"].sign_on == wanted.sign_on
        assert view.issuers["idp"].issuer == known.issuer
        assert due_rows([wanted], view, found) == {}
    old = json.loads(write_issuer(known)[1])
    del old["sign_on"]
    assert Reader().read({"issuers/idp": json.dumps(old).encode()}).issuers["idp"] == known
