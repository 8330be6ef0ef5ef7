"""The error table in Python and the one on the wire are one table."""

from __future__ import annotations

import pytest

from headrace_common.core.errors import ErrorCode, HeadraceError, Internal, Kind, error_for, unknown_topic
from headrace_common.rpc.status import detail_of, error_of, status_code_of
from headrace_proto.v1 import errors_pb2


def test_names_and_numbers_are_those_of_the_proto() -> None:
    assert {c.name: c.value for c in ErrorCode} == dict(errors_pb2.ErrorCode.items())


def test_retriable_is_what_the_proto_says() -> None:
    values = errors_pb2.ErrorCode.DESCRIPTOR.values
    on_the_wire = {v.name for v in values if v.GetOptions().Extensions[errors_pb2.retriable]}
    assert {c.name for c in ErrorCode if c.retriable} == on_the_wire
    assert len(on_the_wire) > 10


@pytest.mark.parametrize("code", [c for c in ErrorCode if c is not ErrorCode.NONE])
def test_every_code_travels(code: ErrorCode) -> None:
    error = error_for(code, "what to do", endpoint_hint="h:1")
    assert error.code is code
    assert isinstance(error, Internal) is (code is ErrorCode.UNKNOWN_SERVER_ERROR), "only that one is our bug"
    back = error_of(errors_pb2.ErrorDetail.FromString(detail_of(error).SerializeToString()))
    assert (type(back), back.code, str(back), back.endpoint_hint) == (type(error), code, "what to do", "h:1")
    assert status_code_of(error).name not in {"OK", "UNKNOWN"}


def test_a_code_from_the_future_is_told_as_such() -> None:
    error = error_for(7777, "news")
    assert type(error) is Internal
    assert "7777" in str(error)
    assert "news" in str(error)


def test_a_detail_without_a_code_is_our_bug() -> None:
    assert type(error_of(errors_pb2.ErrorDetail(message="m"))) is Internal


def test_every_error_has_a_text_and_a_kind() -> None:
    def tree(cls: type[HeadraceError]) -> list[type[HeadraceError]]:
        own = [sub for sub in cls.__subclasses__() if sub.__module__.startswith("headrace_common.")]
        return [cls, *(c for sub in own for c in tree(sub))]

    for cls in tree(HeadraceError):
        assert str(cls()).endswith((".", "known")), cls
        assert isinstance(cls.kind, Kind)


def test_a_topic_that_does_not_exist_is_told_in_bounded_words() -> None:
    error = unknown_topic("t" * 10_000)
    assert error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert str(error) == f"topic '{'t' * 249}' does not exist; check its name, or create it with: headrace topic create"
