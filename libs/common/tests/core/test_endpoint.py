"""Addresses as people write them."""

from __future__ import annotations

import pytest

from headrace_common.core.ids import Endpoint


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("broker-1:9292", "broker-1", 9292),
        (" 127.0.0.1:0 ", "127.0.0.1", 0),
        ("[::1]:9292", "::1", 9292),
        ("fe80::1%eth0:65535", "fe80::1%eth0", 65535),
    ],
)
def test_an_address_is_read_and_shown(text: str, host: str, port: int) -> None:
    found = Endpoint.parse(text)
    assert found == Endpoint(host, port)
    assert Endpoint.parse(str(found)) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "broker",
        ":1",
        "broker:",
        "broker:65536",
        "broker:-1",
        "broker:\u0663",
        "http://broker:1",
        "http://127.0.0.1:9292",
        "broker/path:1",
        "me@broker:1",
        "two brokers:1",
        "x:y:1",
        "[broker]x:1",
    ],
)
def test_what_is_no_address_says_how_one_is_written(text: str) -> None:
    with pytest.raises(ValueError, match="write it as host:port"):
        Endpoint.parse(text)
