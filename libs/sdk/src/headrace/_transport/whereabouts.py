"""
Decides where the cluster's nodes are now, from what several brokers say, some of which lag behind.

``grpc.GrpcTransport`` tells it what it hears, and keeps connections to ``addresses`` only: a node that starts again may
have another address each time, and nobody else ever comes to its old one.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

from headrace._transport.newest import Newest
from headrace_common.core.ids import Endpoint, NodeId
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import cluster_pb2


class _Home(NamedTuple):
    """An address, and the registration that named it; they count up over all nodes of a cluster."""

    epoch: int
    address: str


class Whereabouts:
    """One per client; no I/O."""

    def __init__(self) -> None:
        self.brokers: dict[NodeId, str] = {}
        self.admins: list[str] = []
        """Those that the newest answer named; who is fenced comes last."""
        self.living: set[str] = set()
        """Brokers that the newest answer named: they are not fenced."""
        self._newest = Newest()
        self._homes: dict[tuple[int, NodeId], _Home] = {}
        self._coordinators: dict[NodeId, tuple[str, ...]] = {}
        """Where each may be."""
        self._left: dict[NodeId, str] = {}
        """Where each was before."""
        self._names: dict[str, str] = {}
        self._renamed: set[str] = set()

    @property
    def addresses(self) -> set[str]:
        """Where nodes are, as far as is known."""
        return {home.address for home in self._homes.values()}.union(*self._coordinators.values())

    def server_name_at(self, address: str) -> str | None:
        """What the certificate of the node that is there names; None: its address."""
        return self._names.get(address) or None

    def take_renamed(self) -> set[str]:
        """Where, since this was asked last, another kind of node has come to be: pods take over addresses."""
        renamed, self._renamed = self._renamed, set()
        return renamed

    def learn(self, answer: pb.MetadataResponse) -> dict[NodeId, str]:
        """Brokers that have moved, and where they were. What an older registration said of a node changes nothing."""
        another = self._newest.is_another(answer)
        self._newest.take(answer)
        if another:
            self._homes = {who: home._replace(epoch=-1) for who, home in self._homes.items()}
        admins: list[tuple[bool, str]] = []
        moved: dict[NodeId, str] = {}
        for node in answer.nodes:
            if node.role not in (cluster_pb2.BROKER, cluster_pb2.ADMIN):
                continue
            who, id = (node.role, NodeId(node.id)), NodeId(node.id)
            home, known = _Home(node.epoch, str(Endpoint(node.grpc.host, node.grpc.port))), self._homes.get(who)
            if known is not None and known.epoch > home.epoch:
                home = known
            else:
                self._is_named(home.address, node.grpc.server_name)
            self._homes[who] = home
            if node.role == cluster_pb2.ADMIN:
                admins.append((node.fenced, home.address))
                continue
            self.brokers[id] = home.address
            if known is not None and known.address != home.address:
                moved[id] = known.address
        self.living = {self.brokers[NodeId(node.id)] for node in answer.nodes if node.role == cluster_pb2.BROKER}
        self.admins = [address for _, address in sorted(admins, key=lambda admin: admin[0])]
        self._names = {address: name for address, name in self._names.items() if address in self.addresses}
        return moved

    def coordinator_at(self, id: NodeId, address: str, server_name: str = "") -> None:
        """
        A broker says that a coordinator is there. It counts as moved when that is news. The place that it has left last
        is no news: a broker that lags may have said so, or it is back, and until the next news both count.
        """
        self._is_named(address, server_name)
        places = self._coordinators.get(id, ())
        if address in places:
            return
        if address == self._left.get(id):
            self._coordinators[id] = (*places, address)
            return
        if places:
            self._left[id] = places[0]
        self._coordinators[id] = (address,)

    def _is_named(self, address: str, name: str) -> None:
        if self._names.get(address, name) != name:
            self._renamed.add(address)
        self._names[address] = name

    def copy(self) -> Whereabouts:
        """What is known of brokers and admin services, for another client."""
        twin = Whereabouts()
        twin.brokers, twin.admins, twin._newest = dict(self.brokers), list(self.admins), copy.copy(self._newest)
        twin.living, twin._homes, twin._names = set(self.living), dict(self._homes), dict(self._names)
        return twin
