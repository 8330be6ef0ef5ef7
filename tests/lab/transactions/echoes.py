"""
Requests that are heard twice: an old connection, a proxy, a client that was paused between two attempts.

The second copy comes up to eight seconds later, to whoever then serves at the address. Nobody hears what is said to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from unittest.mock import patch

from headrace_lab.call import Call
from headrace_lab.loop import LabLoop
from headrace_lab.network import Connection, Network

HEARD_TWICE = frozenset(
    {
        "AddPartitionsToTxn",
        "CommitUnit",
        "DecidePrepared",
        "End",
        "EndTxn",
        "Enrol",
        "InitOwner",
        "InitTransactionalId",
        "Mark",
        "PrepareTxn",
        "Produce",
        "TxnOffsetCommit",
        "WriteTxnMarkers",
    }
)
WITHIN_S = (0.03, 0.3, 0.3, 1.0, 8.0)
TIMEOUT_S = 10.0


class Echoes:
    """Of one network; ``share`` of all requests that change something."""

    def __init__(self, network: Network, random: Random, share: float) -> None:
        self._network = network
        self._random = random
        self.share = share
        self.count = 0

    @contextmanager
    def heard(self) -> Iterator[None]:
        """While this runs requests are heard twice."""
        sent = Call.send

        def send(call: Call, raw: bytes) -> None:
            sent(call, raw)
            connection, method = call.connection, call.method.rpartition("/")[2]
            if connection is None or method not in HEARD_TWICE or self._random.random() >= self.share:
                return
            delay = self._random.random() * self._random.choice(WITHIN_S)
            loop, name = self._network.loop, connection.server.node.name
            loop.call_later(delay, self._repeat, call, raw, name, context=loop.test.context)

        def _send(call: Call, raw: bytes) -> None:
            sent(call, raw)

        self._sent = _send
        with patch.object(Call, "send", send):
            yield

    def _repeat(self, call: Call, raw: bytes, name: str) -> None:
        network = self._network
        server = next((one for one in network.servers.values() if one.node.name == name), None)
        if server is None or self.share == 0:
            return
        loop = network.loop
        assert isinstance(loop, LabLoop)
        self.count += 1
        connection = Connection(network, loop.test, server)
        again = Call(loop, connection, call.method, call.metadata, TIMEOUT_S, (server.bytes_max, 1 << 24))
        self._sent(again, raw)
        again.send_end()
