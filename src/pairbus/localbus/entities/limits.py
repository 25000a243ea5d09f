"""What the service allows of one message and of one session's state; beyond it, it refuses.

Only what is certain: see "Where it differs" in `docs/localbus.md` for limits that localbus leaves to the service.
"""

from __future__ import annotations

from pairbus.localbus import bus_errors as conditions
from pairbus.localbus.bus_errors import BusError

from .message import Draft

MAX_ID_CHARACTERS = 128
MAX_STATE_BYTES = 256 * 1024


def check_draft(draft: Draft, path: str, *, requires_session: bool) -> None:
    """Refuse a message that the entity at `path` could not take."""
    session = draft.session_id
    if session is None and requires_session:
        raise BusError(
            conditions.NOT_ALLOWED,
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
                conditions.ARGUMENT_ERROR,
                f"The PartitionKey '{draft.partition_key[:MAX_ID_CHARACTERS]}' of a message is not its SessionId "
                f"'{session}'. Where both are set they must be the same.",
            )


def check_state(state: bytes | None) -> None:
    """Refuse a session state that is too large."""
    if state is not None and len(state) > MAX_STATE_BYTES:
        raise BusError(
            conditions.ARGUMENT_ERROR,
            f"The session state has {len(state)} bytes; the limit is {MAX_STATE_BYTES}.",
        )


def _check_length(name: str, text: str) -> None:
    if len(text) > MAX_ID_CHARACTERS:
        raise BusError(
            conditions.ARGUMENT_ERROR,
            f"The {name} of a message has {len(text)} characters; the limit is {MAX_ID_CHARACTERS}.",
        )
