"""A connector of somebody's own: tickets of a help desk that wants a token, each once."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from headrace_connect import Chunk, InvalidConfig, Position, RetriableError, Secret, Source, Split, setting


@dataclass(frozen=True, slots=True)
class Settings:
    """Of ``tickets``."""

    url: str
    """Where the help desk answers."""
    token: Secret
    """Sent with each request."""
    queues: tuple[str, ...]
    """Whose tickets are read; tasks share them."""
    tickets_max: int = setting(100, low=1, high=1_000)
    """Of one request."""


class Tickets(Source[Settings]):
    """Tickets of a help desk, each once."""

    def splits(self) -> Sequence[Split]:
        """One for each queue."""
        return [Split(queue) for queue in self.settings.queues]

    def read(self, split: Split, after: Position | None) -> Iterator[Chunk]:
        """Behind the number of the last ticket."""
        last = after["last"] if after else 0
        while True:
            tickets = self._ask(split.id, last)
            last = tickets[-1]["number"] if tickets else last
            yield Chunk(tickets, {"last": last}, drained=len(tickets) < self.settings.tickets_max)

    def _ask(self, queue: str, after: int) -> list[dict[str, Any]]:
        settings = self.settings
        url = f"{settings.url}/tickets?queue={queue}&after={after}&limit={settings.tickets_max}"
        request = Request(url, headers={"Authorization": f"Bearer {settings.token.reveal()}"})
        try:
            with urlopen(request, timeout=10) as answer:
                return list(json.load(answer))
        except HTTPError as error:
            if error.code == 401:
                raise InvalidConfig(f"token: the help desk does not take it ({error.code})") from error
            raise RetriableError(f"url: {error}") from error
        except OSError as error:
            raise RetriableError(f"url: {settings.url} does not answer: {error}") from error
