"""What Kafka refuses, and what is wrong with the settings, is said so that one knows what to type."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterator
from typing import Any

import confluent_kafka as kafka
import pytest
from libs.connect.tests.connectors.copying.contract import drain, numbered, take_nothing, values
from libs.connect.tests.connectors.kafka_import.settings import made
from libs.connect.tests.connectors.kafka_import.twin import Broker, Log, Topic

from headrace.errors import InvalidConfig
from headrace.records import TopicPartition
from headrace_common.runtime.clock import limit_s
from headrace_connect.connectors.copying.port import SourceRefuses
from headrace_connect.connectors.kafka_import import KafkaSource
from headrace_connect.connectors.kafka_import.asking import QUIET
from headrace_connect.connectors.kafka_import.cluster import KafkaCluster
from headrace_connect.connectors.kafka_import.faults import fault_of
from headrace_connect.plugin import RetriableError
from headrace_connect.runtime.configuring import find_config_problems

AT = TopicPartition("orders", 0)


@pytest.fixture
def kafka_twin() -> Iterator[Broker]:
    with Broker() as broker:
        with broker.state.changing():
            broker.state.topics["orders"] = Topic([Log()])
            broker.state.topics["orders"].logs[0].write(numbered(1, 2), None)
        yield broker


def check(**changes: Any) -> list[str]:
    servers = changes.pop("servers")
    return list(asyncio.run(KafkaSource(made(servers, "orders", **changes)).check()))  # type: ignore[arg-type]


def test_a_right_that_is_missing_is_named(kafka_twin: Broker) -> None:
    kafka_twin.state.refused.add("orders")
    [said] = check(servers=kafka_twin.bootstrap, timeout_ms=10_000)
    assert said.startswith("the source refuses orders: ")
    assert "kafka-acls.sh --add --allow-principal User:NAME --operation Read" in said
    assert said.endswith("--topic 'orders'")


def test_a_right_that_is_taken_away_while_it_is_read(kafka_twin: Broker) -> None:
    async def go() -> None:
        cluster = KafkaCluster(made(kafka_twin.bootstrap, timeout_ms=10_000))
        await cluster.open()
        try:
            async with limit_s(60):
                cluster.seek(AT, None)
                assert len((await drain(cluster, AT))[0]) == 2
                with kafka_twin.state.changing():
                    kafka_twin.state.refused.add("orders")
                with pytest.raises(SourceRefuses, match="--topic 'orders'"):
                    await take_nothing(cluster, AT)
                with kafka_twin.state.changing():
                    kafka_twin.state.refused.clear()
                    kafka_twin.state.topics["orders"].logs[0].write(numbered(3), None)
                cluster.seek(AT, 2)
                assert values((await drain(cluster, AT))[0]) == [(2, b"3")]
        finally:
            await cluster.close()

    asyncio.run(go())


def test_a_broker_that_goes_and_comes_again(kafka_twin: Broker, caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        cluster = KafkaCluster(made(kafka_twin.bootstrap, timeout_ms=1_000))
        await cluster.open()
        try:
            async with limit_s(120):
                cluster.seek(AT, None)
                assert len((await drain(cluster, AT))[0]) == 2
                kafka_twin.stop()
                with pytest.raises(RetriableError, match=f"{kafka_twin.bootstrap} does not answer"):
                    await take_nothing(cluster, AT)
                kafka_twin.start()
                with kafka_twin.state.changing():
                    kafka_twin.state.topics["orders"].logs[0].write(numbered(3), None)
                while True:
                    cluster.seek(AT, 2)
                    try:
                        found, _ = await drain(cluster, AT)
                    except RetriableError:
                        continue
                    assert values(found) == [(2, b"3")]
                    return
        finally:
            await cluster.close()

    asyncio.run(go())
    assert [one for one in caplog.records if one.name == QUIET.name] == [], "errors say it, and not each try"
    assert made("k:1", source_cluster={"log_level": "6"}).of_consumer()["log_level"] == "6"


def test_nobody_is_there() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        servers = f"127.0.0.1:{nobody.getsockname()[1]}"
        [said] = check(servers=servers, timeout_ms=1_000)
    assert said.startswith(f"source.cluster.bootstrap.servers: {servers} does not answer")


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"sasl.mechanizm": "PLAIN"}, "source.cluster.sasl.mechanizm: "),
        ({"ssl.ca.location": "/nowhere", "security.protocol": "SSL"}, "ssl.ca.location"),
        ({"sasl.jaas.config": "x"}, "Java JAAS configuration is not supported"),
        ({"security.protocol": "nonsense"}, "source.cluster.security.protocol: "),
    ],
)
def test_properties_that_the_client_does_not_take(properties: dict[str, str], said: str) -> None:
    [problem] = check(servers="127.0.0.1:1", source_cluster=properties)
    assert said in problem


@pytest.mark.parametrize("properties", [{"fetch.wait.max.ms": "soon"}, {"fetch.wait.max.ms": "-1"}])
def test_properties_of_the_consumer_are_named_as_they_were_given(properties: dict[str, str]) -> None:
    [problem] = check(servers="127.0.0.1:1", source_consumer=properties)
    assert problem.startswith("source.consumer.fetch.wait.max.ms: ")


@pytest.mark.parametrize("code", [kafka.KafkaError._AUTHENTICATION, kafka.KafkaError._SSL])
def test_why_nobody_is_let_in_is_said_in_the_place_of_silence(code: int) -> None:
    silence, why = kafka.KafkaError(kafka.KafkaError._TIMED_OUT), kafka.KafkaError(code)
    told = fault_of(silence, "", "k:9092", why)
    assert isinstance(told, SourceRefuses)
    assert "k:9092 does not let this client in" in str(told)
    assert "source.cluster.sasl.mechanism" in str(told)
    assert not isinstance(fault_of(silence, "", "k:9092"), SourceRefuses)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (
            "source.consumer.isolation.level",
            "read_uncommitted",
            "source.consumer.isolation.level has to be read_committed",
        ),
        ("source.cluster.enable.auto.commit", "true", "source.cluster.enable.auto.commit has to be False here"),
        ("source.consumer.bootstrap.servers", "k:1", "source.cluster.bootstrap.servers says it for all"),
        ("source.cluster.bootstrap.servers", " ", "source.cluster.bootstrap.servers is empty"),
        ("source.cluster.sasl.password", "plain", "is a secret"),
        ("source.cluster.plugin.library.paths", "evil", "plugin.library.paths has the client run programs"),
        ("source.consumer.sasl.kerberos.kinit.cmd", "evil", "sasl.kerberos.kinit.cmd has the client run programs"),
    ],
)
def test_settings_that_would_break_what_is_promised(key: str, value: str, said: str) -> None:
    given = {
        "name": "k",
        "connector.class": "kafka-import",
        "source.cluster.alias": "k",
        "source.cluster.bootstrap.servers": "k:9092",
        "topics": "orders",
    }
    assert find_config_problems(given) == ()
    [problem] = find_config_problems(given | {key: value})
    assert said in problem.message


def test_a_client_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "headrace_connect.connectors.kafka_import.cluster", None)
    with pytest.raises(InvalidConfig, match=r"pip install 'headrace-connect\[kafka\]'"):
        KafkaSource(made("k:1"))
