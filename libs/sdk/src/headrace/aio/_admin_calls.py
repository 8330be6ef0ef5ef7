"""What all parts of ``headrace.aio.AdminClient`` have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, ParamSpec, TypeVar

from headrace.errors import Rejected

P = ParamSpec("P")
T = TypeVar("T")


class AdminCalls(ABC):
    """
    The base of the parts. Each of their calls refuses text that UTF-8 cannot write, as what was not UTF-8 has in
    Python (half of a surrogate pair): nothing can be called so.
    """

    def __init_subclass__(cls) -> None:
        for name, method in list(vars(cls).items()):
            if iscoroutinefunction(method) and not name.startswith("_"):
                setattr(cls, name, _refusing_what_is_no_text(method))

    @abstractmethod
    async def _call(self, ask: Callable[[Any, float], Awaitable[T]], *, change: bool = False) -> T:
        """Ask the cluster; see ``AdminClient``, which brings it."""


def _refusing_what_is_no_text(method: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    @wraps(method)
    async def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await method(*args, **kwargs)
        except UnicodeEncodeError as error:
            raise Rejected(f"{error.object[:80]!a} is not UTF-8 text, so nothing can be called so") from None

    return checked
