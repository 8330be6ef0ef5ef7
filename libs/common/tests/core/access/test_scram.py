"""Logins by SCRAM as dialogues: both sides, and what each refuses of the other."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from libs.common.tests.kit.passwords import CORRECT, client, verifiers

from headrace_common.core.access.scram import (
    ITERATIONS,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    MESSAGE_BYTES_MAX,
    WRONG,
    ServerExchange,
    Verifier,
    check_user_name,
    make_verifier,
)
from headrace_common.core.errors import Rejected, Unauthenticated

SECRET = b"of the cluster"


def server(mechanism: str = "SCRAM-SHA-256", nonce: str = "nonceofserver") -> ServerExchange:
    return ServerExchange(mechanism, nonce, SECRET)


def first_answer(exchange: ServerExchange, message: bytes, known: tuple[Verifier, ...] = ()) -> bytes:
    exchange.read_user(message)
    return exchange.first(message, known)


def refusal(step: Callable[[], object]) -> str:
    with pytest.raises(Unauthenticated) as caught:
        step()
    return str(caught.value)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_who_has_the_password_is_let_in_and_knows_the_server(mechanism: str) -> None:
    asks, answers = client(mechanism=mechanism), server(mechanism)
    challenge = first_answer(answers, asks.first(), verifiers())
    assert answers.user == "alice"
    said, at = answers.last(asks.last(challenge))
    assert at == 0
    asks.check(said)


def test_of_two_passwords_with_one_salt_either_counts() -> None:
    both = verifiers() + verifiers("another good one")
    for password, expected in ((CORRECT, 0), ("another good one", 1)):
        asks, answers = client(password=password), server()
        said, at = answers.last(asks.last(first_answer(answers, asks.first(), both)))
        asks.check(said)
        assert at == expected


def test_a_wrong_password_and_a_user_who_is_not_there_look_the_same() -> None:
    known, nobody = server(), server()
    wrong, stranger = client(password="wrong password"), client("mallory")
    answers = [first_answer(known, wrong.first(), verifiers()), first_answer(nobody, stranger.first())]
    shapes = [[part[:2] for part in answer.decode().split(",")] for answer in answers]
    assert shapes[0] == shapes[1] == ["r=", "s=", "i="]
    assert refusal(lambda: known.last(wrong.last(answers[0]))) == WRONG
    assert refusal(lambda: nobody.last(stranger.last(answers[1]))) == WRONG


def test_who_is_not_there_has_the_same_salt_at_each_node_and_another_in_each_cluster() -> None:
    message = client("mallory").first()
    again = [first_answer(server(), message), first_answer(server(), message)]
    elsewhere = first_answer(ServerExchange("SCRAM-SHA-256", "nonceofserver", b"of another"), message)
    other = first_answer(server(), client("mallet").first())
    assert again[0] == again[1]
    assert len({again[0], elsewhere, other}) == 3
    assert f"i={ITERATIONS}" in again[0].decode()
    assert len(again[0].decode().split("s=")[1].split(",")[0]) == 32, "as long as the salts that our clients make"


def test_nobody_gets_in_as_who_is_not_there_even_by_what_the_server_compares_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ServerExchange, "_nobody", lambda self, user: verifiers()[0])
    answers, asks = server(), client("mallory")
    last = asks.last(first_answer(answers, asks.first()))
    assert refusal(lambda: answers.last(last)) == WRONG


@pytest.mark.parametrize("at", range(13))
def test_a_nonce_that_was_tampered_with_is_refused_whichever_letter_it_is(at: int) -> None:
    asks, answers = client(), server()
    challenge = first_answer(answers, asks.first(), verifiers()).decode()
    mine = challenge[2 + at]
    other = "X" if mine != "X" else "Y"
    refusal(lambda: asks.last((challenge[: 2 + at] + other + challenge[3 + at :]).encode()))


@pytest.mark.parametrize("at", range(13))
def test_the_server_compares_its_own_nonce_too(at: int) -> None:
    asks, answers = client(), server()
    last = asks.last(first_answer(answers, asks.first(), verifiers())).decode()
    place = last.index("nonceofserver") + at
    assert refusal(lambda: answers.last((last[:place] + "X" + last[place + 1 :]).encode())) == WRONG


def test_what_was_said_once_is_worth_nothing_in_another_login() -> None:
    asks, answers = client(), server()
    last = asks.last(first_answer(answers, asks.first(), verifiers()))
    answers.last(last)
    later = server(nonce="anotherofserver")
    first_answer(later, client().first(), verifiers())
    assert refusal(lambda: later.last(last)) == WRONG
    assert refusal(lambda: answers.last(last)), "nor twice in the same"


@pytest.mark.parametrize("rounds", [1, ITERATIONS_MIN - 1, ITERATIONS_MAX + 1, 2**31 - 1, 0, -1])
def test_a_client_hashes_as_often_as_is_sensible_and_no_more(rounds: int) -> None:
    asks = client()
    asks.first()
    challenge = f"r=nonceofclientmore,s=c2FsdCBvZiB0d2VudHk=,i={rounds}".encode()
    refusal(lambda: asks.last(challenge))


@pytest.mark.parametrize("rounds", [ITERATIONS_MIN - 1, ITERATIONS_MAX + 1])
def test_what_is_kept_of_a_password_has_bounds(rounds: int) -> None:
    good = verifiers()[0]
    with pytest.raises(Rejected):
        Verifier(good.mechanism, good.salt, rounds, good.stored_key, good.server_key)
    for salt in (b"short", bytes(65)):
        with pytest.raises(Rejected):
            Verifier(good.mechanism, salt, ITERATIONS, good.stored_key, good.server_key)
    for keys in ((good.stored_key[:-1], good.server_key), (good.stored_key, b"")):
        with pytest.raises(Rejected):
            Verifier(good.mechanism, good.salt, ITERATIONS, *keys)
    with pytest.raises(Rejected):
        Verifier("SCRAM-SHA-1", good.salt, ITERATIONS, good.stored_key, good.server_key)


def test_a_server_that_does_not_know_the_password_is_found_out() -> None:
    asks, answers = client(), server()
    said, _ = answers.last(asks.last(first_answer(answers, asks.first(), verifiers())))
    forged = said[:-6] + (b"AAAAA=" if not said.endswith(b"AAAAA=") else b"BBBBB=")
    refusal(lambda: asks.check(forged))


@given(st.binary(max_size=80) | st.text(max_size=80).map(str.encode))
def test_nonsense_is_refused_with_a_sentence(message: bytes) -> None:
    exchange = server()
    try:
        first_answer(exchange, message, verifiers())
    except Unauthenticated:
        return
    refusal(lambda: exchange.last(message))


@pytest.mark.parametrize(
    "message",
    [b"", b"n,,n=alice", b"p=tls-unique,,n=alice,r=abc", b"n,a=admin,n=alice,r=abc", b"n,,m=x,n=alice,r=abc", b"\xff"],
)
def test_what_is_not_taken_of_the_protocol(message: bytes) -> None:
    refusal(lambda: first_answer(server(), message, verifiers()))


def test_long_messages_and_other_mechanisms_are_refused_unread() -> None:
    refusal(lambda: first_answer(server(), b"n,,n=alice,r=" + b"a" * MESSAGE_BYTES_MAX))
    for mechanism in ("PLAIN", "SCRAM-SHA-1", "SCRAM-SHA-256-PLUS", ""):
        assert "SCRAM-SHA-256" in refusal(lambda mechanism=mechanism: server(mechanism))


def test_a_name_that_passwords_write_otherwise_is_none_for_a_user() -> None:
    for name in ("alice", "alice@example.com", "a=b,c", "é"):
        check_user_name(name)
    for name in ("ﬁne", "a\u00a0b", "a\u0000"):
        with pytest.raises(Rejected):
            check_user_name(name)


@pytest.mark.parametrize("user", ["a=b,c", "é", "svc-1"])
def test_names_are_escaped_on_their_way(user: str) -> None:
    assert server().read_user(client(user).first()) == user


def test_a_verifier_is_as_rfc_7677_has_it() -> None:
    """The example of its section 3, whose proof is computed from these keys."""
    made = make_verifier("SCRAM-SHA-256", "pencil", b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4_096)
    exchange = ServerExchange("SCRAM-SHA-256", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", SECRET)
    exchange.read_user(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    exchange.first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO", [made])
    proof = (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert exchange.last(proof) == (b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", 0)
