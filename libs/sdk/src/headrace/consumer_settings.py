"""
Decides what a consumer may be told: Kafka's setting names with underscores, their bounds, and the rules between them.

``Consumer(**settings)`` of both twins reads its keyword arguments here::

    >>> from headrace.consumer_settings import ConsumerSettings
    >>> from headrace.settings import read_settings
    >>> read_settings(ConsumerSettings, {"auto_offset_reset": "by_duration:PT1H"}).max_poll_records
    500
    >>> read_settings(ConsumerSettings, {"check_crc": 1})
    Traceback (most recent call last):
    ...
    headrace_common.core.errors.InvalidConfig: check_crc is not a setting; did you mean check_crcs?
    >>> read_settings(ConsumerSettings, {"group_id": "g", "session_timeout_ms": 6_000})
    Traceback (most recent call last):
    ...
    headrace_common.core.errors.InvalidConfig: session_timeout_ms is for group_protocol='classic': ...
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from headrace._core.fetch_events import LogDiverged, PositionReset, TopicRecreated
from headrace._core.fetch_plans import FetchLimits
from headrace._core.group_messages import GroupSettings
from headrace._core.starts import parse_reset
from headrace.setting_types import (
    Assignor,
    AutoOffsetReset,
    DeserializerName,
    GroupProtocol,
    IsolationLevel,
    RemoteAssignor,
)
from headrace.settings import INT_MAX, ClientSettings, read_settings
from headrace_common.core.assignors import ASSIGNORS, COOPERATIVE
from headrace_common.core.bounds import setting
from headrace_common.core.errors import InvalidConfig

READ_UNCOMMITTED = "read_uncommitted"
READ_COMMITTED = "read_committed"
CONSUMER: Final = "consumer"
CLASSIC: Final = "classic"
GROUP_ID_LENGTH_MAX: Final = 249
ASSIGNORS_MAX: Final = 16
CLASSIC_ONLY: Final = ("session_timeout_ms", "heartbeat_interval_ms", "partition_assignment_strategy")
"""In the server-side protocol the coordinator decides these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings(ClientSettings):
    """Settings of a consumer. Defaults are those of Kafka's Java client 4.x."""

    group_id: str | None = None
    """The group whose members share the partitions, and under which positions are committed; 1 to 249 characters."""
    group_protocol: GroupProtocol = setting(CONSUMER, choices=get_args(GroupProtocol))
    """Who assigns partitions: ``consumer``: the coordinator (KIP-848); ``classic``: a member."""
    group_instance_id: str | None = None
    """Static membership: the name of this instance, unique in its group. A restart within the session moves nothing."""
    session_timeout_ms: int = setting(45_000, low=1, high=INT_MAX)
    """Classic: how long the coordinator hears nothing before a member is out. A broken connection is noticed before."""
    heartbeat_interval_ms: int = setting(3_000, low=1, high=INT_MAX)
    """Classic: how often to say that this member lives. Rebalances are told at once, whatever it is."""
    max_poll_interval_ms: int = setting(300_000, low=1, high=INT_MAX)
    """A member that does not poll for so long leaves the group; its next poll joins again."""
    partition_assignment_strategy: str | Sequence[str | Assignor] = ("range", "cooperative-sticky")
    """Classic: assignors in the order of preference: names, or objects with ``name`` and ``assign``."""
    group_remote_assignor: RemoteAssignor | None = None
    """Server-side protocol: ``uniform`` or ``range``; None: the coordinator's default, ``uniform``."""
    enable_auto_commit: bool = True
    """Commit what was handled: every auto_commit_interval_ms, before partitions are given up, and at close."""
    auto_commit_interval_ms: int = setting(5_000, low=0, high=INT_MAX)
    """How often, at the polls after it has passed."""
    auto_offset_reset: AutoOffsetReset = "latest"
    """Where to read without a position: ``latest``, ``earliest``, ``by_duration:PT1H``, or ``none``: raise."""
    on_position_reset: Callable[[PositionReset | LogDiverged | TopicRecreated], object] | None = None
    """Called by the next poll when ``auto_offset_reset`` moved a position, or a topic was made anew: what was lost."""
    fetch_min_bytes: int = setting(1, low=0, high=INT_MAX)
    """A broker answers when it has so much, or after fetch_max_wait_ms."""
    fetch_max_wait_ms: int = setting(500, low=0, high=300_000)
    """How long a broker may wait for fetch_min_bytes, in ms."""
    fetch_max_bytes: int = setting(50 << 20, low=1, high=1 << 30)
    """Most bytes buffered and on the wire, per broker; a first batch that is larger comes all the same."""
    max_partition_fetch_bytes: int = setting(1 << 20, low=1, high=1 << 30)
    """Most bytes of one partition in one answer; a first batch that is larger comes all the same."""
    max_poll_records: int = setting(500, low=1, high=INT_MAX)
    """Most records that ``poll`` returns when it is not told another number."""
    client_rack: str = ""
    """
    Where this client is. Followers of the same rack are read from, and assignors (all but ``roundrobin``) give a member
    partitions with a replica in its rack as far as balance allows, where brokers have racks. Empty: only leaders.
    """
    allow_auto_create_topics: bool = False
    """Whether reading creates topics. It never does; ``False`` is taken for those who bring it along."""
    check_crcs: bool = True
    """Check the bytes of each batch against the checksum that its producer computed."""
    isolation_level: IsolationLevel = setting(READ_UNCOMMITTED, choices=get_args(IsolationLevel))
    """``read_committed``: only below the first undecided transaction, and nothing of aborted ones."""
    default_api_timeout_ms: int = setting(60_000, low=1, high=INT_MAX)
    """Calls without a timeout of their own, and partitions that cannot be read, raise after this time, in ms."""
    key_deserializer: Callable[[bytes], Any] | DeserializerName | None = None
    """Turns a key into something else: a function, or a name: ``json``, ``string``, ``int64`` … None stays None."""
    value_deserializer: Callable[[bytes], Any] | DeserializerName | None = None
    """The same for values."""

    def rules(self) -> list[str]:
        """What is wrong between fields."""
        wrong: list[str] = []
        try:
            parse_reset(self.auto_offset_reset)
        except InvalidConfig as error:
            wrong.append(str(error))
        except AttributeError:
            wrong.append(f"auto_offset_reset takes a text such as 'earliest', not {self.auto_offset_reset!r}")
        told: Any = self.on_position_reset
        if told is not None and not callable(told):
            wrong.append(f"on_position_reset takes a function, not {told!r}")
        if self.allow_auto_create_topics:
            wrong.append(
                "allow_auto_create_topics takes False: reading creates no topics; see AdminClient.create_topic"
            )
        if self.retry_backoff_max_ms < self.retry_backoff_ms:
            wrong.append(f"retry_backoff_max_ms ({self.retry_backoff_max_ms}) is below retry_backoff_ms")
        return wrong + self._group_rules()

    def _group_rules(self) -> list[str]:
        wrong: list[str] = []
        for name, value in (("group_id", self.group_id), ("group_instance_id", self.group_instance_id)):
            if value is not None and not (isinstance(value, str) and 0 < len(value) <= GROUP_ID_LENGTH_MAX):
                wrong.append(f"{name} takes a text of 1 to {GROUP_ID_LENGTH_MAX} characters, not {value!r}")
            elif value is not None and not value.isascii() and any("\ud800" <= each <= "\udfff" for each in value):
                wrong.append(f"{name} takes a text that UTF-8 can write, not {value!r}")
        if self.group_instance_id is not None and self.group_id is None:
            wrong.append("group_instance_id needs a group_id")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            wrong.append(
                f"heartbeat_interval_ms ({self.heartbeat_interval_ms}) must be below session_timeout_ms "
                f"({self.session_timeout_ms}); a third of it is usual"
            )
        if self.group_remote_assignor not in (None, "uniform", "range"):
            wrong.append(f"group_remote_assignor takes 'uniform' or 'range', not {self.group_remote_assignor!r}")
        elif self.group_remote_assignor is not None and self.group_protocol == CLASSIC:
            wrong.append("group_remote_assignor is for group_protocol='consumer'; see partition_assignment_strategy")
        return wrong + self._assignor_rules()

    def _assignor_rules(self) -> list[str]:
        given = self.partition_assignment_strategy
        if (
            not isinstance(given, Sequence | str)
            or not given
            or len(given) > ASSIGNORS_MAX + 100 * isinstance(given, str)
        ):
            return [f"partition_assignment_strategy takes 1 to {ASSIGNORS_MAX} assignors, not {given!r}"]
        wrong: list[str] = []
        names: list[str] = []
        classic = [name for name in ASSIGNORS if name != "uniform"]
        for each in _split_names(given):
            if isinstance(each, str):
                names.append(each)
                if each not in classic:
                    wrong.append(f"partition_assignment_strategy: {each!r} is none of {', '.join(classic)}")
            elif not isinstance(each, Assignor) or not isinstance(each.name, str) or not each.name:
                wrong.append(f"partition_assignment_strategy: {each!r} has no name and assign(members, partitions)")
            else:
                names.append(each.name)
                if each.name in ASSIGNORS:
                    wrong.append(f"partition_assignment_strategy: {each.name!r} is the name of a built-in assignor")
        if len(set(names)) < len(names):
            wrong.append(f"partition_assignment_strategy names one twice: {', '.join(names)}")
        return wrong

    def rules_of_given(self, given: Collection[str]) -> list[str]:
        """What the coordinator decides cannot be set here."""
        if self.group_id is None or self.group_protocol != CONSUMER:
            return []
        named = [name for name in CLASSIC_ONLY if name in given]
        verb = "are" if len(named) > 1 else "is"
        text = "the coordinator decides in the server-side protocol. Leave it out, or set group_protocol='classic'"
        return [f"{', '.join(named)} {verb} for group_protocol='classic': {text}"] if named else []

    @property
    def assignors(self) -> dict[str, Assignor | None]:
        """By name, in the order of preference; None: one that is built in."""
        listed = _split_names(self.partition_assignment_strategy)
        return {
            each if isinstance(each, str) else each.name: None if isinstance(each, str) else each for each in listed
        }

    @property
    def group(self) -> GroupSettings:
        """For the membership machines; only with a ``group_id``."""
        assert self.group_id is not None, "asked only where there is a group"
        own = {name for name, a in self.assignors.items() if a is not None and getattr(a, "cooperative", False)}
        cooperative = own | {name for name in self.assignors if name in COOPERATIVE}
        return GroupSettings(
            group_id=self.group_id,
            instance_id=self.group_instance_id,
            assignors=tuple(self.assignors),
            cooperative=cooperative == set(self.assignors),
            cooperative_names=frozenset(cooperative),
            session_timeout_ms=self.session_timeout_ms,
            heartbeat_interval_ms=self.heartbeat_interval_ms,
            max_poll_interval_ms=self.max_poll_interval_ms,
            retry_backoff_ms=max(1, self.retry_backoff_ms),
            retry_backoff_max_ms=max(1, self.retry_backoff_max_ms),
            api_timeout_ms=self.default_api_timeout_ms,
        )

    @property
    def read_committed(self) -> bool:
        """Whether transactions are read only when they are committed."""
        return self.isolation_level == READ_COMMITTED

    @property
    def limits(self) -> FetchLimits:
        """The bounds of prefetching and retrying."""
        return FetchLimits(
            fetch_max_bytes=self.fetch_max_bytes,
            max_partition_fetch_bytes=min(self.max_partition_fetch_bytes, self.fetch_max_bytes),
            retry_backoff_ms=max(1, self.retry_backoff_ms),
            retry_backoff_max_ms=max(1, self.retry_backoff_max_ms),
            api_timeout_ms=self.default_api_timeout_ms,
            follow_ms=self.metadata_max_age_ms,
        )


def reading_settings(kind: str, given: Mapping[str, Any]) -> ConsumerSettings:
    """
    Settings of a client that reads what it is told to, and keeps no positions; ``kind`` names it in texts.

    Raises:
        InvalidConfig: all that is wrong; settings of groups, of resets and of single records mean nothing there.
    """
    names = [name for name in given if name.replace(".", "_") in _OF_CONSUMERS_ONLY]
    if names:
        raise InvalidConfig(f"{', '.join(names)}: a {kind} has no use for it; leave it out")
    return read_settings(ConsumerSettings, {**given, "auto_offset_reset": "none"})


_OF_CONSUMERS_ONLY: Final = frozenset(
    {
        "group_id",
        "group_protocol",
        "group_instance_id",
        "group_remote_assignor",
        "max_poll_interval_ms",
        "max_poll_records",
        "enable_auto_commit",
        "auto_commit_interval_ms",
        "auto_offset_reset",
        "on_position_reset",
        "key_deserializer",
        "value_deserializer",
        *CLASSIC_ONLY,
    }
)


def _split_names(given: Any) -> list[Any]:
    """One name alone does for a list of it."""
    return [name.strip() for name in given.split(",")] if isinstance(given, str) else list(given)
