"""
Ports that a parent holds for its children, so that nobody else gets one while the child that listens there is dead.

The parent has a socket on each that is bound and does not listen: who connects is refused, and nobody else can bind. A
child inherits it, and lets servers share the port (SO_REUSEPORT) for the moment in which its own begins to listen. On
Linux only servers of the same user share. macOS lets root share too, and anybody bind to all addresses beside this one,
which goes before it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from errno import EADDRINUSE
from functools import cache
from typing import Final

from headrace_common.core.ids import Endpoint

VARIABLE: Final = "HEADRACE_HELD_PORTS"
"""Of a child's environment: descriptors of the sockets that it has inherited."""
_CONNECT_SECONDS: Final = 1.0
_UNUSED: Final = "127.86.17.3"
"""An address of the loopback that nothing listens on."""


def hold_port(host: str, port: int) -> socket.socket | None:
    """
    The socket that holds it, until that is closed in every process that has it. None: somebody has the port, listens
    there or will; or ``host`` is no address of this machine.

    Args:
        host: an address, no name.
    """
    for after_others in (False, True):  # connections of before are in the way of the first, which is the stricter
        held = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            if held.family == socket.AF_INET6:
                held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(after_others))
            held.bind((host, port))
        except OSError:
            held.close()
            continue
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        return held
    return None


def for_child(held: Iterable[socket.socket]) -> dict[str, str]:
    """What a child's environment says of those that it inherits."""
    return {VARIABLE: ",".join(str(each.fileno()) for each in held)}


def keep_alone(held: socket.socket) -> None:
    """Nobody may share it from now on; whoever listens there already goes on."""
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 0)
    # Linux remembers of a port that the last to bind there would share, and then asks no other; this one would not.
    with contextlib.suppress(OSError), socket.socket() as forgetting:
        forgetting.bind((_UNUSED, held.getsockname()[1]))


@contextmanager
def shared(listen: Endpoint, *, first: bool = True) -> Iterator[bool]:
    """
    In the block servers of this user, and of nobody else, can listen there with SO_REUSEPORT, if the port is held for
    this process; yields whether it is.

    Args:
        first: nobody may listen there yet.

    Raises:
        OSError: it is held, and somebody of this user listens there already.
    """
    held = _inherited().get((listen.host, listen.port))
    if held is None:
        yield False
        return
    if first:
        _refuse_taken(listen)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        yield True
    finally:
        keep_alone(held)


def _refuse_taken(listen: Endpoint) -> None:
    """Nobody can begin to listen now, so who is connected to was there before: another server of this user."""
    try:
        socket.create_connection((listen.host, listen.port), _CONNECT_SECONDS).close()
    except OSError:
        return
    raise OSError(EADDRINUSE, os.strerror(EADDRINUSE))


@cache
def _inherited() -> Mapping[tuple[str, int], socket.socket]:
    return take_inherited(os.environ)


def take_inherited(environment: MutableMapping[str, str]) -> Mapping[tuple[str, int], socket.socket]:
    """The sockets by address. They are this process's alone: its children get neither them nor the variable."""
    found: dict[tuple[str, int], socket.socket] = {}
    for text in environment.pop(VARIABLE, "").split(","):
        if not text.isdigit() or not _is_socket(int(text)):
            continue
        held = socket.socket(fileno=int(text))
        held.set_inheritable(False)
        host, port = held.getsockname()[:2]
        found[host, port] = held
    return found


def _is_socket(descriptor: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError:
        return False
