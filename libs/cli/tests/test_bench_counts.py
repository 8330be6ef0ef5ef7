"""``bench e2e`` makes as many records as it was told."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from headrace_cli.commands.bench import round_trips


class Client:
    """Both clients: acknowledges and returns each record at once."""

    sent: ClassVar[list[bytes]] = []

    def __init__(self, *_: Any, **__: Any) -> None:
        self.sent.clear()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def send(self, topic: str, value: bytes) -> Any:
        self.sent.append(value)

        async def acknowledged() -> None:
            pass

        return acknowledged()

    async def poll(self, timeout_ms: int) -> list[bytes]:
        return self.sent[-1:]


@pytest.mark.parametrize("records", [1, 3, 200, 1_000])
async def test_as_many_records_as_wanted(records: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.aio.Producer", Client)
    monkeypatch.setattr("headrace.aio.Consumer", Client)
    made = await round_trips(["b:1"], "t", records, 10, "all")
    assert len(Client.sent) == made["records"] == records
    assert made["ack_ms"]
