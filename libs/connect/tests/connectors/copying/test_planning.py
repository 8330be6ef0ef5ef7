"""Which topics are copied, and what the target needs for it."""

from __future__ import annotations

import pytest
from libs.connect.tests.connectors.copying.systems import settings

from headrace_connect.connectors.copying.planning import Change, find_missing, find_unknown, is_copied, plan
from headrace_connect.connectors.copying.port import SourceTopic
from headrace_connect.plugin import TopicState

TOPIC = SourceTopic("id", 3, {"retention.ms": "1000", "min.insync.replicas": "2", "cleanup.policy": "compact"})
COPIED = {"retention.ms": "1000", "cleanup.policy": "compact"}


def test_names_and_patterns() -> None:
    some = settings("orders", "shop\\..*", topics_exclude=("shop\\.secret.*", "__.*"))
    names = ["orders", "orders2", "shop.a", "shop.secret-a", "shopxa", "__x", "eu.offset-syncs"]
    assert [name for name in names if is_copied(name, some)] == ["orders", "shop.a"]
    everything = settings(".*")
    assert [name for name in names if not is_copied(name, everything)] == ["__x", "eu.offset-syncs"]
    assert not is_copied("odd", settings(".*", topics_exclude=(), offset_syncs_topic="odd"))


def test_what_is_not_there_is_named() -> None:
    there = {"orders": TOPIC, "shop.a": TOPIC}
    assert find_missing(there, settings("orders", "shop\\..*")) == {}
    assert find_missing(there, settings("order", "x.*")) == {
        "order": "topics: there is no topic order at the source; is orders meant?",
        "x.*": "topics: no topic matches x.* at the source",
    }


def test_a_topic_that_is_not_there_is_made_like_its_source() -> None:
    assert plan({"a": TOPIC}, {}, settings()) == [Change("a", True, 3, COPIED)]
    assert plan({"a": TOPIC}, {"a": TopicState(1, {})}, settings(topic_prefix="eu.")) == [
        Change("eu.a", True, 3, COPIED)
    ]
    assert plan({"a": TOPIC}, {}, settings(sync_topic_configs_enabled=False)) == [Change("a", True, 3, {})]


def test_one_that_is_there_follows() -> None:
    same = TopicState(3, COPIED | {"min.insync.replicas": "1"})
    assert plan({"a": TOPIC}, {"a": same}, settings()) == []
    assert plan({"a": TOPIC}, {"a": TopicState(5, COPIED)}, settings()) == []
    assert plan({"a": TOPIC}, {"a": TopicState(2, COPIED)}, settings()) == [Change("a", False, 3)]
    other = TopicState(3, {"retention.ms": "5", "segment.ms": "7", "unclean.leader.election.enable": "true"})
    changes = {"retention.ms": "1000", "cleanup.policy": "compact", "segment.ms": None}
    assert plan({"a": TOPIC}, {"a": other}, settings()) == [Change("a", False, None, changes)]
    assert plan({"a": TOPIC}, {"a": other}, settings(sync_topic_configs_enabled=False)) == []


def test_settings_that_the_target_does_not_know_are_named() -> None:
    odd = {"a": SourceTopic("id", 1, {"retention.ms": "5", "remote.odd": "x", "message.timestamp.type": "CreateTime"})}
    assert find_unknown(odd, settings()) == ["remote.odd"]
    assert plan(odd, {}, settings()) == [Change("a", True, 1, {"retention.ms": "5"})]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"topics": ()}, "topics is empty"),
        ({"topics": ("(",)}, "topics has '\\('"),
        ({"topics_exclude": ("*",)}, "topics.exclude has"),
        ({"source_cluster_alias": "a.b"}, "source.cluster.alias has"),
    ],
)
def test_settings_that_cannot_be(values: dict[str, object], said: str) -> None:
    from headrace_connect.connectors.copying.settings import CopySettings

    given: dict[str, object] = {"source_cluster_alias": "eu", "source_cluster_bootstrap_servers": "b", "topics": ("a",)}
    with pytest.raises(ValueError, match=said):
        CopySettings(**{**given, **values})  # type: ignore[arg-type]
