"""The limits of one message and of a session's state, at their edges."""

from __future__ import annotations

import pytest

from pairbus.localbus.bus_errors import ARGUMENT_ERROR, NOT_ALLOWED, BusError
from pairbus.localbus.entities.limits import MAX_STATE_BYTES, check_draft, check_state
from pairbus.localbus.entities.message import Draft


@pytest.mark.parametrize(
    "draft",
    [
        Draft(b"", 0, message_id="x" * 128, session_id="s" * 128),
        Draft(b"", 0, message_id=7, session_id="s", partition_key="s"),
        Draft(b"", 0, partition_key="p"),
    ],
)
def test_messages_within_the_limits_are_accepted(draft: Draft) -> None:
    """Ids of 128 characters are allowed, and a partition key that is the session id."""
    check_draft(draft, "q", requires_session=False)


@pytest.mark.parametrize(
    ("draft", "condition", "text"),
    [
        (Draft(b"", 0, message_id="x" * 129), ARGUMENT_ERROR, "The MessageId of a message has 129 characters"),
        (Draft(b"", 0, session_id="x" * 129), ARGUMENT_ERROR, "The SessionId of a message has 129 characters"),
        (Draft(b"", 0, session_id="s", partition_key="p"), ARGUMENT_ERROR, "PartitionKey 'p' .* SessionId 's'"),
    ],
)
def test_messages_beyond_the_limits_are_refused(draft: Draft, condition: str, text: str) -> None:
    """The error names the property."""
    with pytest.raises(BusError, match=text) as refused:
        check_draft(draft, "q", requires_session=False)
    assert refused.value.condition == condition


def test_a_queue_with_sessions_needs_a_session_id() -> None:
    """A message with one is accepted, one without is refused."""
    check_draft(Draft(b"", 0, session_id=""), "q", requires_session=True)
    with pytest.raises(BusError, match="SessionId was not set") as refused:
        check_draft(Draft(b"", 0), "q", requires_session=True)
    assert refused.value.condition == NOT_ALLOWED


def test_a_session_state_has_a_maximum_size() -> None:
    """256 KiB are accepted, one byte more is refused."""
    check_state(None)
    check_state(b"x" * MAX_STATE_BYTES)
    with pytest.raises(BusError, match="262145 bytes; the limit is 262144"):
        check_state(b"x" * (MAX_STATE_BYTES + 1))
