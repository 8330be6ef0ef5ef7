"""``lab``: a cluster for one test, in the test's own process and on its own event loop."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from headrace_common.core.errors import InvalidConfig, Rejected
from headrace_common.runtime.machine import MACHINE
from headrace_lab.adopting import adopt_loop
from headrace_lab.cluster import Cluster
from headrace_lab.lab import laboratory

SEED_VARIABLE: Final = "HEADRACE_LAB_SEED"
"""Seed of every lab that is given none."""
SEEDS: Final = 1 << 32


@asynccontextmanager
async def lab(
    seed: int | None = None, *, brokers: int = 1, controllers: int = 1, coordinators: int = 1
) -> AsyncIterator[Cluster]:
    """
    A cluster of real brokers, controllers, coordinators and an admin service, whose time is virtual.

    All that happens in the block, faults and the order of what happens at the same time included, comes from the seed:
    a test that fails says it, and fails again with it. Clients are those of ``headrace.aio``; real sockets, threads and
    files of the test itself do not move while it runs. Enter and leave it in the test itself, not in a fixture.

    Args:
        seed: None: that of ``HEADRACE_LAB_SEED``, else another each time.

    Raises:
        Rejected: the test does not run on asyncio's own event loop; or there is no broker, or no controller.
        InvalidConfig: HEADRACE_LAB_SEED is no number.
    """
    if min(brokers, controllers) < 1 or coordinators < 0 or not isinstance(seed, int | None):
        raise Rejected("a lab takes at least one broker and one controller, and a seed that is a whole number")
    chosen = _choose_seed() if seed is None else seed
    try:
        with adopt_loop(chosen) as loop, laboratory(loop) as laboratory_:
            cluster = Cluster(laboratory_, brokers=brokers, controllers=controllers, coordinators=coordinators)
            try:
                await cluster.start()
                yield cluster
            finally:
                await loop.end_tasks()
                await cluster.end()
    except BaseException as error:
        error.add_note(f"lab: seed {chosen} repeats this; call lab(seed={chosen}) or set {SEED_VARIABLE}={chosen}")
        raise


def _choose_seed() -> int:
    text = os.environ.get(SEED_VARIABLE)
    if text is None:
        return int(MACHINE.get().random() * SEEDS)
    try:
        return int(text)
    except ValueError as error:
        raise InvalidConfig(f"{SEED_VARIABLE} takes a whole number, not {text!r}") from error
