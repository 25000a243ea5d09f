"""The service's limits that are certain, for one message and for one session's state."""

from __future__ import annotations

from pairbus.localbus import bus_errors
from pairbus.localbus.bus_errors import BusError

from .message import Draft

MAX_ID_CHARACTERS = 128
MAX_STATE_BYTES = 256 * 1024


def check_draft(draft: Draft, path: str, *, requires_session: bool) -> None:
    """Raise `BusError` if the entity at `path` cannot take a message."""
    session = draft.session_id
    if session is None and requires_session:
        raise BusError(
            bus_errors.NOT_ALLOWED,
            f"The SessionId was not set on a message, and it cannot be sent to the entity '{path}'. "
            "Entities that have session support enabled can only receive messages that have the SessionId "
            "set to a valid value.",
        )
    if isinstance(draft.message_id, str):
        _check_length("MessageId", draft.message_id)
    if session is not None:
        _check_length("SessionId", session)
        if draft.partition_key is not None and draft.partition_key != session:
            raise BusError(
                bus_errors.ARGUMENT_ERROR,
                f"The PartitionKey '{draft.partition_key[:MAX_ID_CHARACTERS]}' of a message is not its SessionId "
                f"'{session}'. Where both are set they must be the same.",
            )


def check_state(state: bytes | None) -> None:
    """Raise `BusError` if a session state is too large."""
    if state is not None and len(state) > MAX_STATE_BYTES:
        raise BusError(
            bus_errors.ARGUMENT_ERROR, f"The session state has {len(state)} bytes; the limit is {MAX_STATE_BYTES}."
        )


def _check_length(name: str, text: str) -> None:
    if len(text) > MAX_ID_CHARACTERS:
        raise BusError(
            bus_errors.ARGUMENT_ERROR,
            f"The {name} of a message has {len(text)} characters; the limit is {MAX_ID_CHARACTERS}.",
        )
