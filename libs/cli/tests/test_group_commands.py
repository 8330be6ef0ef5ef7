"""Consumer groups by command: what is asked of the admin client, what is printed, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from libs.cli.tests.conftest import Beside, admin_over
from typer.testing import CliRunner

from headrace.group_types import ResetPlan
from headrace.records import TopicPartition
from headrace_cli.app import app
from headrace_cli.commands.group import parts
from headrace_cli.exits import CommandFailed
from headrace_cli.offset_file import read_offsets, write_offsets
from headrace_cli.session import Session
from headrace_common.core.errors import (
    CoordinatorNotAvailable,
    HeadraceError,
    LeaderNotAvailable,
    NonEmptyGroup,
)
from headrace_proto.v1 import admin_pb2, coordinator_pb2, errors_pb2

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
runner = CliRunner()


def work_group() -> coordinator_pb2.GroupDescription:
    """One item, which a member does, and another one follows."""
    group = coordinator_pb2.GroupDescription(
        terms={"rows": "id bigint"},
        group_id="w",
        protocol=coordinator_pb2.WORK,
        state=coordinator_pb2.STABLE,
        generation=7,
    )
    group.members.add(member_id="m-1", state="STABLE", zone="z1", endpoint="h:7")
    group.members.add(member_id="m-2", state="STABLE")
    item = group.items.add(owner="m-1", epoch=123_456)
    item.item.id, item.item.weight, item.item.stateful, item.item.standbys = "crawl-eu", 1, True, 1
    item.followers.add(member_id="m-2", lag=31)
    return group


class FakeAdmin(Beside):
    """Group g with one member, behind by 4 in t-0; t-1 has no leader. Remembers what was asked."""

    def __init__(self) -> None:
        super().__init__(admin_over(self))
        self.asked: list[Any] = []
        self.missing: list[admin_pb2.UnansweredShard] = []
        self.members = 0
        self.refusal: HeadraceError | None = None
        self.lost: HeadraceError | None = None

    def ListGroups(
        self, request: admin_pb2.ListClusterGroupsRequest, timeout: float
    ) -> admin_pb2.ListClusterGroupsResponse:
        self.asked.append([coordinator_pb2.GroupState.Name(state) for state in request.states])
        listing = coordinator_pb2.GroupListing(
            group_id="g", protocol=coordinator_pb2.CONSUMER, state=coordinator_pb2.STABLE, members=1
        )
        group = admin_pb2.ListedGroup(group=listing, coordinator=2)
        return admin_pb2.ListClusterGroupsResponse(groups=[group], unanswered=self.missing)

    def DescribeGroups(
        self, request: coordinator_pb2.DescribeGroupsRequest, timeout: float
    ) -> coordinator_pb2.DescribeGroupsResponse:
        (group_id,) = request.group_ids
        if group_id == "w":
            return coordinator_pb2.DescribeGroupsResponse(groups=[work_group()])
        if group_id != "g":
            error, text = errors_pb2.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}"
            group = coordinator_pb2.GroupDescription(group_id=group_id, error=error, message=text)
            return coordinator_pb2.DescribeGroupsResponse(groups=[group])
        member = coordinator_pb2.MemberDescription(
            member_id="m-1", client_id="app", client_address="h:1", member_epoch=4, state="STABLE", topics=["t"]
        )
        member.assigned.add(topic="t", partitions=[0, 1])
        member.target.add(topic="t", partitions=[0])
        group = coordinator_pb2.GroupDescription(
            group_id="g", protocol=coordinator_pb2.CONSUMER, state=coordinator_pb2.STABLE, members=[member]
        )
        return coordinator_pb2.DescribeGroupsResponse(groups=[group])

    def DescribeGroupLag(
        self, request: admin_pb2.DescribeGroupLagRequest, timeout: float
    ) -> admin_pb2.DescribeGroupLagResponse:
        self.asked.append((request.group_id, list(request.topics), not request.without_age))
        answer = admin_pb2.DescribeGroupLagResponse(state=coordinator_pb2.STABLE)
        behind = answer.partitions.add(topic="t", partition=0, committed_offset=5, leader_epoch=-1, lag=4)
        behind.log_start_offset, behind.end_offset, behind.member_id, behind.client_id = 0, 9, "m-1", "app"
        if not request.without_age:
            behind.lag_ms = 2_500
        other = answer.partitions.add(topic="t", partition=1, committed_offset=3, leader_epoch=-1)
        if self.lost is not None:
            other.error.code, other.error.message = int(self.lost.code), str(self.lost)
        return answer

    def reset_offsets(self, group_id: str, topics: Any, *, execute: bool, **where: Any) -> ResetPlan:
        self.asked.append((group_id, topics, where, execute))
        if execute and self.members:
            raise NonEmptyGroup("group 'g' has members; stop them")
        planned = [
            admin_pb2.PlannedReset(topic="t", old_offset=5, end_offset=9),
            admin_pb2.PlannedReset(
                topic="t", partition=1, new_offset=9, end_offset=9, note="nothing is committed: to the end"
            ),
        ]
        if self.refusal is not None:
            planned[1].error, planned[1].message = errors_pb2.ErrorCode.ValueType(self.refusal.code), str(self.refusal)
        answer = admin_pb2.ResetOffsetsResponse(
            executed=execute, new_group=group_id == "new", members=self.members, partitions=planned
        )
        return ResetPlan.of(answer, group_id=group_id)

    def delete_groups(self, group_ids: Iterable[str]) -> dict[str, HeadraceError | None]:
        self.asked.append(list(group_ids))
        return {i: NonEmptyGroup("it has members") if i == "busy" else None for i in group_ids}

    def delete_offsets(self, group_id: str, topics: Any) -> dict[TopicPartition, HeadraceError | None]:
        self.asked.append((group_id, topics))
        return {T1: self.refusal, T0: None}


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    fake = FakeAdmin()
    monkeypatch.setattr(Session, "admin", lambda self, **_: fake)
    return fake


def run(*argv: str, code: int = 0, stdin: str | None = None) -> Any:
    result = runner.invoke(app, ["group", *argv], input=stdin)
    assert result.exit_code == code, result.output
    return result


def data(*argv: str) -> Any:
    return json.loads(run(*argv, "-o", "json").stdout)


def test_groups_are_listed_and_a_list_that_is_not_whole_says_so_and_ends_with_4(admin: FakeAdmin) -> None:
    assert "stable" in run("list", "--state", "stable").stdout
    assert admin.asked == [["STABLE"]]
    assert data("list")["missing_shards"] == []
    lost = errors_pb2.ErrorDetail(code=errors_pb2.COORDINATOR_NOT_AVAILABLE, message="no coordinator has shard 7")
    admin.missing = [admin_pb2.UnansweredShard(shard=7, error=lost)]
    result = run("list", code=4)
    assert "stable" in result.stdout
    assert "1 shard cannot answer (7)" in result.stderr
    assert "no coordinator has shard 7" in result.stderr


def test_a_group_is_described_with_what_its_members_hold(admin: FakeAdmin) -> None:
    shown = run("describe", "g").stdout
    assert "t:0,1" in shown
    assert "TARGET" in shown
    found = data("describe", "g")
    assert found["members"][0]["assigned"] == [{"topic": "t", "partitions": [0, 1]}]
    result = run("describe", "nope", code=3)
    assert "headrace group list" in result.stderr


def test_a_work_group_is_described_with_its_items_and_who_follows_them(admin: FakeAdmin) -> None:
    shown = run("describe", "w").stdout
    for text in ("work", "h:7", "z1", "crawl-eu", "123456", "m-2 (31)", "WARM UP", "rows: id bigint"):
        assert text in shown, text
    (item,) = data("describe", "w")["items"]
    assert (item["item"]["id"], item["owner"], item["epoch"]) == ("crawl-eu", "m-1", 123_456)


def test_lag_is_shown_in_records_and_seconds(admin: FakeAdmin) -> None:
    result = run("lag", "g", "--topic", "t")
    assert admin.asked == [("g", ["t"], True)]
    assert "2.50" in result.stdout
    assert "4 records behind in all" in result.stderr
    lag = data("lag", "g", "--no-seconds")
    assert (lag["group"], lag["state"], lag["total_lag"], lag["lag_seconds_max"]) == ("g", "stable", 4, None)
    rows = lag["partitions"]
    assert [(r["partition"], r["lag"], r["lag_seconds"]) for r in rows] == [(0, 4, None), (1, None, None)]
    assert "GROUP" in run("lag", "g", "g").stdout


def test_lag_that_is_not_fully_known_ends_with_its_reason(admin: FakeAdmin) -> None:
    admin.lost = LeaderNotAvailable("t-1 has no leader now")
    result = run("lag", "g", code=4)
    assert "4" in result.stdout
    assert "1 partition of 2 not fully known; t-1: t-1 has no leader" in result.stderr


@pytest.mark.parametrize(
    ("options", "where"),
    [
        (["--to-earliest"], {"to": "earliest"}),
        (["--to-latest"], {"to": "latest"}),
        (["--to-current"], {"to": "current"}),
        (["--to-offset", "0"], {"to_offset": 0}),
        (["--shift-by", "-5"], {"shift_by": -5}),
        (["--to-datetime", "2026-11-21T10:00:00Z"], {"to_datetime": "2026-11-21T10:00:00Z"}),
        (["--by-duration", "1h30m"], {"by_duration": "1h30m"}),
    ],
)
def test_every_way_to_reset_is_a_plan_until_told(admin: FakeAdmin, options: list[str], where: Any) -> None:
    result = run("reset", "g", "-t", "t", "-t", "u:0,2", *options)
    assert "--execute carries it out" in result.stderr
    run("reset", "g", "--all-topics", *options, "--execute")
    assert admin.asked == [("g", ["t", ("u", 0), ("u", 2)], where, False), ("g", [], where, True)]


def test_a_plan_shows_old_and_new_and_why(admin: FakeAdmin) -> None:
    lines = run("reset", "new", "-t", "t", "--to-earliest").stdout.splitlines()
    assert lines[1].split()[:6] == ["t", "0", "5", "0", "-5", "9"]
    assert lines[2].endswith("nothing is committed: to the end")
    assert "it will be made" in run("reset", "new", "-t", "t", "--to-earliest").stderr
    position = data("reset", "g", "-t", "t", "--to-earliest")["partitions"][0]
    assert (position["old_offset"], position["new_offset"], position["error"]) == (5, 0, None)


def test_members_are_told_with_the_plan_and_refused_with_the_execution(admin: FakeAdmin) -> None:
    admin.members = 2
    assert "2 members: stop them first" in run("reset", "g", "--all-topics", "--to-latest").stderr
    result = run("reset", "g", "--all-topics", "--to-latest", "--execute", code=1)
    assert "headrace group describe" in result.stderr


def test_what_was_not_set_ends_the_command(admin: FakeAdmin) -> None:
    admin.refusal = CoordinatorNotAvailable("its log cannot be written")
    result = run("reset", "g", "--all-topics", "--to-latest", "--execute", code=4)
    assert "1 offset of group g set" in result.stderr
    assert "1 partition of 2 not set; t-1: its log" in result.stderr
    assert "COORDINATOR_NOT_AVAILABLE" in result.stdout


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--to-latest"],
        ["-t", "t"],
        ["-t", "t", "--to-latest", "--to-earliest"],
        ["-t", "t", "--to-latest", "--shift-by", "1"],
        ["-t", "t", "--all-topics", "--to-latest"],
        ["-t", "t", "--from-file", "x"],
        ["-t", "t", "--to-offset", "-1"],
        ["-t", "t:", "--to-latest"],
    ],
)
def test_resets_that_make_no_sense_are_wrong_usage(admin: FakeAdmin, options: list[str]) -> None:
    run("reset", "g", *options, code=2)
    assert admin.asked == []


def test_offsets_travel_through_a_file(admin: FakeAdmin, tmp_path: Path) -> None:
    exported = run("export", "g").stdout
    assert exported == "t,0,5\nt,1,3\n"
    (tmp_path / "offsets.csv").write_text(exported)
    run("reset", "g", "--from-file", str(tmp_path / "offsets.csv"))
    run("reset", "g", "--from-file", "-", stdin=exported)
    assert admin.asked[1:] == [("g", [], {"to_offset": {("t", 0): 5, ("t", 1): 3}}, False)] * 2
    assert run("reset", "g", "--all-topics", "--to-latest", "--export").stdout == "t,0,0\nt,1,9\n"
    assert data("export", "g")["offsets"][0] == {"topic": "t", "partition": 0, "offset": 5}
    run("reset", "g", "--from-file", str(tmp_path / "nope.csv"), code=2)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    run("reset", "g", "--from-file", str(tmp_path / "binary"), code=2)


def test_groups_are_deleted_when_said_twice(admin: FakeAdmin) -> None:
    run("delete", "old", code=2)
    result = run("delete", "old", "busy", "old", "--yes", code=1)
    assert admin.asked == [["old", "busy"]]
    assert "deleted: old" in result.stderr
    assert "1 group of 2 not deleted; busy" in result.stderr


def test_offsets_are_forgotten_by_topic_or_partition(admin: FakeAdmin) -> None:
    run("delete-offsets", "g", "--yes", code=2)
    assert "2 offsets of group g forgotten" in run("delete-offsets", "g", "-t", "t", "-t", "u:3", "--yes").stderr
    assert admin.asked == [("g", ["t", ("u", 3)])]
    admin.refusal = NonEmptyGroup("it is read")
    assert "1 partition of 2 not forgotten" in run("delete-offsets", "g", "-t", "t", "--yes", code=1).stderr


def test_topics_and_partitions_are_read_as_they_are_written() -> None:
    assert parts(["a", "b:0, 1"]) == ["a", ("b", 0), ("b", 1)]
    for wrong in (":0", "a:", "a:x", "a:1,", "a:-1", f"a:{2**31}"):
        with pytest.raises(typer.BadParameter):
            parts([wrong])


class TestFiles:
    def test_names_blank_lines_and_other_groups_are_left_out(self) -> None:
        text = "\ufeffgroup,topic,partition,offset\ng, t ,0,5\n\nh,t,0,6\nt,1,7\r\n"
        assert read_offsets(text, "g", "f") == {("t", 0): 5, ("t", 1): 7}

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "t,0\n",
            "t,0,x\n",
            "t,0,-1\n",
            "t,0,1\nt,0,2\n",
            "h,t,0,1\n",
            f"t,{2**31},0\n",
            f"t,0,{2**63}\n",
            "t,٣,1\n",
        ],
    )
    def test_what_is_no_such_file_is_refused(self, text: str) -> None:
        with pytest.raises(CommandFailed) as refused:
            read_offsets(text, "g", "f")
        assert refused.value.hint

    def test_the_line_is_named(self) -> None:
        with pytest.raises(CommandFailed, match="f, line 2: 't,x,1'"):
            read_offsets("t,0,1\nt,x,1\n", "g", "f")

    @given(
        st.dictionaries(
            st.tuples(st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True), st.integers(0, 2**31 - 1)),
            st.integers(0, 2**63 - 1),
            min_size=1,
            max_size=20,
        )
    )
    def test_what_is_written_is_read_again(self, offsets: dict[tuple[str, int], int]) -> None:
        text = write_offsets((topic, n, offset) for (topic, n), offset in offsets.items())
        assert read_offsets(text, "g", "f") == offsets


def test_a_plan_can_be_asked_for_and_a_terminal_is_asked(admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch) -> None:
    run("reset", "g", "--all-topics", "--to-latest", "--dry-run", "--execute", code=2)
    reset = ("reset", "new", "-t", "t", "--to-earliest")
    for flags, answers, executed in (
        (["--dry-run"], [], [False]),
        ([], [True], [False, True]),
        ([], [False], [False]),
        (["--yes"], [], [True]),
    ):
        left = list(answers)
        monkeypatch.setattr("headrace_cli.commands.group.agreed", lambda question, left=left: left.pop(0))
        admin.asked.clear()
        run(*reset, *flags)
        assert [asked[-1] for asked in admin.asked] == executed
        assert left == []


def test_what_would_be_forgotten_is_shown_and_left(admin: FakeAdmin) -> None:
    rows = data("delete", "g", "--dry-run")["offsets"]
    assert [(row["topic"], row["partition"], row["committed_offset"]) for row in rows] == [("t", 0, 5), ("t", 1, 3)]
    assert len(data("delete-offsets", "g", "-t", "t:1", "--dry-run")["offsets"]) == 1
    assert all(len(asked) == 3 for asked in admin.asked), "only looked at"
