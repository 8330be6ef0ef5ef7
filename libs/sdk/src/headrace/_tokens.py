"""What names a prepared transaction, and what an owner of units begins with; users find it in ``transactions``."""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from headrace.errors import Rejected
from headrace_proto.v1 import transaction_pb2 as pb

_NO_TOKEN: Final = "this is not the token of a prepared transaction; give what prepare_transaction() returned"


class PreparedTransaction(NamedTuple):
    """
    Names one prepared transaction for ever; whoever has it commits or aborts it.

    ``bytes(token)`` and ``str(token)`` are for files and rows of databases, ``parse`` reads both.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    nonce: int

    def __bytes__(self) -> bytes:
        return self.message().SerializeToString(deterministic=True)

    def __str__(self) -> str:
        from headrace_common.rpc.json_form import text_of_token

        return text_of_token(self.message())

    @classmethod
    def parse(cls, token: str | bytes | PreparedTransaction) -> PreparedTransaction:
        """
        The token in what ``str`` or ``bytes`` made of it.

        Raises:
            Rejected: it is not one.
        """
        if isinstance(token, PreparedTransaction):
            return token
        try:
            if isinstance(token, str):
                raw = token.strip().encode("ascii")
                token = base64.b64decode(raw + b"=" * (-len(raw) % 4), altchars=b"-_", validate=True)
            read = cls.of(pb.PreparedToken.FromString(bytes(token)))
        except (DecodeError, binascii.Error, UnicodeEncodeError, TypeError, ValueError):
            read = None
        if read is None or not read.transactional_id or read.producer_id < 0:
            raise Rejected(_NO_TOKEN)
        return read

    @classmethod
    def of(cls, message: pb.PreparedToken) -> PreparedTransaction:
        """As a coordinator says it."""
        return cls(message.transactional_id, message.producer_id, message.producer_epoch, message.nonce)

    def message(self) -> pb.PreparedToken:
        """
        As a coordinator is told it.

        Raises:
            Rejected: no coordinator has given that.
        """
        try:
            return pb.PreparedToken(
                transactional_id=self.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                nonce=self.nonce,
            )
        except (TypeError, ValueError):
            raise Rejected(_NO_TOKEN) from None


class OwnerEpoch(NamedTuple):
    """What an owner of units begins with."""

    epoch: int
    """To be given to its producers (``owner_epoch=``); lower ones are fenced."""
    last_sequence: int
    """Of the last unit that was committed; -1: none yet."""
