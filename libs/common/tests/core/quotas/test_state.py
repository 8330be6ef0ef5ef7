"""Which quota holds: after Kafka's list; and what can be set."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from libs.common.tests.kit.access import ALICE, BOB, CERT
from libs.common.tests.kit.quotas import (
    CHANGES,
    CLIENT_IDS,
    ENTITIES,
    USERS,
    all_quotas,
    place_by_documentation,
)

from headrace_common.core.access.principal import ANONYMOUS, Principal, PrincipalType, parse_principal
from headrace_common.core.errors import ErrorCode, Rejected
from headrace_common.core.quotas.entities import DEFAULT, Clients, Entity, Prefix
from headrace_common.core.quotas.kinds import Limit, Quota, Rate, check_value, quota_named
from headrace_common.core.quotas.state import BATCH_MAX, ENTITIES_MAX, Holding, Quotas, alter

WRITES = Rate.PRODUCER_BYTE_RATE
RATES = sorted(Rate, key=lambda rate: rate.value)
NODE = Principal(PrincipalType.NODE, "broker-1")


def quotas_of(*values: tuple[Entity, Quota, float]) -> Quotas:
    return alter(Quotas(), [(entity, {quota: value}) for entity, quota, value in values])


@given(all_quotas, st.sampled_from(RATES), st.sampled_from([*USERS, "User:carol"]), st.sampled_from([*CLIENT_IDS, "x"]))
def test_a_rate_is_found_where_kafka_finds_it(quotas: Quotas, rate: Rate, user: str, client_id: str) -> None:
    found = quotas.find_rate(rate, parse_principal(user), client_id)
    documented = place_by_documentation(quotas, rate, user, client_id)
    assert (None if found is None else (*found.group, found.value)) == documented
    if found is not None:
        assert quotas.values[found.entity][rate] == found.value


def test_places_are_asked_in_kafkas_order() -> None:
    """All eight are set; each time the one that holds is taken away."""
    places = [
        Clients("User:alice", "app"),
        Clients("User:alice", DEFAULT),
        Clients("User:alice"),
        Clients(DEFAULT, "app"),
        Clients(DEFAULT, DEFAULT),
        Clients(DEFAULT),
        Clients(None, "app"),
        Clients(None, DEFAULT),
    ]
    quotas = alter(Quotas(), [(entity, {WRITES: nth + 1}) for nth, entity in enumerate(reversed(places))])
    groups = []
    for place in places:
        found = quotas.find_rate(WRITES, ALICE, "app")
        assert found is not None
        assert found.entity == place
        groups.append(found.group)
        quotas = alter(quotas, [(place, {WRITES: None})])
    assert quotas == Quotas()
    assert quotas.find_rate(WRITES, ALICE, "app") is None
    both, user, client_id = ("User:alice", "app"), ("User:alice", ""), ("", "app")
    assert groups == [both, both, user, both, both, user, client_id, client_id]


@pytest.mark.parametrize("shown", ["", "*", "a\nb", "a" * 256])
def test_who_shows_no_client_id_does_not_escape_the_defaults(shown: str) -> None:
    quotas = quotas_of((Clients("User:alice", DEFAULT), WRITES, 5), (Clients(None, DEFAULT), WRITES, 6))
    assert quotas.find_rate(WRITES, ALICE, shown) == Holding(5, ("User:alice", ""), Clients("User:alice", DEFAULT))
    assert quotas.find_rate(WRITES, BOB, shown) == Holding(6, ("", ""), Clients(None, DEFAULT))


def test_types_of_principals_never_mix_and_who_has_no_credential_is_a_user() -> None:
    quotas = quotas_of((Clients("User:alice"), WRITES, 5), (Clients(str(ANONYMOUS)), WRITES, 7))
    assert quotas.find_rate(WRITES, CERT, "app") is None
    found = quotas.find_rate(WRITES, ANONYMOUS, "app")
    assert found is not None
    assert found.value == 7


def test_each_rate_is_looked_for_by_itself() -> None:
    quotas = quotas_of((Clients("User:alice"), WRITES, 5), (Clients(None, "app"), Rate.CONSUMER_BYTE_RATE, 6))
    found = [
        quotas.find_rate(rate, ALICE, "app")
        for rate in (WRITES, Rate.CONSUMER_BYTE_RATE, Rate.CONTROLLER_MUTATION_RATE)
    ]
    assert [one and one.value for one in found] == [5, 6, None]


def test_nodes_have_no_quota() -> None:
    every = alter(Quotas(), [(entity, dict.fromkeys(entity.quotas, 1)) for entity in ENTITIES])
    assert [every.find_rate(rate, NODE, "app") for rate in RATES] == [None] * len(RATES)


def test_limits_of_every_prefix_hold_together() -> None:
    topics = Limit.TOPICS
    orders, eu = (Prefix("orders."), 3), (Prefix("orders.eu."), 4)
    quotas = quotas_of((orders[0], topics, 3), (eu[0], topics, 4), (Prefix("orders.eu"), Limit.PARTITIONS, 5))
    assert quotas.find_limits(topics, "orders.eu.x") == (orders, eu)
    assert quotas.find_limits(topics, "orders.") == (orders,)
    assert quotas.find_limits(topics, "orders") == ()
    assert quotas.find_limits(topics, "__orders") == ()
    assert quotas.find_limits(Limit.PARTITIONS, "orders.eu.x") == ((Prefix("orders.eu"), 5),)


@given(all_quotas, st.sampled_from(CHANGES), st.sampled_from(RATES))
def test_a_batch_sets_and_takes_away_what_it_names_and_nothing_else(
    before: Quotas, change: tuple[Entity, dict[Quota, float]], taken: Rate
) -> None:
    entity, put = change
    takes = {taken: None} if taken in entity.quotas and taken not in put else {}
    was = dict(before.values)
    after = alter(before, [(entity, {**put, **takes})])
    assert before.values == was
    kept = {quota: value for quota, value in was.pop(entity, {}).items() if quota not in takes}
    assert after == Quotas({**was, entity: {**kept, **put}})
    assert alter(after, [(entity, dict.fromkeys(entity.quotas))]) == Quotas(was)


@pytest.mark.parametrize(
    ("entity", "quota", "value"),
    [
        (Clients("User:alice", "app"), Limit.TOPICS, 1),
        (Prefix("a"), WRITES, 1),
    ],
)
def test_what_cannot_be_set_for_whom(entity: Entity, quota: Quota, value: float) -> None:
    with pytest.raises(Rejected, match="it takes"):
        quotas_of((entity, quota, value))
    with pytest.raises(Rejected, match="it takes"):
        alter(Quotas(), [(entity, {quota: None})])


@pytest.mark.parametrize(
    ("quota", "value"),
    [
        (WRITES, 0),
        (WRITES, -1),
        (WRITES, 1.5),
        (WRITES, 2**63),
        (WRITES, True),
        (WRITES, "5"),
        (Rate.CONTROLLER_MUTATION_RATE, 2**31),
        (Rate.CONTROLLER_MUTATION_RATE, 0),
        (Rate.CONTROLLER_MUTATION_RATE, float("nan")),
        (Rate.CONTROLLER_MUTATION_RATE, float("inf")),
        (Limit.TOPICS, -1),
        (Limit.TOPICS, 0.5),
    ],
)
def test_values_that_are_not_taken(quota: Quota, value: object) -> None:
    with pytest.raises(Rejected, match="takes a"):
        check_value(quota, value)


def test_values_that_are_taken() -> None:
    assert [check_value(WRITES, value) for value in (1, 2.0, 2**63 - 1)] == [1, 2, 2**63 - 1]
    assert isinstance(check_value(WRITES, 2.0), int)
    assert check_value(Rate.CONTROLLER_MUTATION_RATE, 0.01) == 0.01
    assert check_value(Limit.TOPICS, 0) == 0


def test_names_are_kafkas_and_ours() -> None:
    assert {quota.value for quota in Rate} == {
        "producer_byte_rate",
        "consumer_byte_rate",
        "controller_mutation_rate",
    }
    assert all(quota_named(quota.value) is quota for kind in (Rate, Limit) for quota in kind)
    with pytest.raises(Rejected, match="there is no quota 'fetch'"):
        quota_named("fetch")


def test_bounds() -> None:
    many = [(Clients(None, f"c{n}"), {WRITES: 1}) for n in range(ENTITIES_MAX + 1)]
    quotas = Quotas()
    for start in range(0, ENTITIES_MAX, BATCH_MAX):
        quotas = alter(quotas, many[start : start + BATCH_MAX])
    with pytest.raises(Rejected, match=f"{ENTITIES_MAX} is the most") as refused:
        alter(quotas, many[-1:])
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    assert alter(quotas, [(many[0][0], {WRITES: None}), many[-1]]).values.keys() == {one for one, _ in many[1:]}
    with pytest.raises(Rejected, match=f"{BATCH_MAX} is the most"):
        alter(Quotas(), many[: BATCH_MAX + 1])
