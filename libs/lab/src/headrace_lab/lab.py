"""What code that runs in the lab finds in place of its machine: time, chance and gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, Final

from headrace._runtime import INSTEAD as THREAD
from headrace._runtime import LoopThread
from headrace_common.rpc.library import INSTEAD as GRPC
from headrace_common.runtime.machine import MACHINE
from headrace_lab.library import LabGrpc
from headrace_lab.loop import LabLoop, Node
from headrace_lab.machine import LabMachine
from headrace_lab.network import Network
from headrace_lab.threads import LabThread


class Lab:
    """A loop, its network, and nodes. Made by ``laboratory``."""

    def __init__(self, loop: LabLoop) -> None:
        self.loop: Final = loop
        self.network: Final = Network(loop)
        self.machine: Final = LabMachine(loop)

    def node(self, name: str) -> Node:
        """A process of its own, which finds the lab in place of its machine."""
        return Node(name)


@contextmanager
def laboratory(loop: LabLoop, thread: LoopThread | None = None) -> Iterator[Lab]:
    """
    In the block, and in tasks and nodes that are made there, time, chance and connections are the lab's. ``thread``:
    that on which a loop in real time runs; its time and chance are the machine's own.
    """
    lab = Lab(loop)
    with install_lab(lab, thread):
        loop.test.join(copy_context())
        yield lab


@contextmanager
def install_lab(lab: Lab, thread: LoopThread | None = None) -> Iterator[None]:
    """In the block the lab is found where the machine would be."""
    found: list[tuple[ContextVar[Any], Any]] = [
        (GRPC, LabGrpc(lab.network)),
        (THREAD, thread or LabThread(lab.loop)),
    ]
    if lab.loop.virtual:
        found.append((MACHINE, lab.machine))
    before = [(variable, variable.set(instead)) for variable, instead in found]
    try:
        yield
    finally:
        for variable, token in before:
            variable.reset(token)
