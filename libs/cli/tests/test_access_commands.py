"""``headrace access``, ``key`` and ``whoami``: what is asked of the cluster, what is printed, and how it ends."""

from __future__ import annotations

import json
import shlex
import stat
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from libs.common.tests.kit.access import accesses, asked_names, callers, operations, types
from typer.testing import CliRunner

from headrace import access as made
from headrace.admin_access_types import (
    AccessChanged,
    AccessDescription,
    AccessExplanation,
    AccessHolders,
    ApiKeyInfo,
    NewApiKey,
    ObservedAccess,
    WhoAmI,
    WhyRefused,
)
from headrace.errors import ClusterAuthorizationFailed, Unauthenticated
from headrace_cli.app import app
from headrace_cli.session import Session
from headrace_common.core.access.changes import apply
from headrace_common.core.access.decisions import Decisions
from headrace_common.core.access.explain import explain
from headrace_common.core.access.resources import Operation, ResourceType
from headrace_common.core.access.state import Access, Caller
from headrace_proto.v1 import access_pb2 as pb

runner = CliRunner()
KEY = "hrk_" + "k" * 64
DESCRIBED = pb.ApiKeyDescription(id="i1", owner="User:a", created_ms=1, expires_ms=1_700_000_000_000, note="n")


class FakeAdmin:
    def __init__(self) -> None:
        self.access = Access()
        self.asked: list[Any] = []
        self.failure: Exception | None = None
        self.seen = pb.ObservedResponse(mode="permissive")
        self.dry = pb.AlterAccessResponse()
        self.why = pb.WhyRefusedResponse()
        self.holders = pb.WhoCanResponse()
        self.explained = pb.ExplainAccessResponse(allowed=True, reason="it is a super user")

    def alter_access(self, changes: Sequence[made.Change], **how: Any) -> AccessChanged:
        if self.failure is not None:
            raise self.failure
        self.asked.append((list(changes), how))
        self.access = apply(self.access, changes)
        reach = pb.AccessReach(type="TOPIC", pattern="t*", operations=["READ", "DESCRIBE"])
        shift = pb.AccessShift(principal="User:a", gains=[reach], loses=[reach])
        told = pb.AlterAccessResponse(generation=7, shifts=[shift], more=True)
        told.MergeFrom(self.dry)
        return AccessChanged.of(told)

    def describe_access(self, principal: str | None = None) -> AccessDescription:
        self.asked.append(principal)
        return AccessDescription.of(
            pb.DescribeAccessResponse(
                mode="closed",
                generation=7,
                rules=[
                    pb.AccessRule(
                        principal="User:a", grant=pb.Grant(deny=True, operations=["READ"], type="TOPIC", pattern="t*")
                    )
                ],
                bindings=[pb.AccessBinding(principal="User:b", role="operator")],
                blocked=["User:c"],
                super_users=["User:admin"],
            )
        )

    def observed_access(self, **how: Any) -> ObservedAccess:
        self.asked.append(how)
        return ObservedAccess.of(self.seen)

    def explain_access(self, *given: Any, **how: Any) -> AccessExplanation:
        self.asked.append((given, how))
        return AccessExplanation.of(self.explained)

    def who_can(self, *given: Any) -> AccessHolders:
        self.asked.append(given)
        return AccessHolders.of(self.holders)

    def why_refused(self, id: str) -> WhyRefused:
        self.asked.append(id)
        return WhyRefused.of(self.why)

    def create_key(self, *given: Any, **how: Any) -> NewApiKey:
        if self.failure is not None:
            raise self.failure
        self.asked.append((given, how))
        return NewApiKey.of(pb.CreateKeyResponse(key=KEY, description=DESCRIBED))

    def list_keys(self, owner: str | None) -> list[ApiKeyInfo]:
        self.asked.append(owner)
        scope = [pb.Grant(operations=["READ"], type="TOPIC", pattern="t*")]
        return [ApiKeyInfo.of(DESCRIBED), ApiKeyInfo.of(pb.ApiKeyDescription(id="i2", owner="User:b", scope=scope))]

    def delete_keys(self, ids: Sequence[str]) -> None:
        self.asked.append(ids)

    def who_am_i(self) -> WhoAmI:
        return WhoAmI.of(pb.WhoAmIResponse(principal="User:a", key_id="i1", mode="closed", super_user=True))


def open_with(fake: FakeAdmin, patch: Callable[..., None]) -> None:
    @contextmanager
    def opened(session: Session, **settings: Any) -> Any:
        yield fake

    patch(Session, "admin", opened)


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    fake = FakeAdmin()
    open_with(fake, monkeypatch.setattr)
    return fake


def run(*argv: str, code: int = 0) -> Any:
    result = runner.invoke(app, list(argv))
    assert result.exit_code == code, result.output
    return result


CASES: dict[str, made.Change] = {
    "allow User:a read,write topic t": made.Put(made.allow("User:a", ["READ", "WRITE"], "TOPIC", "t")),
    "allow User:a read topic --prefix t": made.Put(made.allow("User:a", ["READ"], "TOPIC", "t*")),
    "allow User:* all group '*' --host 10.0.0.1": made.Put(
        made.allow("User:*", ["ALL"], "GROUP", "*", host="10.0.0.1")
    ),
    "allow User:a describe cluster": made.Put(made.allow("User:a", ["DESCRIBE"], "CLUSTER", "kafka-cluster")),
    "allow User:a describe cluster kafka-cluster": made.Put(made.allow("User:a", ["DESCRIBE"], "CLUSTER")),
    "deny Group:g delete topic t": made.Put(made.deny("Group:g", ["DELETE"], "TOPIC", "t")),
    "bind User:a superuser": made.Put(made.bind("User:a", "superuser")),
    "bind User:a producer orders": made.Put(made.bind("User:a", "producer", "orders")),
    "bind User:a viewer --on topic=t* --on group=g": made.Put(
        made.bind("User:a", "viewer", on=[("topic", "t*"), ("group", "g")])
    ),
    "role own --gives topic=read,write --gives group=read": made.Put(
        made.role("own", {"topic": ["read", "write"], "group": ["read"]})
    ),
    "block User:a": made.Put(made.block("User:a")),
}


@pytest.mark.parametrize("line", CASES)
def test_what_a_line_changes(line: str, admin: FakeAdmin) -> None:
    said = run("access", *shlex.split(line))
    assert admin.asked == [([CASES[line]], {"mode": None, "validate_only": False})]
    assert said.stderr.splitlines() == [
        "User:a gains READ,DESCRIBE TOPIC t*",
        "User:a loses READ,DESCRIBE TOPIC t*",
        "and more",
        "done; generation 7",
    ]


@pytest.mark.parametrize(
    ("line", "undone"),
    [
        ("allow User:a read topic t", "remove allow User:a read topic t"),
        ("deny User:a read topic --prefix t --host 10.0.0.1", "remove deny User:a read topic 't*' --host 10.0.0.1"),
        ("bind User:a producer orders", "unbind User:a producer orders"),
        ("block User:a", "unblock User:a"),
        ("role own --gives topic=read", "role own --delete"),
    ],
)
def test_what_was_done_is_undone(line: str, undone: str, admin: FakeAdmin) -> None:
    before = admin.access
    for text in (line, undone):
        run("access", *shlex.split(text))
    assert (admin.access.rules, admin.access.bindings, admin.access.roles, admin.access.blocked) == (
        before.rules,
        before.bindings,
        before.roles,
        before.blocked,
    )


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(world=accesses, caller=callers, operation=operations, type=types, name=asked_names)
def test_the_line_that_an_error_names_is_a_command_that_works(
    world: Access, caller: Caller, operation: Operation, type: ResourceType, name: str
) -> None:
    line = explain(world, caller, operation, type, name).line
    if line is None:
        return
    fake = FakeAdmin()
    fake.access = world
    with pytest.MonkeyPatch.context() as patch:
        open_with(fake, patch.setattr)
        for command in line.split(" && "):
            words = shlex.split(command)
            assert words[0] == "headrace"
            run(*words[1:])
    assert Decisions(fake.access).decide(caller, operation, type, name)


def test_a_dry_run_changes_nothing_and_json_is_what_came(admin: FakeAdmin) -> None:
    said = run("access", "block", "User:a", "--dry-run")
    assert admin.asked[0][1]["validate_only"] is True
    assert "nothing was changed" in said.stderr
    told = json.loads(run("access", "block", "User:b", "--dry-run", "-o", "json").stdout)
    assert told["dry_run"] is True
    assert told["shifts"][0]["gains"][0]["operations"] == ["READ", "DESCRIBE"]


@pytest.mark.parametrize(
    "line",
    [
        "allow User:a read topic",
        "allow User:a read topic t --prefix u",
        "allow alice read topic t",
        "allow User:a fly topic t",
        "allow User:a read sea t",
        "remove may User:a read topic t",
        "bind User:a viewer --on topic",
        "role own",
        "role own --gives topic=read --delete",
        "role own --gives topic=read --cascade",
    ],
)
def test_what_cannot_be_asks_nobody(line: str, admin: FakeAdmin) -> None:
    run("access", *shlex.split(line), code=2)
    assert admin.asked == []


def test_the_mode_is_shown_and_raised(admin: FakeAdmin) -> None:
    assert "closed" in run("access", "mode").stdout
    run("access", "mode", "closed")
    losing = {"within": None, "accept_loss_of": (), "accept_loss": False}
    assert admin.asked[-1] == ([], {"mode": "closed", "validate_only": False, **losing})
    run("access", "mode", "closed", "--within", "10", "--accept-loss-of", "User:a", "--accept-loss-of", "10.0.0.1")
    losing = {"within": timedelta(minutes=10), "accept_loss_of": ["User:a", "10.0.0.1"], "accept_loss": False}
    assert admin.asked[-1] == ([], {"mode": "closed", "validate_only": False, **losing})
    run("access", "mode", "closed", "--accept-loss")
    assert admin.asked[-1][1]["accept_loss"] is True


TIMES = pb.SeenTimes(first_ms=1, last_ms=1_700_000_000_000, count=3)
SEEN = pb.ObservedResponse(
    mode="permissive",
    since_ms=1_600_000_000_000,
    strangers=[pb.SeenStranger(host="10.0.0.1", seen=TIMES), pb.SeenStranger(wrong=True, seen=TIMES)],
    refusals=[
        pb.SeenRefusal(
            principal="User:a",
            host="h",
            operation="READ",
            type="TOPIC",
            name="t",
            seen=TIMES,
            remedy="headrace access x",
        )
    ]
    * 2,
    uses=[pb.SeenUse(principal="User:b", operation="WRITE", type="TOPIC", name="u", seen=TIMES)],
    unused=[
        pb.AccessRule(principal="User:c", grant=pb.Grant(operations=["READ"], type="TOPIC", pattern="v")),
    ],
    nodes=[
        pb.SeenBy(node="admin-1", since_ms=1),
        pb.SeenBy(node="broker-1"),
        pb.SeenBy(node="broker-2", fault="it is gone"),
    ],
)


def test_the_report_says_who_would_be_refused_and_how_much_of_it_is_known(admin: FakeAdmin) -> None:
    assert "nobody came without" in run("access", "report").stderr
    admin.seen = SEEN
    said = run("access", "report", "--within", "5", code=1)
    assert admin.asked[-1] == {"within": timedelta(minutes=5)}
    lines = said.stdout.splitlines()
    assert any("User:ANONYMOUS" in line and "10.0.0.1" in line and "no credential" in line for line in lines)
    assert any("unknown" in line and "a credential that is not valid" in line for line in lines)
    assert any("User:a" in line and "READ TOPIC t" in line and "2023-11-14 22:13 UTC" in line for line in lines)
    assert said.stderr.count("to allow it: headrace access x") == 1
    assert "headrace key create" in said.stderr
    assert "all nodes look since 2020-09-13 12:26 UTC" in said.stderr
    assert "broker-2 cannot be asked: it is gone" in said.stderr
    assert "broker-1 does not look" in said.stderr
    assert "admin-1" not in said.stderr
    assert json.loads(run("access", "report", "-o", "json", code=1).stdout)["refusals"][0]["name"] == "t"
    admin.seen = pb.ObservedResponse(mode="permissive", more=True)
    assert "and more" in run("access", "report", code=1).stderr


def test_rights_that_were_used_and_rules_that_were_not(admin: FakeAdmin) -> None:
    admin.seen = SEEN
    used = run("access", "observed").stdout
    assert "User:b" in used
    assert "User:c" not in used
    unused = run("access", "observed", "--unused").stdout
    assert "User:c" in unused
    assert "User:b" not in unused
    assert json.loads(run("access", "observed", "-o", "json").stdout)["uses"][0]["name"] == "u"


def test_show(admin: FakeAdmin) -> None:
    said = run("access", "show", "User:a")
    assert admin.asked == ["User:a"]
    assert ["User:a", "deny", "READ", "TOPIC", "t*", "any"] in [line.split() for line in said.stdout.splitlines()]
    assert ["User:b", "role", "operator", "all", "*", "any"] in [line.split() for line in said.stdout.splitlines()]
    assert "super users: User:admin" in said.stderr
    assert "blocked: User:c" in said.stderr
    assert json.loads(run("access", "show", "-o", "json").stdout)["blocked"] == ["User:c"]


def test_check_ends_with_the_verdict(admin: FakeAdmin) -> None:
    assert "User:a may: it is a super user" in run("access", "check", "User:a", "read", "topic", "t").stderr
    assert admin.asked == [(("User:a", "read", "topic", "t"), {"host": None})]
    admin.explained = pb.ExplainAccessResponse(reason="nothing allows it", sources=["s"], remedy="headrace access x")
    said = run("access", "check", "User:a", "read", "topic", "t", code=1)
    assert "User:a may not: nothing allows it" in said.stderr
    assert "to allow it: headrace access x" in said.stderr


def test_who_can_is_a_table_with_what_keeps_others_from_it(admin: FakeAdmin) -> None:
    assert "nobody whom you may know of" in run("access", "who-can", "read", "topic", "t").stderr
    assert admin.asked == [("read", "topic", "t")]
    rule = "allow READ TOPIC t, by a rule of User:a"
    admin.holders = pb.WhoCanResponse(
        holders=[
            pb.AccessHolder(principal="User:a", allowed=True, reason="allowed", hosts=["::1"], sources=[rule, "s"]),
            pb.AccessHolder(principal="User:b", allowed=True, reason="super_user", anywhere=True),
            pb.AccessHolder(principal="Group:c", reason="blocked", anywhere=True, hosts=["h"]),
        ],
        more=True,
    )
    said = run("access", "who-can", "describe", "cluster")
    assert admin.asked[-1] == ("describe", "cluster", "")
    assert [" ".join(line.split()) for line in said.stdout.splitlines()[1:]] == [
        f"User:a yes ::1 {rule}; s",
        "User:b yes, super user anywhere -",
        "Group:c no, blocked anywhere but h -",
    ]
    assert "and more" in said.stderr
    told = json.loads(run("access", "who-can", "read", "topic", "t", "-o", "json").stdout)
    assert [one["reason"] for one in told["holders"]] == ["allowed", "super_user", "blocked"]


def test_a_dry_run_says_what_of_the_last_day_would_be_refused(admin: FakeAdmin) -> None:
    assert "last day" not in run("access", "block", "User:a", "--dry-run").stderr, "of an older admin service"
    nodes = [pb.SeenBy(node="admin-1", since_ms=1), pb.SeenBy(node="b-1"), pb.SeenBy(node="b-2", fault="f")]
    admin.dry = pb.AlterAccessResponse(nodes=nodes)
    assert (
        "nothing that was seen in the last day would be refused" in run("access", "block", "User:b", "--dry-run").stderr
    )
    use = pb.SeenUse(principal="User:a", operation="READ", type="TOPIC", name="t", seen=TIMES)
    from_one = pb.SeenUse(principal="User:b", operation="READ", type="TOPIC", name="t", seen=TIMES, host="10.0.0.1")
    admin.dry = pb.AlterAccessResponse(refuses=[use, from_one], refuses_more=True, nodes=nodes)
    assert run("access", "block", "User:c", "--dry-run").stderr.splitlines()[3:] == [
        "would be refused: User:a READ TOPIC t, last done 2023-11-14 22:13 UTC",
        "would be refused from 10.0.0.1: User:b READ TOPIC t, last done 2023-11-14 22:13 UTC",
        "and more that was done in the last day",
        "b-1 does not look what is done: the cluster is open",
        "b-2 cannot be asked what it has seen: f",
        "nothing was changed: --dry-run",
    ]
    assert "would be refused" not in run("access", "block", "User:d").stderr


def test_why_a_refusal_was_one(admin: FakeAdmin) -> None:
    one = pb.RefusedAccess(
        node="broker-1",
        principal="User:a",
        groups=["Group:g"],
        host="10.0.0.1",
        operation="READ",
        type="TOPIC",
        name="t",
        narrowed=True,
        seen=TIMES,
        reason="a rule denies it",
        sources=["deny READ TOPIC t, by a rule of User:a"],
        remedy="headrace access x",
    )
    again = pb.RefusedAccess(
        node="broker-2", principal="User:a", operation="READ", type="TOPIC", name="t", seen=TIMES, allowed=True
    )
    admin.why = pb.WhyRefusedResponse(refusals=[one, again], nodes=[pb.SeenBy(node="admin-2", fault="f")])
    assert run("access", "why", "0123456789").stderr.splitlines() == [
        "User:a, of Group:g, from 10.0.0.1 may not READ TOPIC t: a rule denies it",
        "  at broker-1, 2023-11-14 22:13 UTC; 3 times since 1970-01-01 00:00 UTC",
        "  deny READ TOPIC t, by a rule of User:a",
        "  its key is for some things only",
        "to allow it: headrace access x",
        "User:a from somewhere may not READ TOPIC t: ",
        "  at broker-2, 2023-11-14 22:13 UTC; 3 times since 1970-01-01 00:00 UTC",
        "meanwhile rules allow it",
        "admin-2 cannot be asked: f",
    ]
    assert admin.asked == ["0123456789"]
    told = json.loads(run("access", "why", "0123456789", "-o", "json").stdout)
    assert [refusal["node"] for refusal in told["refusals"]] == ["broker-1", "broker-2"]


@pytest.mark.parametrize("kind", [ClusterAuthorizationFailed, Unauthenticated])
def test_who_may_not_is_told(kind: type[Exception], admin: FakeAdmin) -> None:
    admin.failure = kind("User:x may not ALTER PRINCIPAL User:a")
    said = run("access", "block", "User:a", code=1)
    assert "User:x may not ALTER PRINCIPAL User:a" in said.stderr
    assert "error" in said.stderr


# --- keys ---------------------------------------------------------------------------------------------------------


def test_a_key_is_printed_once_alone(admin: FakeAdmin) -> None:
    said = run("key", "create", "--owner", "User:a", "--days", "3", "--allow", "read topic t*", "--note", "n")
    assert said.stdout == f"{KEY}\n"
    assert KEY not in said.stderr
    scope = [made.grant(["READ"], "TOPIC", "t*")]
    assert admin.asked == [(("User:a",), {"lifetime": timedelta(days=3), "scope": scope, "note": "n"})]
    run("key", "create", "--forever", "--days", "7", code=2)
    run("key", "create", "--forever")
    assert admin.asked[-1] == ((None,), {"lifetime": None, "scope": [], "note": ""})
    assert json.loads(run("key", "create", "-o", "json").stdout)["key"] == KEY


def test_a_key_goes_into_a_new_file_of_ones_own(admin: FakeAdmin, tmp_path: Path) -> None:
    file = tmp_path / "key"
    said = run("key", "create", "--file", str(file))
    assert KEY not in said.output
    assert file.read_text() == f"{KEY}\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    asked = len(admin.asked)
    run("key", "create", "--file", str(file), code=2)
    assert len(admin.asked) == asked, "no key is made that is kept nowhere"
    admin.failure = ClusterAuthorizationFailed("no")
    run("key", "create", "--file", str(tmp_path / "other"), code=1)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("text", ["read", "read topic", "read topic t u"])
def test_a_scope_has_three_words(text: str, admin: FakeAdmin) -> None:
    run("key", "create", "--allow", text, code=2)
    run("key", "create", "--allow", "describe cluster")
    assert len(admin.asked) == 1


def test_keys_are_listed_and_deleted(admin: FakeAdmin) -> None:
    said = run("key", "list", "--owner", "User:a").stdout
    assert "2023-11-14 22:13 UTC" in said
    assert "read topic t*" in said
    assert "never" in said
    assert [row["id"] for row in json.loads(run("key", "list", "-o", "json").stdout)["keys"]] == ["i1", "i2"]
    assert "deleted i1, i2" in run("key", "delete", "i1", "i2").stderr
    assert admin.asked[-1] == ["i1", "i2"]


def test_whoami(admin: FakeAdmin) -> None:
    said = run("whoami")
    assert "User:a" in said.stdout
    assert "super user" in said.stderr
    assert json.loads(run("whoami", "-o", "json").stdout)["key_id"] == "i1"
    assert "certificate" not in run("whoami").stdout


def test_whoami_by_a_certificate(admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        FakeAdmin, "who_am_i", lambda _: WhoAmI.of(pb.WhoAmIResponse(principal="Cert:a", certificate="ab" * 32))
    )
    monkeypatch.setenv("HEADRACE_CA", "ca.pem")
    monkeypatch.setenv("HEADRACE_CERT", "me.crt")
    monkeypatch.setenv("HEADRACE_KEY", "me.key")
    monkeypatch.delenv("HEADRACE_API_KEY", raising=False)
    said = json.loads(run("whoami", "-o", "json", "--bootstrap", "kafka.example:9295").stdout)
    assert (said["principal"], said["certificate"]) == ("Cert:a", "ab" * 32)
    assert said["credential"] == "HEADRACE_CERT=me.crt"
    assert "ab" * 32 in run("whoami", "--bootstrap", "kafka.example:9295").stdout
