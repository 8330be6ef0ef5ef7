"""Keys of tasks: what they are for, how long they last, when they are made, and when there are none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from headrace_common.core.errors import (
    ClusterAuthorizationFailed,
    ErrorCode,
    HeadraceError,
    NetworkFailed,
    Rejected,
    Unauthenticated,
    UnsupportedVersion,
)
from headrace_common.core.secret import Secret
from headrace_spark.adapters.sdk_keys import query_keys, shared_keys
from headrace_spark.core.options import ConnectorOptions, Mode
from headrace_spark.core.task_keys import (
    AS_BEFORE_MS,
    NOTE,
    OVER_MAX,
    OWNED_MAX,
    TOPICS_MAX,
    reading_scope,
    writing_scope,
)

from .keys import DAY_MS, Keyring, install_keyring

HOUR_MS = 3_600_000
ORDERS = reading_scope(["orders"])


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> Keyring:
    return install_keyring(monkeypatch)


def options(mode: Mode = Mode.READ_STREAM, **more: str) -> ConnectorOptions:
    where = {} if mode.writes else {"subscribe": "orders"}
    given = {"kafka.bootstrap.servers": "b:1", "headrace.token": "hrk_own"} | where
    return ConnectorOptions.parse(given | more, mode)


def scope_of(**more: str) -> list[str]:
    scope = writing_scope(options(Mode.WRITE_STREAM, **more))
    assert scope is not None
    return sorted(map(str, scope))


def shown(secret: Secret) -> str:
    return secret.reveal()


# --- what for -----------------------------------------------------------------------------------------------------


def test_who_reads_may_read_its_topics() -> None:
    assert sorted(map(str, reading_scope(["b", "a", "__system"]))) == [
        "allow READ TOPIC __system",
        "allow READ TOPIC a",
        "allow READ TOPIC b",
    ]


def test_of_very_many_topics_the_beginning_is_named() -> None:
    some = [f"orders-{n}" for n in range(TOPICS_MAX)]
    assert len(reading_scope(some)) == TOPICS_MAX
    assert list(map(str, reading_scope([*some, "orders-x"]))) == ["allow READ TOPIC orders-*"]
    assert list(map(str, reading_scope([*some, "order"]))) == ["allow READ TOPIC order*"]
    assert list(map(str, reading_scope([*some, "x"]))) == ["allow READ TOPIC *"]
    assert sorted(map(str, reading_scope([*some, "__a"]))) == ["allow READ TOPIC __a", "allow READ TOPIC orders-*"]


def test_who_writes_may_write_its_topic_and_its_transactions() -> None:
    assert scope_of(topic="t", transactionalId="q") == [
        "allow WRITE TOPIC t",
        "allow WRITE TRANSACTIONAL_ID q",
        "allow WRITE TRANSACTIONAL_ID q.*",
        "allow WRITE TRANSACTIONAL_ID q/*",
    ]
    assert scope_of(topic="t", transactional="false") == ["allow WRITE TOPIC t"]


def test_what_only_tasks_know_no_key_can_name() -> None:
    assert scope_of(topic="t") == ["allow WRITE TOPIC t", "allow WRITE TRANSACTIONAL_ID *"]
    assert scope_of(transactionalId="q*")[0] == "allow WRITE TOPIC *"
    assert writing_scope(options(Mode.WRITE_BATCH, topic="t", transactionalId="__q")) is None


# --- when ---------------------------------------------------------------------------------------------------------


def test_a_stream_has_a_key_of_an_hour_and_gives_it_to_batches_until_two_thirds_are_over(ring: Keyring) -> None:
    keys = query_keys(options())
    assert keys is not None
    assert [shown(keys.key(ORDERS)) for _ in range(2)] == ["hrk_k1"] * 2
    assert ring.shown == [Secret("hrk_own")], "the driver asks with its own"
    ring.clock.ms += 2 / 3 * HOUR_MS - 1
    assert shown(keys.key(ORDERS)) == "hrk_k1"
    ring.clock.ms += 1
    assert shown(keys.key(ORDERS)) == "hrk_k2"
    assert ring.lifetimes_ms == [HOUR_MS] * 2
    assert {key.note for key in ring.owned} == {NOTE}


def test_other_topics_need_another_key_which_is_no_wider(ring: Keyring) -> None:
    keys = query_keys(options())
    assert keys is not None
    both = reading_scope(["orders", "more"])
    assert [shown(keys.key(scope)) for scope in (both, ORDERS, both, ORDERS)] == ["hrk_k1", "hrk_k2"] * 2
    assert [len(grants) for grants in ring.made] == [2, 1]


def test_the_key_of_a_stream_is_deleted_when_it_ends(ring: Keyring, caplog: pytest.LogCaptureFixture) -> None:
    keys = query_keys(options())
    assert keys is not None
    keys.close()
    assert ring.deleted == [], "there is none yet"
    keys.key(ORDERS)
    keys.close()
    keys.close()
    assert ring.deleted == [["k1"]]
    for _ in range(3):
        keys.key(ORDERS)
        ring.clock.ms += 2 / 3 * HOUR_MS
    keys.key(ORDERS)
    keys.close()
    assert ring.deleted[1:] == [["k4", "k5"]], "k2 and k3 are over"
    ring.fails["delete_keys"] = NetworkFailed("gone")
    keys.key(ORDERS)
    keys.close()
    assert "ends by itself: gone" in caplog.text


def test_a_key_of_a_batch_lasts_a_day_and_those_within_an_hour_share_it(ring: Keyring) -> None:
    def planned(**more: str) -> str:
        keys = shared_keys(options(Mode.READ_BATCH, **more))
        assert keys is not None
        return shown(keys.key(ORDERS))

    assert [planned(), planned()] == ["hrk_k1"] * 2
    assert planned(**{"headrace.token": "hrk_another"}) == "hrk_k2", "whoever shows another has keys of its own"
    ring.clock.ms += HOUR_MS
    assert planned() == "hrk_k3"
    assert ring.lifetimes_ms == [DAY_MS] * 3


def test_how_long_keys_last_can_be_said(ring: Keyring) -> None:
    keys = query_keys(options(taskKeyLifetime="3h"))
    assert keys is not None
    keys.key(ORDERS)
    ring.clock.ms += 2 * HOUR_MS - 1
    keys.key(ORDERS)
    assert ring.lifetimes_ms == [3 * HOUR_MS]
    ring.clock.ms += 1
    keys.key(ORDERS)
    assert ring.lifetimes_ms == [3 * HOUR_MS] * 2


def test_a_key_ends_before_the_one_that_it_is_made_with(ring: Keyring) -> None:
    ring.expires_ms = int(ring.clock.ms) + 660_000
    keys = query_keys(options())
    assert keys is not None
    keys.key(ORDERS)
    assert ring.lifetimes_ms == [600_000]
    ring.clock.ms += 400_000
    assert shown(keys.key(ORDERS)) == "hrk_k2", "two thirds of what it has"


def test_without_a_secret_that_would_travel_there_are_none() -> None:
    given = {"kafka.bootstrap.servers": "b:1", "subscribe": "orders", "headrace.tokenFile": "/key"}
    parsed = ConnectorOptions.parse(given, Mode.READ_BATCH)
    assert (query_keys(parsed), shared_keys(parsed)) == (None, None)


# --- when not -----------------------------------------------------------------------------------------------------

MANY = Rejected("User:driver has 1000 API keys", code=ErrorCode.POLICY_VIOLATION)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"mode": "open"}, "the cluster is open"),
        ({"key_id": None}, "it is no API key"),
        ({"expires_ms": 1_059_999}, "it ends within a minute"),
        ({"fails": {"create_key": ClusterAuthorizationFailed("User:driver may not CREATE_TOKENS")}}, "CREATE_TOKENS"),
        ({"fails": {"create_key": UnsupportedVersion("below level 7")}}, "below level 7"),
        ({"fails": {"who_am_i": UnsupportedVersion("the server does not know this")}}, "does not know this"),
        ({"fails": {"create_key": MANY}}, "has 1000 API keys"),
        ({"owned": [SimpleNamespace(id=str(n), note="", expires_ms=None) for n in range(OWNED_MAX)]}, "has 500 keys"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_where_no_key_can_be_made_tasks_have_what_the_driver_has(
    ring: Keyring, change: dict[str, object], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in change.items():
        setattr(ring, name, value)
    keys = query_keys(options())
    assert keys is not None
    assert [shown(keys.key(ORDERS)) for _ in range(2)] == ["hrk_own"] * 2
    (said,) = caplog.messages
    assert why in said
    assert "hrk_" not in said
    keys.close()
    assert ring.deleted == [], "what the driver shows is not a key of the query's"


def test_it_is_asked_again_later(ring: Keyring) -> None:
    keys = query_keys(options())
    assert keys is not None
    ring.fails["create_key"] = ClusterAuthorizationFailed("no")
    keys.key(ORDERS)
    del ring.fails["create_key"]
    ring.clock.ms += AS_BEFORE_MS - 1
    assert shown(keys.key(ORDERS)) == "hrk_own"
    ring.clock.ms += 1
    assert shown(keys.key(ORDERS)) == "hrk_k1"


def test_names_of_the_system_are_written_with_what_the_driver_shows(
    ring: Keyring, caplog: pytest.LogCaptureFixture
) -> None:
    keys = shared_keys(options(Mode.WRITE_BATCH, topic="t"))
    assert keys is not None
    assert shown(keys.key(None)) == "hrk_own"
    assert ring.made == []
    assert "no key can name" in caplog.text


@pytest.mark.parametrize("call", ["who_am_i", "list_keys", "create_key"])
@pytest.mark.parametrize("error", [NetworkFailed("nobody is there"), Unauthenticated("no such key"), Rejected("?")])
def test_who_does_not_answer_gets_no_credential_sent_around(ring: Keyring, call: str, error: HeadraceError) -> None:
    keys = query_keys(options())
    assert keys is not None
    ring.fails[call] = error
    with pytest.raises(type(error)):
        keys.key(ORDERS)
    del ring.fails[call]
    assert shown(keys.key(ORDERS)) == "hrk_k1"


# --- none are piled up ---------------------------------------------------------------------------------------------


def test_keys_of_ours_that_are_over_are_deleted_when_they_are_many(ring: Keyring) -> None:
    over = [SimpleNamespace(id=f"o{n}", note=NOTE, expires_ms=0) for n in range(OVER_MAX - 1)]
    others = [
        SimpleNamespace(id="theirs", note="", expires_ms=0),
        SimpleNamespace(id="good", note=NOTE, expires_ms=None),
    ]
    ring.owned = [*over, *others]
    keys = query_keys(options())
    assert keys is not None
    keys.key(ORDERS)
    assert ring.deleted == []
    ring.owned.append(SimpleNamespace(id="now", note=NOTE, expires_ms=int(ring.clock.ms) - 59_999))
    keys.key(reading_scope(["now"]))
    assert ring.deleted == [], "of the cluster's clock this one may not be over"
    ring.owned.append(SimpleNamespace(id="o", note=NOTE, expires_ms=int(ring.clock.ms) - 60_000))
    keys.key(reading_scope(["more"]))
    assert ring.deleted == [[*(key.id for key in over), "o"]]
    assert shown(keys.key(reading_scope(["most"]))) == "hrk_k4"
