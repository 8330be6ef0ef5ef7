"""The shapes of REST for who logs in by a browser. See ``models`` for what they share."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr

from headrace_admin.rpc.models import Answer, Request, example


class LogIn(Request):
    """Who wants to be logged in."""

    model_config = example(user="alice", password="a quiet river bends")

    user: str = Field(min_length=1, max_length=255, description="Of the principal User:NAME.")
    password: SecretStr = Field(min_length=1, max_length=1_000, description="It goes no further than this service.")


class Session(Answer):
    """Who asks, by what, and until when."""

    principal: str
    by: Literal["cookie", "bearer", "nothing"] = Field(description="nothing: the cluster is not closed.")
    expires_ms: int | None = Field(description="Unix time, in ms. Null: it does not expire.")
    idle_expires_ms: int | None = Field(description="Of a cookie: its end, unless it is used. Null: of anything else.")
