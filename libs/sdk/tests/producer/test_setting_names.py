"""Settings under the names that people bring from other clients."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from headrace import AdminClient, Consumer, Producer, aio
from headrace._transport.grpc import GrpcTransport
from headrace.aio.admin import AdminSettings
from headrace.consumer_settings import ConsumerSettings
from headrace.errors import InvalidConfig
from headrace.settings import ClientSettings, ProducerSettings, read_settings

NOBODY = "127.0.0.1:1"
KINDS = (ProducerSettings, ConsumerSettings, AdminSettings)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_setting_is_taken_with_dots(kind: type[ClientSettings]) -> None:
    for field in fields(kind):
        with pytest.raises(InvalidConfig) as error:
            read_settings(kind, {field.name.replace("_", "."): field.default, "no.such.setting": 1})
        assert str(error.value).count("is not a setting") == 1


@pytest.mark.parametrize("make", [Producer, AdminClient, Consumer, aio.Producer, aio.AdminClient, aio.Consumer])
def test_all_clients_take_the_dict_of_confluent_kafka(make: Any) -> None:
    settings = {"bootstrap.servers": NOBODY, "client.id": "mine", "security.protocol": "PLAINTEXT"}
    transport = GrpcTransport([NOBODY])
    for client in (make(settings, _transport=transport), make(_transport=transport, **settings)):
        assert getattr(client, "_twin", client)._settings.client_id == "mine"
        if not make.__module__.startswith("headrace.aio"):
            client.close()
        client._closed = True


def test_the_address_is_the_one_that_was_given() -> None:
    with Producer({"bootstrap.servers": f"{NOBODY},127.0.0.1:2"}) as producer:
        assert producer._engine._transport._bootstrap == [NOBODY, "127.0.0.1:2"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"queue.buffering.max.kbytes": 1}, "buffer_memory"),
        ({"message.timeout.ms": 1}, "delivery_timeout_ms"),
        ({"dr_cb": print}, "on_delivery"),
        ({"security.protocol": "SASL"}, "takes PLAINTEXT, SSL"),
        ({"security.protocol": "SASL_SSL"}, "needs ssl_ca_location"),
        ({"security.protocol": "SSL"}, "needs ssl_ca_location"),
        ({"security.protocol": "PLAINTEXT", "ssl.ca.location": "ca.pem"}, "needs TLS"),
        ({"ssl.ca.location": "/no/such/ca.pem"}, "cannot be read"),
        ({"sasl.mechanism": "PLAIN"}, "takes SCRAM-SHA-256, SCRAM-SHA-512"),
        ({"ssl.keystore.location": "me.jks"}, "docs/coming-from.md#tls-and-sasl"),
        ({"ssl.certificate.location": "me.pem"}, "cert_file and key_file are given together"),
        ({"ssl.certificate.location": "me.pem", "ssl.key.location": "me.key"}, "cert_file needs TLS"),
        ({"ssl.truststore.location": "ca.jks"}, "ssl_ca_location"),
        ({"ssl_cafile": "ca.pem"}, "ssl_ca_location"),
        ({"ssl.endpoint.identification.algorithm": ""}, "always checked"),
        ({"sasl_plain_password": "x"}, "has a username"),
        ({"api_version": (2, 0)}, "leave it out"),
        ({"socket.keepalive.enable": True}, "leave it out"),
        ({"linger.sm": 1}, "did you mean linger_ms"),
        ({"bootstrap.servers": "a:1", "metadata.broker.list": "b:1"}, "more than once"),
    ],
)
def test_what_is_something_else_here_is_told(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        Producer(given)
    with pytest.raises(InvalidConfig, match=said):
        Producer(**given)


def test_a_setting_of_a_dict_and_an_argument_are_one_too_many() -> None:
    with pytest.raises(InvalidConfig, match="linger_ms: given in the dict and as an argument"):
        Producer({"linger.ms": 1}, linger_ms=2)
    with pytest.raises(InvalidConfig, match="more than once"):
        Producer(NOBODY, **{"bootstrap.servers": NOBODY})  # type: ignore[arg-type]


def test_a_dict_beside_topics_is_no_topic() -> None:
    with pytest.raises(Exception, match="topic"):
        Consumer("t", {"bootstrap.servers": NOBODY})
