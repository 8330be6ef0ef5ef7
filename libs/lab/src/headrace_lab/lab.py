"""What code that runs in the lab finds in place of its machine: time, chance and gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from headrace_common.rpc.library import INSTEAD
from headrace_common.runtime.machine import MACHINE
from headrace_lab.library import LabGrpc
from headrace_lab.loop import LabLoop, Node
from headrace_lab.machine import LabMachine
from headrace_lab.network import Network


class Lab:
    """A loop, its network, and nodes. Made by ``laboratory``."""

    def __init__(self, loop: LabLoop) -> None:
        self.loop: Final = loop
        self.network: Final = Network(loop)

    def node(self, name: str) -> Node:
        """A process of its own, which finds the lab in place of its machine."""
        return Node(name)


@contextmanager
def laboratory(loop: LabLoop) -> Iterator[Lab]:
    """In the block, and in tasks and nodes that are made there, time, chance and connections are the lab's."""
    lab = Lab(loop)
    grpc_before, machine_before = INSTEAD.set(LabGrpc(lab.network)), MACHINE.set(LabMachine(loop))
    try:
        yield lab
    finally:
        MACHINE.reset(machine_before)
        INSTEAD.reset(grpc_before)
