"""
What SIGTERM and SIGINT do to a program that commits what it has read until it is stopped, and what it says then.
Programs of Streams and ``headrace connect run`` call it; services have their own (``service``), which logs JSON.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from functools import partial
from typing import Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
INTERRUPTED_TWICE: Final = 130
"""How a process ends that was interrupted again, while it made its last commit; a shell's number."""


def listen_for_signals(stop: asyncio.Event, log: logging.Logger, what: str, seen: str) -> None:
    """
    SIGTERM and SIGINT set ``stop``; SIGINT ends the process if that was set before. SIGTERM does not: a parent may send
    it twice. A process that a function of the program forks ends by them instead, and this one does not hear of it:
    signals of the child would come through the socket that both have.

    Args:
        log: where SIGINT is answered.
        what: commits and ends.
        seen: see ``words_of_early_end``.
    """

    def interrupt() -> None:
        if stop.is_set():
            log.warning("%s", words_of_early_end(what, seen))
            logging.shutdown()
            os._exit(INTERRUPTED_TWICE)
        log.warning("%s", words_of_end(what, signal.SIGINT))
        stop.set()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupt)
    os.register_at_fork(
        before=partial(signal.pthread_sigmask, signal.SIG_BLOCK, SIGNALS),
        after_in_parent=partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, SIGNALS),
        after_in_child=_end_by_signals,
    )


def words_of_end(what: str, number: int) -> str:
    """What a signal does that came first."""
    again = "Ctrl+C again" if number == signal.SIGINT else "a second signal"
    return f"{what} commits what it has read and ends; {again} ends it at once, without that commit"


def words_of_early_end(what: str, seen: str) -> str:
    """What has become of what was not committed; ``seen`` says how often readers see what is done again."""
    return (
        f"{what} ended without its last commit. Nothing is lost: the next start does again what was not committed, "
        f"and {seen}"
    )


def _end_by_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
