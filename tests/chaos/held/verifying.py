"""The load and the checker of ``headrace verify run`` in a thread, while a test breaks the cluster."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from headrace import Consumer
from headrace_verify.plan import EVENTS_MAX, Plan
from headrace_verify.report import Report
from headrace_verify.running import Run, State

LONG = os.environ.get("HELD_LONG") == "1"
SEED = int(os.environ.get("CHAOS_SEED", "20261123"))
HOURS_S = 7_200.0
BEGIN_S = 60.0
END_S = 400.0
"""Reading and judging, and first a cluster that comes back."""
LOOK_S = 0.05
PREFIX = "headrace-verify"
"""Of all names."""


class Verifying:
    """One run."""

    def __init__(self, servers: Sequence[str], events_max: int) -> None:
        self.plan = Plan(tuple(servers), secrets.token_hex(4), HOURS_S, PREFIX, seed=SEED, events_max=events_max)
        self.stop = threading.Event()
        self.state = State("begin", 0, 0.0, 0, 0)
        self.report: Report | None = None
        self.failed: Exception | None = None
        self._run = Run(self.plan, self.stop, self._note)
        self._thread = threading.Thread(target=self._go, daemon=True)

    def _note(self, state: State) -> None:
        self.state = state

    def _go(self) -> None:
        try:
            self.report = self._run.run()
        except Exception as error:  # noqa: BLE001 - told by the test, in its thread
            self.failed = error

    @property
    def log(self) -> str:
        """The topic that is written to now."""
        return self.plan.names(self.state.round).log

    @property
    def copies(self) -> str:
        """The topic that copiers write to now."""
        return self.plan.names(self.state.round).copies

    def start(self) -> None:
        """Return when records flow."""
        self._thread.start()
        deadline = time.monotonic() + BEGIN_S
        while not (self.state.phase == "load" and self.state.events > 100):
            assert self.failed is None, repr(self.failed)
            assert time.monotonic() < deadline, self.state
            time.sleep(LOOK_S)

    def wait_copied(self) -> None:
        """Return when copiers have copied something: after a start they join their group and log in first."""
        with Consumer(
            self.copies,
            bootstrap_servers=self.plan.servers,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        ) as consumer:
            deadline = time.monotonic() + BEGIN_S
            while not consumer.poll(200) and self.state.round < 2:
                assert time.monotonic() < deadline, f"seed {SEED}: nothing is copied: {self.state}"

    def end(self) -> Report:
        """The verdict on all that was done."""
        self.stop.set()
        self._thread.join(END_S)
        assert self.failed is None, f"seed {SEED}: {self.failed!r}"
        assert self.report is not None, f"seed {SEED}: it hangs in {self.state}"
        return self.report


@contextlib.contextmanager
def verifying(servers: Sequence[str], events_max: int = EVENTS_MAX) -> Iterator[Verifying]:
    """It runs when the block begins, and ends with it."""
    one = Verifying(servers, events_max)
    try:
        one.start()
        yield one
    finally:
        one.stop.set()


def judge(name: str, report: Report, acknowledged_min: int, **figures: object) -> None:
    """Nothing was found, and there was something to find it in; a line for people and docs."""
    told = report.as_json()
    told["availability"].pop("per_second")
    outages = told["availability"].pop("outages")
    figures |= {"rounds": report.rounds, "load_s": told["load_seconds"], **told["records"]}
    figures |= {"transactions": told["transactions"], "errors": sum(report.errors.values()), "outages": len(outages)}
    figures |= {"longest_s": told["availability"]["longest_outage_s"], "anomalies": dict(report.anomalies)}
    print(f"\n{name}: seed {SEED}; {figures}", file=sys.stderr)
    assert report.sound, f"seed {SEED}\n{report.as_markdown()}"
    assert report.acknowledged > acknowledged_min, f"seed {SEED}: too little was acknowledged\n{report.as_markdown()}"
    assert report.copied, "copiers copied something"
