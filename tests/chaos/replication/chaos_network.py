"""
A network for each process, so that connections can be cut between two of them, both ways or one.

Each process has a network namespace of its own, and each namespace one cable to a hub, which forwards packets. A cut is
a rule in the hub (``from A to B blackhole``): packets vanish without a word, as on a broken line. Needs Linux and root.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

HERE = "here"
"""The name of the side on which the tests and their clients are."""
RULE_FIRST = 100


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@dataclass(slots=True)
class Network:
    """Made by ``network``."""

    tag: str
    hosts: dict[str, str] = field(default_factory=dict)
    """Name → address."""
    cuts: set[tuple[str, str]] = field(default_factory=set)

    @property
    def launchers(self) -> Mapping[str, Sequence[str]]:
        """What starts a process inside its network."""
        return {name: ("ip", "netns", "exec", self._inside(name)) for name in self.hosts if name != HERE}

    def cut(self, source: str, target: str) -> None:
        """Nothing that ``source`` sends reaches ``target`` any more."""
        if (source, target) not in self.cuts:
            self._rule("add", source, target)
            self.cuts.add((source, target))

    def heal(self) -> None:
        """All cuts are undone."""
        for source, target in self.cuts:
            self._rule("del", source, target)
        self.cuts.clear()

    def _rule(self, what: str, source: str, target: str) -> None:
        between = ("from", self.hosts[source], "to", self.hosts[target])
        _ip("-n", self._inside("hub"), "rule", what, *between, "priority", str(RULE_FIRST), "blackhole")

    def _inside(self, name: str) -> str:
        return f"{self.tag}-{name}"

    def _connect(self, number: int, name: str, net: str) -> None:
        """One cable between the hub and a namespace, or (``HERE``) the machine."""
        gateway, address = f"{net}.{number}.1", f"{net}.{number}.2"
        hub, outer = self._inside("hub"), f"{self.tag}{number}"
        if name == HERE:
            _ip("link", "add", outer, "type", "veth", "peer", "name", f"v{number}", "netns", hub)
            _ip("addr", "add", f"{address}/24", "dev", outer)
            _ip("link", "set", outer, "up")
        else:
            inside = self._inside(name)
            _ip("netns", "add", inside)
            _ip("link", "add", f"v{number}", "netns", hub, "type", "veth", "peer", "name", "eth0", "netns", inside)
            _ip("-n", inside, "link", "set", "lo", "up")
            _ip("-n", inside, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", inside, "link", "set", "eth0", "up")
            _ip("-n", inside, "route", "add", "default", "via", gateway)
        _ip("-n", hub, "addr", "add", f"{gateway}/24", "dev", f"v{number}")
        _ip("-n", hub, "link", "set", f"v{number}", "up")
        if name == HERE:
            _ip("route", "add", f"{net}.0.0/16", "via", gateway)
        self.hosts[name] = address

    def _remove(self) -> None:
        for name in ["hub", *self.hosts]:
            with suppress(OSError):
                _ip("netns", "del", self._inside(name))


@contextmanager
def network(names: Sequence[str]) -> Iterator[Network]:
    """
    A namespace for each name, and ``HERE``; gone at the end of the block.

    Raises:
        OSError: not root, or the kernel has no network namespaces.
    """
    if os.geteuid() != 0:
        raise OSError("network namespaces need root; run this as root")
    made = Network(f"hr{os.getpid()}")
    net = f"10.{128 + os.getpid() % 120}"
    try:
        _ip("netns", "add", made._inside("hub"))
        forward = ["ip", "netns", "exec", made._inside("hub"), "sysctl", "-q", "-w", "net.ipv4.ip_forward=1"]
        subprocess.run(forward, check=True)
        for number, name in enumerate([HERE, *names], start=1):
            made._connect(number, name, net)
        yield made
    finally:
        made._remove()
