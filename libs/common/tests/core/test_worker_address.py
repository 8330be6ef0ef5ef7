"""How a worker's address is told to its group, and read again."""

from __future__ import annotations

import pytest

from headrace_common.core.ids import Endpoint
from headrace_common.core.worker_address import WorkerAddress


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0.1:9500",
        "https://10.0.0.1:9500",
        "https://[::1]:1",
        "worker-0.apps:1",
        "tls://10.0.0.1:1",
        "tls://[::1]:1",
    ],
)
def test_it_is_read_as_it_was_told(text: str) -> None:
    read = WorkerAddress.parse(text)
    assert str(read) == text
    assert (read.tls, read.by_kind) == ("://" in text, text.startswith("tls"))


@pytest.mark.parametrize(
    "text",
    [
        *("", "https://", "http://a:1", "https://https://a:1", "https://a:1/x", "dns:///a:1"),
        *("tls://", "tls://https://a:1", "https://tls://a:1", "tls://a:1/b.headrace"),
    ],
)
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an address"):
        WorkerAddress.parse(text)


def test_the_host_and_port_are_what_is_connected_to() -> None:
    assert WorkerAddress.parse("https://a:1") == WorkerAddress(Endpoint("a", 1), tls=True)
    assert WorkerAddress.parse("tls://a:1") == WorkerAddress(Endpoint("a", 1), tls=True, by_kind=True)
