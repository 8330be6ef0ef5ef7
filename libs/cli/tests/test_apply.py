"""What files may say, what is changed for them, and how ``apply`` waits; against a stand-in of the admin client."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from headrace.admin_access_types import AccessDescription
from headrace.admin_types import BrokerInfo, ConfigEntry, PartitionInfo, TopicDescription, TopicInfo
from headrace_cli.app import app
from headrace_cli.commands import apply as apply_command
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.session import Session
from headrace_cli.wanted import Wanted, WantedTopic, list_unmet, parse, topic_changes
from headrace_common.core.access.changes import Change, Rule
from headrace_common.core.access.changes import apply as apply_changes
from headrace_common.core.access.principal import parse_grantee
from headrace_common.core.access.resources import Operation, operation_set
from headrace_common.core.access.roles import BUILT_IN_ROLES
from headrace_common.core.access.state import Access
from headrace_common.core.errors import InvalidConfig, NetworkFailed, TopicAlreadyExists, UnknownTopicOrPartition
from headrace_common.rpc.convert_access import binding_to_proto, role_to_proto, rule_to_proto
from headrace_proto.v1 import access_pb2 as pb

ID = bytes(range(16))
runner = CliRunner()


def a_topic(name: str, partitions: int, configs: Mapping[str, str], replicas: int = 1) -> TopicDescription:
    held = tuple(range(1, replicas + 1))
    return TopicDescription(
        name, ID, False, configs, tuple(PartitionInfo(n, 1, 0, held, held) for n in range(partitions))
    )


class FakeCluster:
    """An admin client whose topics and settings change as they are told to."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicDescription] = {"flights": a_topic("flights", 2, {"retention.ms": "5"})}
        self.settings = {"segment.ms": ConfigEntry("segment.ms", "7", "default", False, "", "long")}
        self.changes: list[tuple[Any, ...]] = []
        self.up = [True, True]
        self.not_yet: list[Exception] = []
        """Raised one by one by whatever is asked first."""
        self.access = Access()
        self.given: list[tuple[list[Change]]] = []
        self.quotas: dict[str, dict[str, float]] = {}

    def __enter__(self) -> FakeCluster:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def alter_access(self, changes: Iterable[Change], *, validate_only: bool) -> None:
        batch = list(changes)
        after = apply_changes(self.access, batch)
        if not validate_only:
            self.given.append((batch,))
            self.access = after

    def describe_quotas(self) -> dict[str, dict[str, float]]:
        return self.quotas

    def alter_quotas(self, changes: Mapping[str, Mapping[str, float]], *, validate_only: bool) -> None:
        self.changes.append(("quotas", {entity: dict(limits) for entity, limits in changes.items()}, validate_only))
        if not validate_only:
            for entity, limits in changes.items():
                self.quotas.setdefault(entity, {}).update(limits)

    def describe_access(self) -> AccessDescription:
        rules = [rule_to_proto(Rule(who, grant)) for who, some in self.access.rules.items() for grant in some]
        bindings = [binding_to_proto(one) for some in self.access.bindings.values() for one in some]
        roles = map(role_to_proto, [*BUILT_IN_ROLES.values(), *self.access.roles.values()])
        return AccessDescription.of(pb.DescribeAccessResponse(rules=rules, bindings=bindings, roles=roles))

    def list_brokers(self) -> list[BrokerInfo]:
        if self.not_yet:
            raise self.not_yet.pop(0)
        return [BrokerInfo(n, f"b{n}:1", None, not up, False, "0.1.0") for n, up in enumerate(self.up)]

    def list_topics(self, *, include_internal: bool) -> list[TopicInfo]:
        assert include_internal, "settings of internal topics may be wanted too"
        return [TopicInfo(t.name, ID, len(t.partitions), False, t.configs) for t in self.topics.values()]

    def describe_topic(self, name: str) -> TopicDescription:
        if name not in self.topics:
            raise UnknownTopicOrPartition(f"there is no {name}")
        return self.topics[name]

    def create_topic(
        self, name: str, partitions: int | None, factor: int | None, configs: Mapping[str, str], *, validate_only: bool
    ) -> TopicDescription:
        if configs.get("retention.ms") == "-7":
            raise InvalidConfig("retention.ms takes -1 or more")
        self.changes.append(("create", name, partitions, factor, dict(configs), validate_only))
        made = a_topic(name, partitions or 1, configs, factor or 1)
        if not validate_only:
            self.topics[name] = made
        return made

    def add_partitions(self, name: str, total: int, *, validate_only: bool) -> None:
        self.changes.append(("add", name, total, validate_only))
        if not validate_only:
            self.topics[name] = a_topic(name, total, self.topics[name].configs)

    def describe_configs(self) -> dict[str, ConfigEntry]:
        return self.settings

    def alter_configs(
        self, changes: Mapping[str, str | None], *, topic: str | None = None, validate_only: bool
    ) -> None:
        self.changes.append(("alter", topic, dict(changes), validate_only))
        if validate_only:
            return
        if topic is None:
            for name, value in changes.items():
                source = "default" if value is None else "dynamic_default_broker"
                self.settings[name] = ConfigEntry(name, value or "7", source, False, "", "long")
            return
        present = self.topics[topic]
        configs = {**present.configs, **changes}
        kept = {name: value for name, value in configs.items() if value is not None}
        self.topics[topic] = a_topic(topic, len(present.partitions), kept)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    fake = FakeCluster()
    monkeypatch.setattr(Session, "admin", lambda self, **_: fake)
    monkeypatch.setattr(apply_command, "RETRY_SECONDS", 0.01)
    return fake


def apply(wanted: object, *more: str, code: int = 0) -> str:
    result = runner.invoke(app, ["apply", "-f", "-", *more], input=json.dumps(wanted))
    assert result.exit_code == code, result.output
    return result.output


WANTED = {
    "cluster": {"configs": {"segment.ms": 86_400_000}},
    "topics": [
        {"name": "orders", "partitions": 3, "replicationFactor": 2, "configs": {"cleanup.policy": "compact"}},
        {"name": "flights", "partitions": 4, "configs": {"retention.ms": 9, "min.insync.replicas": 1}},
    ],
}


def test_it_creates_adds_and_sets_and_does_nothing_the_second_time(cluster: FakeCluster) -> None:
    said = apply(WANTED)
    assert cluster.changes == [
        ("alter", None, {"segment.ms": "86400000"}, False),
        ("create", "orders", 3, 2, {"cleanup.policy": "compact"}, False),
        ("add", "flights", 4, False),
        ("alter", "flights", {"retention.ms": "9", "min.insync.replicas": "1"}, False),
    ]
    assert "create topic: orders, 3 partitions, cleanup.policy=compact" in said
    cluster.changes.clear()
    assert "nothing to change" in apply(WANTED)
    assert cluster.changes == []


def test_a_dry_run_checks_all_and_changes_nothing(cluster: FakeCluster) -> None:
    before = dict(cluster.topics)
    said = apply(WANTED, "--dry-run")
    assert "would create topic: orders" in said
    assert [change[-1] for change in cluster.changes] == [True] * 4
    assert cluster.topics == before


def test_quotas_are_set_that_are_named_and_others_stay(cluster: FakeCluster) -> None:
    cluster.quotas = {"users/User:a": {"producer_byte_rate": 5, "consumer_byte_rate": 7}, "clients/x": {}}
    wanted = {
        "quotas": [
            {"entity": "users/User:a", "limits": {"producer_byte_rate": 6, "consumer_byte_rate": 7}},
            {"entity": "prefixes/shop.", "limits": {"topics.max": 50.0}},
        ]
    }
    differs = {"users/User:a": {"producer_byte_rate": 6}, "prefixes/shop.": {"topics.max": 50}}
    assert "would set quotas: users/User:a, producer_byte_rate=6" in apply(wanted, "--dry-run")
    said = apply(wanted)
    assert cluster.changes == [("quotas", differs, True), ("quotas", differs, False)]
    assert "set quotas: prefixes/shop., topics.max=50\n" in said
    assert "nothing to change" in apply(wanted)
    assert cluster.quotas["users/User:a"] == {"producer_byte_rate": 6, "consumer_byte_rate": 7}
    (row,) = json.loads(
        apply({"quotas": [{"entity": "clients/x", "limits": {"producer_byte_rate": 1}}]}, "-o", "json")
    )["changes"]
    assert (row["change"], row["entity"], row["configs"]) == ("set quotas", "clients/x", {"producer_byte_rate": "1"})


def test_programs_get_the_changes_as_data(cluster: FakeCluster) -> None:
    (row,) = json.loads(apply({"topics": [{"name": "a"}]}, "-o", "json"))["changes"]
    assert row == {"change": "create topic", "topic": "a", "partitions": None, "configs": {}}


def test_null_gives_the_default_back_and_what_is_not_named_stays(cluster: FakeCluster) -> None:
    cluster.topics["flights"] = a_topic("flights", 2, {"retention.ms": "5", "segment.bytes": "9"})
    apply({"topics": [{"name": "flights", "configs": {"retention.ms": None, "cleanup.policy": None}}]})
    assert cluster.changes == [("alter", "flights", {"retention.ms": None}, False)]
    assert cluster.topics["flights"].configs == {"segment.bytes": "9"}


def test_nothing_is_made_smaller_and_that_is_said(cluster: FakeCluster) -> None:
    said = apply({"topics": [{"name": "flights", "partitions": 1, "replicationFactor": 3}]})
    assert cluster.changes == []
    assert "flights has 2 partitions, 1 wanted" in said
    assert "flights has 1 replicas per partition, 3 wanted" in said


def test_it_waits_for_a_cluster_that_is_starting_and_for_so_many_brokers(cluster: FakeCluster) -> None:
    cluster.not_yet = [NetworkFailed("no broker can be reached"), TopicAlreadyExists("made by another at this moment")]
    said = apply({"topics": [{"name": "a"}]}, "--brokers", "2")
    assert "waiting: no broker can be reached" in said
    assert "a" in cluster.topics
    cluster.up = [True, False]
    said = apply({"topics": [{"name": "b"}]}, "--brokers", "2", "--timeout", "1", code=ExitCode.TIMED_OUT)
    assert "1 broker up, 2 wanted" in said
    assert "b" not in cluster.topics


def test_nobody_there_ends_with_unreachable(cluster: FakeCluster) -> None:
    cluster.not_yet = [NetworkFailed("no broker can be reached")] * 1_000
    apply({}, "--timeout", "1", code=ExitCode.UNREACHABLE)


def test_what_the_cluster_refuses_ends_it_at_once(cluster: FakeCluster) -> None:
    said = apply({"topics": [{"name": "a", "configs": {"retention.ms": -7}}]}, code=ExitCode.USAGE)
    assert "retention.ms takes -1 or more" in said


def test_a_file_that_is_not_there_is_named(cluster: FakeCluster, tmp_path: Path) -> None:
    result = runner.invoke(app, ["apply", "-f", str(tmp_path / "no.json")])
    assert result.exit_code == ExitCode.USAGE
    assert "no.json" in result.output


def test_a_file_that_is_not_text_is_refused(cluster: FakeCluster, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"topics:\n\xff\xfe")
    result = runner.invoke(app, ["apply", "-f", str(tmp_path / "a.yaml")])
    assert result.exit_code == ExitCode.USAGE
    assert "a.yaml is not text" in result.output


def test_numbers_out_of_bounds_are_the_users_mistake(cluster: FakeCluster) -> None:
    for option in ("-p", "-r"):
        assert runner.invoke(app, ["topic", "create", "t", option, "9" * 14]).exit_code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "the file takes an object"),
        ('{"topic": []}', "the file has no topic; it takes access, cluster, quotas, topics"),
        ('{"topics": {}}', "topics takes a list"),
        ('{"topics": [{}]}', "topics[0] needs a name"),
        ('{"topics": [{"name": "a", "partition": 1}]}', "topics[0] has no partition"),
        ('{"topics": [{"name": "a", "partitions": 0}]}', "a: partitions takes a number from 1"),
        ('{"topics": [{"name": "a", "partitions": true}]}', "a: partitions takes a number from 1"),
        ('{"topics": [{"name": "a", "partitions": 2.5}]}', "a: partitions takes a number from 1"),
        ('{"topics": [{"name": "a", "configs": {"x": []}}]}', "a: configs.x takes a text"),
        ('{"topics": [{"name": "a"}, {"name": "a"}]}', "topics has a twice"),
        ('{"cluster": {"config": {}}}', "cluster has no config"),
        ('{"access": {"rule": []}}', "access has no rule"),
        ('{"quotas": {}}', "quotas takes a list"),
        ('{"quotas": [{"for": "users/*"}]}', "quotas[0] has no for; it takes entity, limits"),
        ('{"quotas": [{"entity": "users/*"}]}', "quotas[0]: it needs an entity"),
        ('{"quotas": [{"entity": "users/*", "limits": {}}]}', "quotas[0]: it needs an entity"),
        ('{"quotas": [{"entity": 7, "limits": {"topics.max": 1}}]}', "quotas[0]: it needs an entity"),
        ('{"quotas": [{"entity": "alice", "limits": {"topics.max": 1}}]}', "quotas[0]: 'alice' names nothing"),
        ('{"quotas": [{"entity": "users/*", "limits": {"rate": 1}}]}', "quotas[0]: there is no quota 'rate'"),
        (
            '{"quotas": [{"entity": "users/*", "limits": {"topics.max": 1}}]}',
            "users/* has no topics.max, but consumer_byte_rate, controller_mutation_rate, producer_byte_rate",
        ),
        ('{"quotas": [{"entity": "clients/a", "limits": {"producer_byte_rate": 0}}]}', "producer_byte_rate takes"),
        (
            '{"quotas": [{"entity": "users/*", "limits": {"producer_byte_rate": 1}},'
            ' {"entity": "users/*", "limits": {"consumer_byte_rate": 1}}]}',
            "quotas has users/* twice",
        ),
        ('{"access": {"rules": {}}}', "access.rules takes a list"),
        ('{"access": {"rules": [{"principal": "User:a"}]}}', "access.rules[0]: it needs allow or deny"),
        (
            '{"access": {"rules": [{"principal": "User:a", "allow": ["read"], "deny": ["read"], "type": "topic"}]}}',
            "access.rules[0]: it needs allow or deny",
        ),
        ('{"access": {"rules": [{"principal": "User:a", "allow": ["read"]}]}}', "access.rules[0] needs type"),
        (
            '{"access": {"rules": [{"principal": "a", "allow": ["read"], "type": "topic", "pattern": "t"}]}}',
            "rules[0]: ",
        ),
        ('{"access": {"rules": [{"principal": "User:a", "allow": "read", "type": "topic"}]}}', "allow takes a list"),
        ('{"access": {"bindings": [{"role": "producer"}]}}', "access.bindings[0] needs principal"),
        (
            '{"access": {"bindings": [{"principal": "User:a", "role": "viewer", "resources": []}]}}',
            "resources takes an object",
        ),
        ('{"access": {"bindings": [{"principal": 7, "role": "viewer"}]}}', "principal takes a text"),
        ('{"access": {"roles": [{"name": "r", "gives": ["read"]}]}}', "gives takes an object"),
        ('{"access": {"roles": [{"name": "r", "gives": {"topic": ["fly"]}}]}}', "access.roles[0]: "),
        ('{"topics": [], "topics": []}', "'topics' is there twice"),
        ("[" * 100_000, ""),
    ],
)
def test_a_file_that_means_nothing_is_refused_with_its_reason(text: str, says: str) -> None:
    with pytest.raises(CommandFailed) as failed:
        parse(text, "wanted.json")
    assert failed.value.exit_code is ExitCode.USAGE
    assert str(failed.value).startswith("wanted.json: ")
    assert says in str(failed.value)


def test_numbers_are_read_as_helm_writes_them() -> None:
    text = '{"topics": [{"name": "a", "partitions": 6.0, "configs": {"retention.ms": 6.048e+08, "x": 0.5, "y": true}}]}'
    assert parse(text, "-") == Wanted(
        {}, (WantedTopic("a", 6, None, {"retention.ms": "604800000", "x": "0.5", "y": "true"}),)
    )


ACCESS = {
    "access": {
        "roles": [{"name": "reader", "gives": {"topic": ["read", "describe"]}}],
        "bindings": [
            {"principal": "ServiceAccount:shop/orders", "role": "producer", "name": "orders"},
            {"principal": "User:bob", "role": "reader", "resources": {"topic": ["orders", "bills*"]}},
        ],
        "rules": [
            {"principal": "User:alice", "allow": ["read"], "type": "topic", "pattern": "orders*", "host": "192.0.2.7"},
            {"principal": "User:eve", "deny": ["describe"], "type": "cluster"},
        ],
    }
}


def test_roles_and_rules_are_given_and_those_that_are_so_are_not_given_again(cluster: FakeCluster) -> None:
    said = apply(ACCESS)
    assert [str(put.item) for [batch] in cluster.given for put in batch][:1] == ["Role:reader"]
    assert "give access: User:eve deny DESCRIBE CLUSTER" in said
    cluster.given.clear()
    assert "nothing to change" in apply(ACCESS)
    assert cluster.given == []
    other = {"access": {"bindings": [{"principal": "User:bob", "role": "reader", "resources": {"topic": ["orders"]}}]}}
    apply(other)
    assert len(cluster.given) == 1, "another binding than the one that is there; that one stays"
    assert len(cluster.access.bindings[parse_grantee("User:bob")]) == 2


def test_a_role_that_gives_something_else_now_is_changed(cluster: FakeCluster) -> None:
    apply(ACCESS)
    apply({"access": {"roles": [{"name": "reader", "gives": {"topic": ["read"]}}]}})
    assert [int(some) for some in cluster.access.roles["reader"].operations.values()] == [
        int(operation_set(Operation.READ))
    ]


def test_a_dry_run_gives_nothing_and_data_says_what_it_would(cluster: FakeCluster) -> None:
    rows = json.loads(apply(ACCESS, "--dry-run", "-o", "json"))["changes"]
    assert len(rows) == 5
    assert rows[-1]["access"].startswith("User:eve deny")
    assert cluster.access == Access()


@given(
    wanted=st.none() | st.integers(1, 6),
    present=st.integers(1, 6),
    set_=st.dictionaries(st.sampled_from("abc"), st.none() | st.sampled_from("12")),
    is_=st.dictionaries(st.sampled_from("abc"), st.sampled_from("12")),
)
def test_partitions_only_grow_and_settings_end_as_wanted(
    wanted: int | None, present: int, set_: dict[str, str | None], is_: dict[str, str]
) -> None:
    topic = WantedTopic("t", wanted, None, set_)
    described = a_topic("t", present, is_)
    count, configs = present, dict(is_)
    for change in topic_changes(topic, described):
        if change.total is not None:
            assert change.total > count
            count = change.total
        for name, value in change.configs.items():
            assert configs.get(name) != value, "nothing is set that is so already"
            configs.pop(name, None)
            if value is not None:
                configs[name] = value
    assert count == max(present, wanted or 0)
    assert configs == {name: v for name in "abc" if (v := set_[name] if name in set_ else is_.get(name)) is not None}
    assert bool(list(list_unmet(topic, described))) == (wanted is not None and wanted < present)


YAML = """
# what the installer wants
cluster: {configs: {num.partitions: 3}}
topics:
  - name: orders
    partitions: 6
    replicationFactor: 3
    configs:
      retention.ms: 86400000
      cleanup.policy: compact
      unclean.leader.election.enable: false
"""


def test_yaml_means_what_the_same_json_means() -> None:
    as_json = json.dumps(
        {
            "cluster": {"configs": {"num.partitions": 3}},
            "topics": [
                {
                    "name": "orders",
                    "partitions": 6,
                    "replicationFactor": 3,
                    "configs": {
                        "retention.ms": 86400000,
                        "cleanup.policy": "compact",
                        "unclean.leader.election.enable": False,
                    },
                }
            ],
        }
    )
    assert parse(YAML, "file") == parse(as_json, "file")
    assert parse("{topics: [{name: a}]}", "file").topics[0].name == "a"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("topics: [", "file:"),
        ("topics:\n- name: a\n  name: b\n", "'name' is there twice"),
        ("topics: &a []\ncluster: *a\n", "aliases"),
        ("topics: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("topics:\n- name: 2026-11-21\n  partitions: 0\n", "2026-11-21: partitions takes a number"),
        ("- a\n", "the file takes an object"),
        ("", "the file takes an object"),
    ],
)
def test_yaml_that_means_nothing_is_refused_with_what_would_be_right(text: str, said: str) -> None:
    with pytest.raises(CommandFailed) as refused:
        parse(text, "file")
    assert said in str(refused.value)
    assert "YAML or JSON" in refused.value.hint
