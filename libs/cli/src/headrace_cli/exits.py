"""
How commands end: exit codes that scripts can rely on, and a next step for every error. Pure.

====  =============================================================================
 0    done
 1    failed
 2    wrong usage: options, names, settings
 3    the thing named does not exist
 4    the cluster cannot be reached, or cannot serve this now
 5    not finished in the time given; what was asked may still happen
 6    status and health: degraded, all is served
 7    status and health: unavailable, some partitions are not served
130   interrupted with Ctrl+C
141   the reader of the output went away
====  =============================================================================
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Final

from headrace_common.core.configs import BROKER_SETTINGS, TOPIC_SETTINGS
from headrace_common.core.errors import ErrorCode, HeadraceError, Kind


class ExitCode(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4
    TIMED_OUT = 5
    DEGRADED = 6
    UNAVAILABLE = 7
    INTERRUPTED = 130
    BROKEN_PIPE = 141


class CommandFailed(HeadraceError):
    """A command ends with this sentence and this code; raised by commands for what is no error of the cluster."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.FAILED, hint: str = "") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.hint = hint


_DOTTED: Final = re.compile(r"[a-z]+(?:\.[a-z]+)+")
_UNREACHABLE = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.METADATA_UNAVAILABLE,
        ErrorCode.INCONSISTENT_CLUSTER_ID,
    }
)

_BY_KIND = {
    Kind.INVALID: ExitCode.USAGE,
    Kind.UNAUTHENTICATED: ExitCode.FAILED,
    Kind.DENIED: ExitCode.FAILED,
    Kind.NOT_FOUND: ExitCode.NOT_FOUND,
    Kind.MOVED: ExitCode.UNREACHABLE,
    Kind.BUSY: ExitCode.UNREACHABLE,
    Kind.UNKNOWN: ExitCode.TIMED_OUT,
}

_HINTS_BY_KIND = {
    Kind.INVALID: "Correct it; --help shows what the command takes.",
    Kind.UNAUTHENTICATED: "Show another credential: HEADRACE_API_KEY_FILE, or HEADRACE_USERNAME and its password; "
    "that of a profile, or of `headrace login`.",
    Kind.DENIED: "Ask somebody who may for the right; the error names it.",
    Kind.CONFLICT: "The error names what stands in the way; change that, then try again.",
    Kind.BUSY: "`headrace cluster health` says what is missing; then try again.",
    Kind.NOT_FOUND: "The command's own `list` shows the names, as `headrace topic list` and `headrace user list` do.",
}

_HINTS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "`headrace topic list` shows the topics.",
    ErrorCode.TOPIC_ALREADY_EXISTS: "`headrace topic describe NAME` shows it; `headrace topic delete NAME` removes it.",
    ErrorCode.NETWORK_EXCEPTION: "Is it running? `headrace status` looks at the local cluster, `headrace up` starts "
    "one; --bootstrap HOST:PORT or HEADRACE_BOOTSTRAP names another.",
    ErrorCode.INCONSISTENT_CLUSTER_ID: "`headrace status` shows the local cluster; --bootstrap names another.",
    ErrorCode.METADATA_UNAVAILABLE: "Look at etcd and the controller: `headrace status`.",
    ErrorCode.LEADER_NOT_AVAILABLE: "`headrace cluster health` shows which broker is missing.",
    ErrorCode.REQUEST_TIMED_OUT: "`headrace cluster health` shows whether the cluster is well; then try again.",
    ErrorCode.OFFSET_OUT_OF_RANGE: "`headrace topic describe NAME` shows each partition's first and last offset.",
    ErrorCode.DISK_FULL: "Make room on the broker's disk, or shorten retention.ms with `headrace topic set`.",
    ErrorCode.REPLICA_DAMAGED: "`headrace debug dump-log` shows what is left; restore the data or delete the topic.",
    ErrorCode.MESSAGE_TOO_LARGE: "Raise max.message.bytes of the topic with `headrace topic set`, or send less.",
    ErrorCode.INVALID_REPLICATION_FACTOR: "`headrace broker list` shows the brokers there are.",
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: "`headrace broker list` shows the brokers there are; name each once.",
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: "`headrace partition reassignments` shows what is under way.",
    ErrorCode.ELECTION_NOT_NEEDED: "`headrace topic describe NAME` shows who leads.",
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "Wait until it is in sync: `headrace topic describe NAME`.",
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: "`headrace cluster health` says what to start, or what can be given up.",
    ErrorCode.NOT_ENOUGH_REPLICAS: "`headrace cluster health` says which broker is missing.",
    ErrorCode.GROUP_ID_NOT_FOUND: "`headrace group list` shows the groups there are.",
    ErrorCode.NON_EMPTY_GROUP: "Stop its members: `headrace group describe GROUP` shows who and where they are.",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "Stop the members that read it: `headrace group describe GROUP` shows them.",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "Is a coordinator running? `headrace status` shows the local ones; try again.",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "The coordinator has just taken it over; try again in a moment.",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "`headrace txn list` shows the transactional ids there are.",
    ErrorCode.INVALID_TXN_STATE: "`headrace txn describe ID` shows how it is.",
    ErrorCode.TXN_VERDICT_UNKNOWN: "Was it decided long ago? Look at the data; `headrace txn prepared` shows what is "
    "still to be decided.",
    ErrorCode.CONCURRENT_TRANSACTIONS: "Its end is being written; try again in a moment.",
    ErrorCode.INVALID_PRODUCER_EPOCH: "It has moved on meanwhile: `headrace txn list` shows how it is now.",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "It has moved on meanwhile: `headrace txn list` shows how it is now.",
    ErrorCode.UNKNOWN_SERVER_ERROR: "Run it again with --debug and look into the services' logs.",
}

_BY_STATE = {"healthy": ExitCode.OK, "degraded": ExitCode.DEGRADED, "unavailable": ExitCode.UNAVAILABLE}


def exit_code_of_state(state: str) -> ExitCode:
    """The code of ``status`` and ``health`` for what the cluster is called."""
    return _BY_STATE.get(state, ExitCode.FAILED)


def exit_code_of(error: HeadraceError) -> ExitCode:
    """The code a command that met ``error`` ends with."""
    if isinstance(error, CommandFailed):
        return error.exit_code
    if error.code in _UNREACHABLE:
        return ExitCode.UNREACHABLE
    if error.code is ErrorCode.REQUEST_TIMED_OUT:
        return ExitCode.TIMED_OUT
    if error.code is ErrorCode.INVALID_TXN_STATE:
        return ExitCode.FAILED  # the words were right, and it is not so now
    return _BY_KIND.get(error.kind, ExitCode.FAILED)


def _fitting(error: HeadraceError) -> str | None:
    """Where the code alone does not say what was wrong: the text names it."""
    text = str(error)
    if error.code is ErrorCode.INVALID_CONFIG:
        named = set(_DOTTED.findall(text))
        if named & TOPIC_SETTINGS.keys() or "is not a topic setting" in text:
            return "`headrace topic set NAME` shows a topic's settings."
        if named & BROKER_SETTINGS.keys():
            return "`headrace cluster configs --all` shows the brokers' settings."
    if error.kind is Kind.NOT_FOUND and re.search(r"; (it has|there are:) ", text):
        return ""  # it names what there is
    if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and re.search(r"has (no partition|partitions) \d", text):
        return "`headrace topic describe NAME` shows the partitions there are."
    return None


def hint_of(error: HeadraceError) -> str:
    """What to do next; empty when the error's own text says it."""
    if isinstance(error, CommandFailed):
        return error.hint
    if "`headrace" in str(error):
        return ""
    if (fitting := _fitting(error)) is not None:
        return fitting
    by_kind = _HINTS_BY_KIND.get(error.kind, "Run it again with --debug to see where it comes from.")
    return _HINTS.get(error.code, by_kind)
