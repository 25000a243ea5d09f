"""`LockedMessages`: what earlier passes have left locked, and what waits for it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pairbus.syphon.drain.in_flight import InFlightMessage
from pairbus.syphon.drain.lock_tracking import LONGEST_LOCK, LockedMessages

_SESSIONS = [("q", "a"), ("q", "b"), ("r", "a")]
_UNSETTLED = st.dictionaries(st.integers(1, 30), st.sampled_from([None, *_SESSIONS]))


def of_session(destination: str, session: str, sequence: int = 0) -> InFlightMessage:
    message = InFlightMessage(None, 0)
    message.destination, message.session, message.sequence = destination, session, sequence
    return message


def blocks(locked: LockedMessages, session: tuple[str, str], sequence: int) -> bool:
    return locked.blocks(of_session(*session, sequence))


@given(_UNSETTLED, st.lists(st.integers(1, 30)), st.integers(1, 31))
def test_an_unsettled_message_blocks_later_ones_of_its_session(
    left: dict[int, tuple[str, str] | None], received: list[int], sequence: int
) -> None:
    """And nothing else: no other session, no earlier message, nothing once it was received; whatever the time is."""
    locked = LockedMessages()
    locked.pass_ended(0.0, 10.0, list(left.items()), unseen=False)
    locked.pass_began(5.0)
    for number in received:
        locked.received(number)
    still = {number: session for number, session in left.items() if number not in received}
    for session in _SESSIONS:
        expected = any(number < sequence and owner == session for number, owner in still.items())
        assert blocks(locked, session, sequence) == expected
    # A lock's time and a second, from when the service was reached again.
    assert locked.seconds_locked(6.0) == (10.0 if still else 0.0)
    assert locked.seconds_out_of_order(6.0) == (10.0 if any(still.values()) else 0.0)
    locked.queue_was_empty(15.9)
    assert bool(locked.seconds_locked(15.9)) == bool(still)
    locked.queue_was_empty(16.0)
    assert not any(blocks(locked, session, sequence) for session in _SESSIONS)


@given(st.integers(0, 20), st.sets(st.integers(1, 30)), st.integers(1, 40))
def test_a_gap_behind_a_lost_link_blocks_all_sessions(seen: int, lost: set[int], later: int) -> None:
    """Messages that were sent when the link was lost never arrived, and their sessions are unknown: until their locks
    end, a message behind a gap waits. One without a gap before it does not."""
    locked = LockedMessages()
    for number in range(1, seen + 1):
        locked.received(number)
    locked.pass_ended(0.0, 10.0, [], unseen=True)
    locked.pass_began(1.0)
    missing = {number for number in lost if number > seen}
    for number in range(seen + 1, 31):
        if number not in missing:
            locked.received(number)
            assert blocks(locked, ("q", "a"), number) == any(hidden < number for hidden in missing)
    assert locked.seconds_locked(1.0) == 11.0
    locked.pass_began(12.0)  # the locks have ended: what is still missing was taken by others
    locked.received(later)
    assert not blocks(locked, ("q", "a"), later)
    assert locked.seconds_locked(12.0) == 0.0


def test_unseen_messages_are_out_of_order_only_if_there_are_sessions() -> None:
    """A queue that never showed a message of a session can be left to the next drain at once."""
    locked = LockedMessages()
    locked.pass_ended(0.0, 10.0, [], unseen=True)
    locked.pass_began(1.0)
    assert (locked.seconds_locked(1.0), locked.seconds_out_of_order(1.0)) == (11.0, 0.0)
    assert not blocks(locked, ("q", "a"), 0)
    assert locked.seconds_out_of_order(1.0) == 11.0


def test_a_session_stays_blocked_for_the_rest_of_the_pass() -> None:
    """Also when the message that blocked it was received again: those behind it were held back. Not in the next."""
    locked = LockedMessages()
    locked.pass_ended(0.0, 10.0, [(3, ("q", "a"))], unseen=False)
    locked.pass_began(1.0)
    assert blocks(locked, ("q", "a"), 4)
    locked.received(3)
    assert blocks(locked, ("q", "a"), 5)
    assert not blocks(locked, ("q", "b"), 5)
    locked.pass_ended(2.0, 10.0, [], unseen=False)
    locked.pass_began(3.0)
    assert not blocks(locked, ("q", "a"), 5)


def test_a_session_is_one_in_any_case_of_its_destinations_name() -> None:
    """Entities are the same in any case; session ids are not."""
    locked = LockedMessages()
    locked.pass_ended(0.0, 10.0, [(3, of_session("Orders", "a").session_key)], unseen=False)
    locked.pass_began(1.0)
    assert blocks(locked, ("ORDERS", "a"), 4)
    assert not blocks(locked, ("orders", "A"), 4)


def test_a_pass_that_left_nothing_adds_nothing() -> None:
    """It does not make locks last longer. Their duration is remembered from pass to pass."""
    locked = LockedMessages()
    locked.pass_ended(0.0, 10.0, [], unseen=True)
    locked.pass_began(0.0)
    locked.pass_ended(1.0, 0.0, [], unseen=False)
    locked.pass_began(2.0)
    assert locked.seconds_locked(2.0) == 9.0
    locked.pass_ended(3.0, 0.0, [], unseen=True)
    assert locked.seconds_locked(3.0) == 11.0


def test_without_a_message_locks_may_be_the_longest() -> None:
    """A link that was lost before the first message showed how long locks last."""
    locked = LockedMessages()
    locked.pass_ended(0.0, 0.0, [], unseen=True)
    assert locked.seconds_locked(0.0) == LONGEST_LOCK + 1.0


def test_a_service_that_was_frozen_may_have_locked_messages_until_it_is_reached() -> None:
    """Their locks are counted from then, once: a second pass does not start them anew."""
    locked = LockedMessages()
    locked.pass_ended(0.0, 10.0, [(1, None)], unseen=False)
    locked.pass_began(100.0)
    assert locked.seconds_locked(100.0) == 11.0
    locked.pass_began(105.0)
    assert locked.seconds_locked(105.0) == 6.0


def test_links_that_are_lost_again_and_again() -> None:
    """A message behind a gap does not close it, and one that is received again goes first."""
    locked = LockedMessages()
    for number in (1, 2, 3):
        locked.received(number)
    locked.pass_ended(0.0, 10.0, [(3, ("q", "a"))], unseen=True)
    locked.pass_began(1.0)
    locked.received(6)  # 4 and 5 were sent and lost
    assert blocks(locked, ("q", "b"), 6)
    locked.pass_ended(2.0, 10.0, [(6, ("q", "b"))], unseen=True)
    locked.pass_began(14.0)
    for number in (3, 4):
        locked.received(number)
        assert not blocks(locked, ("q", "a"), number)
    locked.pass_ended(15.0, 10.0, [], unseen=True)  # 5 was lost once more
    locked.pass_began(16.0)
    locked.received(7)
    assert blocks(locked, ("q", "b"), 7)
    assert blocks(locked, ("q", "c"), 7)


def test_a_message_that_is_left_twice_counts_with_its_last_session() -> None:
    """Sent the second time, it blocks no session any more."""
    locked = LockedMessages()
    locked.pass_ended(0.0, 10.0, [(3, ("q", "a"))], unseen=False)
    locked.pass_ended(1.0, 10.0, [(3, None)], unseen=False)
    assert not blocks(locked, ("q", "a"), 4)
    assert locked.seconds_locked(1.0) == 11.0


def test_a_killed_drain_may_have_locked_all_that_was_not_received() -> None:
    """Until its locks have ended, sessions wait behind the first gap."""
    locked = LockedMessages()
    locked.suspect_killed_drain(0.0, 5.0)
    locked.received(7)
    assert blocks(locked, ("q", "a"), 7)
    assert locked.seconds_locked(0.0) == 6.0
    locked.pass_began(6.0)
    locked.received(8)
    assert not blocks(locked, ("q", "a"), 8)
