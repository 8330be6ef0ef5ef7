"""The shapes of REST for programs of streams. See ``models`` for what they share."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from headrace_admin.rpc.models import Answer


class StreamsApp(Answer):
    """A program."""

    app: str
    members: int = Field(description="Workers that run.")
    topics: list[str] = Field(description="That it has made for itself.")


class StreamsApps(Answer):
    """Programs with topics of their own, by name."""

    apps: list[StreamsApp]


class StreamsFollower(Answer):
    """A worker that follows the state of a task."""

    member_id: str
    endpoint: str | None = Field(description="Where it answers questions. Null: nowhere.")
    warm_up: bool = Field(description="It is to take the task over when it has caught up.")
    lag: int | None = Field(description="How many rows of the changelog it is behind. Null: it has not said.")


class StreamsTask(Answer):
    """A part of a program: a sub-topology over one partition."""

    task: str
    stateful: bool
    owner: str | None = Field(description="The member that runs it. Null: nobody.")
    endpoint: str | None = Field(description="Where its owner answers questions. Null: nowhere.")
    epoch: int = Field(description="The fencing token of what its owner writes; 0 without one.")
    standbys: list[StreamsFollower]


class StreamsTasks(Answer):
    """The tasks of a program. `/v1/groups/{app}/lag` says how far they are."""

    app: str
    tasks: list[StreamsTask]


class StreamsColumn(Answer):
    """A column of a key."""

    name: str
    type: str


class StreamsStore(Answer):
    """What a program keeps under one name."""

    store: str
    sub_topology: str = Field(description="Its tasks are `<sub_topology>/0` and so on.")
    partitions: int
    key_columns: list[StreamsColumn] = Field(description="Empty: keys are whatever records have as keys.")


class StreamsStores(Answer):
    """What a program keeps."""

    app: str
    stores: list[StreamsStore]


class StreamsRows(Answer):
    """What is kept of one key, as of the last commit of its task."""

    app: str
    store: str
    rows: list[dict[str, Any]] = Field(description="One; of windows one each. Bytes that are no text are base64.")
