"""Options: what users give, what they get, and what they are told."""

from __future__ import annotations

import doctest
import pickle
import re
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.consumer_settings import ConsumerSettings
from headrace.settings import ProducerSettings, read_settings
from headrace_common.core.errors import InvalidConfig, UnknownTopicOrPartition
from headrace_common.core.ids import TopicPartition
from headrace_common.core.secret import Secret
from headrace_spark.core import kafka_settings
from headrace_spark.core import options as options_module
from headrace_spark.core.limits import (
    Assign,
    AtOffsets,
    AtTime,
    AtTimes,
    Earliest,
    Latest,
    Subscribe,
    SubscribePattern,
    check_there,
)
from headrace_spark.core.option_table import OPTIONS
from headrace_spark.core.options import ConnectorOptions, Mode, drop_token

AT = {"kafka.bootstrap.servers": "a:1"}
READ = AT | {"subscribe": "flights"}


def parse(options: dict[str, Any], mode: Mode = Mode.READ_STREAM) -> ConnectorOptions:
    return ConnectorOptions.parse(options, mode)


def refusal(options: dict[str, Any], mode: Mode = Mode.READ_STREAM) -> str:
    with pytest.raises(InvalidConfig) as refused:
        parse(options, mode)
    return str(refused.value)


# --- what to read ------------------------------------------------------------------------------------------------


def test_names_are_of_any_case_and_the_bootstrap_has_an_alias() -> None:
    read = parse({"BOOTSTRAP.SERVERS": "a:1, b:2,a:1", "SubScribe": " flights ,carriers,flights,"})
    assert read.bootstrap_servers == ("a:1", "b:2")
    assert read.selection == Subscribe(("flights", "carriers"))


def test_each_way_to_say_what_is_read() -> None:
    assert parse(AT | {"assign": '{"b":[1,0],"a":[2]}'}).selection == Assign(
        (TopicPartition("a", 2), TopicPartition("b", 0), TopicPartition("b", 1))
    )
    assert parse(AT | {"subscribePattern": "fl.*"}).selection == SubscribePattern("fl.*")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "'kafka.bootstrap.servers' must say where the cluster is"),
        (AT, "one of assign, subscribe, subscribePattern must say what to read"),
        (READ | {"assign": '{"a":[0]}'}, "only one of assign, subscribe can be given"),
        (READ | {"bootstrap.servers": "b:1"}, "differ; give one of them"),
        (AT | {"subscribe": " , "}, "takes names of topics"),
        (AT | {"subscribe": "a b"}, "takes the name of a topic"),
        (AT | {"assign": "flights"}, 'takes JSON such as {"topicA":[0,1],"topicB":[2]}'),
        (AT | {"assign": '{"a":[-1]}'}, "'-1' is no partition"),
        (AT | {"assign": '{"a":[true]}'}, "is no partition"),
        (AT | {"assign": "{}"}, "takes JSON such as"),
        (AT | {"subscribePattern": "(" * 3}, "takes a regular expression"),
        (READ | {"kafka.bootstrap.servers": "a"}, "'a' is not one"),
        (READ | {"kafka.bootstrap.servers": "a:0"}, "port 0"),
        (READ | {"path": "flights"}, "topics have no path"),
        (READ | {"topic": "x"}, "'topic' is not for spark.readStream: 'subscribe' names what to read"),
    ],
)
def test_what_to_read_said_wrongly(options: dict[str, str], told: str) -> None:
    assert told in refusal(options)


def test_everything_that_is_wrong_is_told_at_once() -> None:
    text = refusal(READ | {"failOnDataLoss": "perhaps", "minPartitions": "0", "startingOffset": "latest"})
    assert "'failOnDataLoss' takes true or false, not 'perhaps'" in text
    assert "'minPartitions' takes a whole number from 1 to 2147483647, not '0'" in text
    assert "'startingOffset' is not an option; did you mean 'startingOffsets'?" in text
    assert "Known: assign," in text


def test_an_option_of_the_other_kind_of_query_is_not_among_the_known_ones() -> None:
    assert "transactional" not in refusal(READ | {"x": "1"})
    assert "startingOffsets" not in refusal(AT | {"x": "1"}, Mode.WRITE_BATCH)


def test_patterns_match_whole_names_and_no_internal_topics() -> None:
    topics = {"flights": 2, "flights-late": 1, "my-flights": 1, "__consumer_offsets": 50}
    assert SubscribePattern("flights.*").choose(topics) == (
        TopicPartition("flights", 0),
        TopicPartition("flights", 1),
        TopicPartition("flights-late", 0),
    )
    assert SubscribePattern("__.*").choose(topics) == ()


def test_what_is_named_must_be_there_when_a_query_begins() -> None:
    topics = {"flights": 2}
    check_there(SubscribePattern("nothing"), topics)
    check_there(Subscribe(("flights",)), topics)
    with pytest.raises(UnknownTopicOrPartition, match="not there: carriers; create it first"):
        check_there(Subscribe(("flights", "carriers")), topics)
    with pytest.raises(UnknownTopicOrPartition, match="not there: flights-2;"):
        check_there(Assign((TopicPartition("flights", 1), TopicPartition("flights", 2))), topics)
    assert Assign((TopicPartition("flights", 1), TopicPartition("flights", 2))).choose(topics) == (
        TopicPartition("flights", 1),
    )


# --- from where to where -----------------------------------------------------------------------------------------

ONE = TopicPartition("flights", 0)


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({}, Latest()),
        ({"startingOffsets": " Earliest "}, Earliest()),
        ({"startingOffsets": '{"flights":{"0":-2,"1":7}}'}, AtOffsets({ONE: -2, TopicPartition("flights", 1): 7})),
        ({"startingOffsets": '{"@headrace":{"topics":{}},"flights":{"0":7}}'}, AtOffsets({ONE: 7})),
        ({"startingTimestamp": "1000"}, AtTime(1000)),
        ({"startingOffsetsByTimestamp": '{"flights":{"0":1000}}'}, AtTimes({ONE: 1000})),
    ],
)
def test_where_a_stream_begins(options: dict[str, str], start: object) -> None:
    assert parse(READ | options).start == start


def test_a_batch_reads_everything_unless_told() -> None:
    read = parse(READ, Mode.READ_BATCH)
    assert (read.start, read.end) == (Earliest(), Latest())


def test_times_win_over_offsets_and_say_so() -> None:
    given_ = {"startingOffsets": "earliest", "startingTimestamp": "5"}
    read = parse(READ | given_ | {"startingOffsetsByTimestamp": '{"flights":{"0":1000}}'})
    assert read.start == AtTime(5)
    assert "'startingOffsets' changes nothing beside 'startingTimestamp'" in read.warnings
    assert "'startingOffsetsByTimestamp' changes nothing beside 'startingTimestamp'" in read.warnings


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_streams_have_no_end(name: str) -> None:
    assert f"'{name}' is not for spark.readStream: a streaming query has no end" in refusal(READ | {name: "latest"})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"startingOffsets": "latest"}, "a batch query cannot start at latest"),
        ({"endingOffsets": "earliest"}, "a batch query cannot end at earliest"),
        ({"startingOffsets": '{"flights":{"0":-1}}'}, "'startingOffsets' says so of flights-0"),
        ({"endingOffsets": '{"flights":{"0":-2}}'}, "'endingOffsets' says so of flights-0"),
        (
            {"startingOffsets": '{"flights":{"0":9}}', "endingOffsets": '{"flights":{"0":8}}'},
            "after it ends in flights-0",
        ),
        ({"startingTimestamp": "9", "endingTimestamp": "8"}, "starts at 9 ms, after it ends at 8 ms"),
        ({"startingOffsets": '{"flights":{"0":0}}', "endingOffsets": '{"flights":{"1":8}}'}, "different partitions"),
        ({"startingOffsets": '{"other":{"0":1}}'}, "the start names other-0, which this query does not read"),
        ({"startingOffsets": "{}"}, "takes JSON such as"),
        ({"startingOffsets": '{"flights":{"0":-3}}'}, "'-3' for flights-0"),
        ({"startingOffsets": '{"flights":{"0":1.5}}'}, "'1.5' for flights-0"),
        ({"startingOffsets": '{"flights":{"0":1,"00":2}}'}, "for flights-0"),
        ({"startingOffsets": '{"flights":{"0":1},"flights":{"0":2}}'}, "takes JSON such as"),
        ({"startingOffsets": "newest"}, "takes JSON such as"),
        ({"startingTimestamp": "yesterday"}, "takes a whole number from 0"),
    ],
)
def test_ends_of_a_batch_said_wrongly(options: dict[str, str], told: str) -> None:
    assert told in refusal(READ | options, Mode.READ_BATCH)


def test_assigned_partitions_need_their_offsets() -> None:
    options = AT | {"assign": '{"flights":[0,1]}', "startingOffsets": '{"flights":{"0":1}}'}
    assert "the start leaves out flights-1" in refusal(options)


def test_a_start_behind_a_symbolic_end_is_left_to_the_cluster() -> None:
    limits = {"startingOffsets": '{"flights":{"0":9}}', "endingOffsets": '{"flights":{"0":-1}}'}
    assert parse(READ | limits, Mode.READ_BATCH).end == AtOffsets({ONE: -1})


# --- rates and tasks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "ms"),
    [("500", 500), ("10s", 10_000), ("15m", 900_000), ("2 h", 7_200_000), ("1D", 86_400_000), ("1500us", 1)],
)
def test_times_as_spark_writes_them(written: str, ms: int) -> None:
    assert parse(READ | {"minOffsetsPerTrigger": "1", "maxTriggerDelay": written}).max_trigger_delay_ms == ms


def test_filters_are_refused_with_the_reason() -> None:
    told = refusal(READ | {"pushDownFilters": "true"})
    assert "Spark would use what one filter left for every other use of the same DataFrame" in told
    assert "startingOffsets" in told


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"maxTriggerDelay": "soon"}, "takes a time such as 500ms"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "'minOffsetsPerTrigger' (9) is above"),
        ({"minPartitions": "9", "maxTasks": "8"}, "'minPartitions' (9) is above 'maxTasks' (8)"),
        ({"maxTasks": "8", "maxRecordsPerPartition": "8"}, "contradict each other"),
        ({"maxOffsetsPerTrigger": "0"}, "takes a whole number from 1"),
        ({"maxOffsetsPerTrigger": str(2**63)}, "takes a whole number from 1 to 9223372036854775807"),
    ],
)
def test_rates_and_tasks_said_wrongly(options: dict[str, str], told: str) -> None:
    assert told in refusal(READ | options)


def test_what_changes_nothing_is_a_warning_as_in_spark() -> None:
    read = parse(READ | {"maxOffsetsPerTrigger": "5", "fetchOffset.numRetries": "3"}, Mode.READ_BATCH)
    assert read.max_offsets_per_trigger is None
    assert read.warnings == (
        "'maxOffsetsPerTrigger' changes nothing in spark.read",
        "'fetchOffset.numRetries' changes nothing in spark.read",
    )
    assert "without 'minOffsetsPerTrigger'" in parse(READ | {"maxTriggerDelay": "1s"}).warnings[0]
    assert "without a starting time" in parse(READ | {"startingOffsetsByTimestampStrategy": "latest"}).warnings[0]


# --- kafka.* -----------------------------------------------------------------------------------------------------


def test_settings_go_on_to_the_client() -> None:
    given_ = {"isolation.level": "READ_COMMITTED", "fetch.max.bytes": "1000", "check.crcs": "false"}
    read = parse(READ | {f"kafka.{name}": value for name, value in given_.items()})
    assert read.client == {"check_crcs": False, "fetch_max_bytes": 1000, "isolation_level": "read_committed"}
    assert read.read_committed
    write = parse(AT | {"topic": "t", "kafka.compression.type": "zstd", "kafka.linger.ms": "20"}, Mode.WRITE_STREAM)
    assert write.client == {"compression_type": "zstd", "linger_ms": 20}
    assert not write.read_committed


@pytest.mark.parametrize("name", sorted(kafka_settings.REFUSED_READING))
def test_what_the_source_of_spark_refuses(name: str) -> None:
    assert f"'kafka.{name}' cannot be set: " in refusal(READ | {f"kafka.{name}": "x"})


@pytest.mark.parametrize("name", sorted(kafka_settings.REFUSED_WRITING))
def test_what_the_sink_of_spark_refuses(name: str) -> None:
    assert f"'kafka.{name}' cannot be set: " in refusal(AT | {f"kafka.{name}": "x"}, Mode.WRITE_BATCH)


def test_group_ids_are_names_only() -> None:
    read = parse(READ | {"kafka.group.id": "mine", "groupIdPrefix": "p"})
    assert read.group_id == "mine"
    assert len(read.warnings) == 2
    assert "'kafka.group.id' is for reading" in refusal(AT | {"kafka.group.id": "x"}, Mode.WRITE_BATCH)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("kafka.fetch.max.byte", "did you mean 'kafka.fetch.max.bytes'?"),
        ("kafka.linger.ms", "is for writing; leave it out here"),
        ("kafka.key.serializer", "is for writing"),
        ("kafka.sasl.mechanism", "HEADRACE_CA in their environment"),
        ("kafka.security.protocol", "HEADRACE_CA in their environment"),
        ("kafka.isolation.level", "takes read_uncommitted or read_committed, not 'SSL'"),
    ],
)
def test_other_settings_are_refused(name: str, told: str) -> None:
    assert told in refusal(READ | {name: "SSL"})


def test_settings_of_kafka_without_meaning_here_are_a_warning() -> None:
    read = parse(READ | {"kafka.session.timeout.ms": "6000", "kafka.security.protocol": "plaintext"})
    assert read.client == {}
    assert len(read.warnings) == 2


@pytest.mark.parametrize(
    "name",
    [
        "kafka.sasl.jaas.config",
        "kafka.ssl.keystore.password",
        "kafka.ssl.key.password",
        "kafka.sasl.oauthbearer.client.secret",
        "password",
        "authToken",
        "kafka.ssl.keystore.key",
        "api_key",
        "apiKey",
        "kafka.api.key",
        "headrace.api-key",
        "accessKey",
        "Authorization",
    ],
)
@pytest.mark.parametrize("mode", list(Mode))
def test_secrets_are_refused_and_never_shown(name: str, mode: Mode) -> None:
    text = refusal(READ | {name: "hunter2"}, mode)
    assert f"'{name}' looks like a secret" in text
    assert "hunter2" not in text


@pytest.mark.parametrize("mode", list(Mode))
def test_what_a_query_shows_has_a_name_that_spark_hides(mode: Mode) -> None:
    at = AT if mode.writes else READ
    found = parse(at | {"headrace.TOKEN": " hunter2\n", "headrace.caFile": "/ca"}, mode)
    assert found.token == Secret("hunter2")
    assert (found.token_file, found.ca_file) == (None, "/ca")
    assert "hunter2" not in repr(found)
    assert parse(at | {"headrace.tokenFile": "/key"}, mode).token_file == "/key"
    both = refusal(at | {"headrace.token": "hunter2", "headrace.tokenFile": "/key"}, mode)
    assert "are both given" in both
    empty = refusal(at | {"headrace.token": " "}, mode)
    assert "'headrace.token' takes a text" in empty
    assert "hunter2" not in both


def test_spark_hides_the_one_secret_and_what_else_it_hides_is_refused() -> None:
    hidden = re.compile("(?i)secret|password|token|access[.]?key")  # Spark's default of spark.redaction.regex
    assert {known.name for known in OPTIONS if hidden.search(known.name)} == {"headrace.token", "headrace.tokenFile"}
    for name in ("secret", "password", "token", "access.key", "accesskey"):
        assert hidden.search(name)
        assert kafka_settings.is_secret(f"x.{name.upper()}y")


@pytest.mark.parametrize("mode", list(Mode))
def test_what_is_pickled_has_no_token(mode: Mode) -> None:
    found = parse((AT if mode.writes else READ) | {"headrace.token": "hunter2", "taskKeyLifetime": "2h"}, mode)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        sent = pickle.dumps(found, protocol)
        assert b"hunter2" not in sent
        assert pickle.loads(sent) == replace(found, token=None)
    assert found.token == Secret("hunter2")


def test_options_for_tasks_have_no_token() -> None:
    options = {" HEADRACE.Token ": "hunter2", "headrace.tokenFile": "/key", "subscribe": "a"}
    assert drop_token(options) == {"headrace.tokenFile": "/key", "subscribe": "a"}


@pytest.mark.parametrize("value", ["9m", "8d", "0", "-1", "x"])
def test_keys_of_tasks_last_for_some_time(value: str) -> None:
    assert "'taskKeyLifetime' takes a time" in refusal(READ | {"headrace.token": "x", "taskKeyLifetime": value})
    assert parse(READ | {"headrace.token": "x", "taskKeyLifetime": "10m"}).task_key_lifetime_ms == 600_000
    assert parse(READ | {"headrace.token": "x", "taskKeyLifetime": "7d"}).task_key_lifetime_ms == 604_800_000
    assert parse(READ | {"taskKeyLifetime": "10m"}).warnings == (
        "'taskKeyLifetime' changes nothing without 'headrace.token'",
    )


def test_what_goes_on_is_known_to_the_client() -> None:
    for table, kind in ((kafka_settings.READING, ConsumerSettings), (kafka_settings.WRITING, ProducerSettings)):
        known = {f.name for f in fields(kind)}
        assert {name.replace(".", "_") for name in table} <= known


@pytest.mark.parametrize(
    ("name", "text"),
    [(n, t) for n in kafka_settings.WRITING for t in ("true", "1", "all", "zstd", "100", "1000000")],
)
def test_what_the_connector_takes_the_client_takes(name: str, text: str) -> None:
    try:
        found = kafka_settings.read_setting(name, text, writing=True)
    except ValueError:
        return
    assert found is not None
    beside = {"enable_idempotence": False, "max_request_size": 64, "request_timeout_ms": 1, "linger_ms": 0}
    beside |= {"delivery_timeout_ms": 2**31 - 1, "retry_backoff_ms": 0, "retry_backoff_max_ms": 2**31 - 1}
    read_settings(ProducerSettings, beside | dict([found]))


# --- writing -----------------------------------------------------------------------------------------------------


def test_a_sink() -> None:
    sparks_own = {"checkpointLocation": "x", "queryName": "q", "outputMode": "append"}
    write = parse(AT | sparks_own | {"topic": "t", "includeHeaders": "true"}, Mode.WRITE_STREAM)
    assert (write.topic, write.transactional, write.include_headers, write.selection) == ("t", True, True, None)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"subscribe": "x"}, "'subscribe' is not for DataFrame.writeStream: 'topic' names where to write"),
        ({"kafka.acks": "1"}, "writing exactly once needs 'kafka.acks' all"),
        ({"kafka.enable.idempotence": "false"}, "needs 'kafka.enable.idempotence' true"),
        ({"transactional": "false", "transactionalId": "x"}, "'transactional' is false"),
        ({"transactionalId": "a/b"}, "without '/'"),
        ({"failOnDataLoss": "true"}, "it is for reading"),
    ],
)
def test_sinks_said_wrongly(options: dict[str, str], told: str) -> None:
    assert told in refusal(AT | options, Mode.WRITE_STREAM)


def test_at_least_once_may_use_fewer_acks() -> None:
    assert parse(AT | {"transactional": "false", "kafka.acks": "1"}, Mode.WRITE_BATCH).client == {"acks": "1"}


def test_queries_are_shown_as_groups() -> None:
    assert parse(READ).group("5b") == "spark-headrace-source-5b"
    assert parse(READ | {"groupIdPrefix": "p"}).group("5b") == "p-5b"
    assert parse(READ | {"kafka.group.id": "mine"}).group("5b") == "mine"


def test_the_example_in_the_module_is_true() -> None:
    assert doctest.testmod(options_module).attempted == 3
    assert doctest.testmod(options_module).failed == 0


# --- hostile -----------------------------------------------------------------------------------------------------

KAFKA = [f"kafka.{name}" for name in (*kafka_settings.READING, *kafka_settings.WRITING, "x")]
NAMES = st.sampled_from([*(known.name for known in OPTIONS), *KAFKA])
NASTY = st.sampled_from(
    [
        *("", " ", "0", "-1", "9" * 400, "1e9", "NaN", "null", "[]", "{}", "a\x00b", "\ud800", "٣"),
        *("[" * 5000, '{"a":' * 3000, '{"a":{"0":' + "9" * 5000 + "}}", '{"a":{"0":1e400}}', '{"\\ud800":{"0":1}}'),
        *('{"a":{"٣":1}}', "(a+)+$", "(?P<x>a)(?P=x)", "x{1,99999999999}", "(" * 300),
    ]
)


@given(st.dictionaries(NAMES | st.text(max_size=20), NASTY | st.text(max_size=50), max_size=6), st.sampled_from(Mode))
def test_whatever_is_given_is_read_or_refused_with_a_reason(options: dict[str, str], mode: Mode) -> None:
    try:
        read = parse(READ | options if not mode.writes else AT | options, mode)
    except InvalidConfig as refused:
        text = str(refused)
        assert text
        assert not any(ord(each) < 32 for each in text)
    else:
        assert read.mode is mode


@pytest.mark.parametrize("value", [None, 5, True, b"x"])
def test_only_texts_are_options(value: object) -> None:
    assert "'minPartitions' takes a text" in refusal(READ | {"minPartitions": value})
