"""Calls of a port by the names of their RPCs: a test makes them, and puts others in their place."""

from __future__ import annotations

from typing import Any


class _Names:
    """A stub whose methods are their names."""

    def __getattr__(self, rpc: str) -> str:
        return rpc


_NAMES = _Names()


class Calls:
    """
    ``Calls(brokers).ListOffsets`` calls what the port has now; assigned to, it is called instead, by the engines too.

    Args:
        ask: the port's method for these calls.
    """

    def __init__(self, port: Any, ask: str = "ask") -> None:
        self.__dict__ |= {"_port": port, "_ask": ask}

    def __getattr__(self, rpc: str) -> Any:
        asked = getattr(self.__dict__["_port"], self.__dict__["_ask"])

        async def call(*args: Any) -> Any:
            *where, request = args
            return await asked(*where, lambda stub: getattr(stub, rpc), request)

        return call

    def __setattr__(self, rpc: str, call: Any) -> None:
        asked = getattr(self.__dict__["_port"], self.__dict__["_ask"])

        async def ask(*args: Any) -> Any:
            *where, method, request = args
            return await (call(*where, request) if method(_NAMES) == rpc else asked(*args))

        setattr(self.__dict__["_port"], self.__dict__["_ask"], ask)
