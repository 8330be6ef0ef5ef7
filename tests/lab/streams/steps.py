"""The steps of a worker, one after the other, for whoever wants to hurt it at one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest.mock import patch

from headrace.aio.producer import Producer
from headrace_streams.adapters.headrace_io import SdkReader, SdkTopics, SdkWriter, SdkWriters
from headrace_streams.runtime.committing import Committing
from headrace_streams.runtime.following import Changelogs
from headrace_streams.runtime.taking import Taking
from headrace_streams.runtime.worker import Worker

STEPS: Final[dict[str, tuple[Any, str]]] = {
    "join": (Worker, "_join"),
    "init": (SdkWriter, "start"),
    "take": (Taking, "take"),
    "end": (SdkWriters, "end"),
    "fence": (SdkWriter, "fence"),
    "positions read": (SdkReader, "committed"),
    "ends": (SdkReader, "ends"),
    "reach": (Changelogs, "reach"),
    "apply": (Changelogs, "_apply"),
    "give up": (Worker, "_give_up"),
    "begin": (SdkWriter, "begin"),
    "send": (SdkWriter, "send"),
    "send at once": (SdkWriter, "send_at_once"),
    "deliver": (SdkWriter, "_deliver"),
    "prepare": (SdkWriter, "commit"),
    "positions": (Producer, "send_offsets_to_transaction"),
    "commit": (Producer, "commit_transaction"),
    "keep": (Committing, "_keep"),
    "trim": (SdkTopics, "trim"),
    "abort": (SdkWriter, "abort"),
    "recover": (Worker, "_recover"),
}
"""Names, and the functions that do them."""


@contextmanager
def noticed(notice: Callable[[str], None]) -> Iterator[None]:
    """While this runs ``notice`` is called before each step, on the node that takes it."""
    with ExitStack() as patches:
        for step, (owner, name) in STEPS.items():
            patches.enter_context(patch.object(owner, name, _noticing(getattr(owner, name), step, notice)))
        yield


def _noticing(take: Callable[..., Any], step: str, notice: Callable[[str], None]) -> Callable[..., Any]:
    async def taken(*args: Any, **settings: Any) -> Any:
        notice(step)
        return await take(*args, **settings)

    return taken
