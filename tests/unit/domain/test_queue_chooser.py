"""The choice of a backlog queue for each attempt to park: queues that failed, refused or are busy; time shares."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pairbus.domain.backlog import LEAST_SECONDS, QueueChooser, Rotation, SenderQueue

AWAY = 60.0
A, B, C = "a", "b", "c"


def first(queues: Sequence[str]) -> str:
    return queues[0]


def chooser(*queues: str, home: SenderQueue | None = None) -> QueueChooser:
    """Return a chooser for queues of which the first that may be picked is picked."""
    return QueueChooser(Rotation(queues, AWAY, first), SenderQueue() if home is None else home)


def test_the_sender_stays_with_its_queue() -> None:
    """Messages of one session stay together: the queue that another thread has picked is used."""
    home = SenderQueue(B)
    assert chooser(A, B, C, home=home).choose(0.0) == B
    assert home.queue == B


def test_the_first_choice_is_the_senders_from_then_on() -> None:
    """Before it is known whether the queue accepts anything: other threads must not pick another one."""
    home = SenderQueue()
    assert chooser(A, B, home=home).choose(0.0) == A
    assert home.queue == A


def test_a_queue_that_failed_is_not_tried_again_in_this_call() -> None:
    """Each queue once, then none; the next call starts with the sender's queue again."""
    home = SenderQueue(A)
    queues = chooser(A, B, home=home)
    queues.failed(A)
    assert queues.choose(0.0) == B
    queues.failed(B)
    assert queues.choose(0.0) is None
    assert home.queue == A


def test_the_sender_moves_to_the_queue_that_accepts() -> None:
    """Also if that is not the one it asked first."""
    home = SenderQueue(A)
    queues = chooser(A, B, C, home=home)
    queues.failed(A)
    queues.accepted(B)
    assert home.queue == B
    assert queues.choose(0.0) == B


def test_a_queue_that_another_thread_has_picked_meanwhile_stays_the_senders() -> None:
    """Two threads that fail at the same time must not send one session to two queues from then on."""
    home = SenderQueue(A)
    queues = chooser(A, B, C, home=home)
    queues.failed(A)
    home.queue = C
    queues.accepted(B)
    assert home.queue == C


def test_the_rest_of_a_call_stays_where_its_last_messages_were_accepted() -> None:
    """Even if another thread of the sender has picked a new queue."""
    home = SenderQueue(A)
    queues = chooser(A, B, C, home=home)
    queues.failed(A)
    home.queue = C
    queues.accepted(B)
    assert queues.choose(0.0) == B


def test_a_queue_that_left_the_rotation_is_replaced_for_the_sender() -> None:
    """Its absence is for all senders; a chooser starts with another queue, which is the sender's from then on."""
    home = SenderQueue(A)
    rotation = Rotation([A, B], AWAY, first)
    rotation.leave(A, 0.0, "why")
    queues = QueueChooser(rotation, home)
    assert queues.choose(1.0) == B
    assert home.queue == B


def test_while_every_queue_is_out_of_the_rotation_none_is_chosen_and_the_sender_keeps_its_own() -> None:
    """It is used again when its absence ends."""
    home = SenderQueue(A)
    rotation = Rotation([A], AWAY, first)
    rotation.leave(A, 0.0, "why")
    queues = QueueChooser(rotation, home)
    assert queues.choose(1.0) is None
    assert home.queue == A
    assert queues.choose(AWAY) == A


def test_a_queue_that_refuses_a_message_is_tried_again_with_the_next_one() -> None:
    """Another queue takes the message, and then both may take what follows."""
    queues = chooser(A, B, home=SenderQueue(A))
    queues.refused(A)
    assert queues.choose(0.0) == B
    queues.accepted(B)
    queues.failed(B)
    assert queues.choose(0.0) == A


def test_a_busy_queue_is_tried_once_more_and_then_the_others() -> None:
    """None of them leaves the rotation, so at last the first one is tried again."""
    queues = chooser(A, B, home=SenderQueue(A))
    assert queues.choose(0.0) == A
    queues.busy(A)
    assert queues.choose(0.0) == A
    queues.busy(A)
    assert queues.choose(0.0) == B
    queues.busy(B)
    assert queues.choose(0.0) == B
    queues.busy(B)
    assert queues.choose(0.0) == A


def test_a_queue_that_accepts_ends_the_busy_time_of_all() -> None:
    """The next message may go to any of them."""
    queues = chooser(A, B, home=SenderQueue(A))
    queues.busy(A)
    queues.busy(A)
    queues.accepted(B)
    queues.failed(B)
    assert queues.choose(0.0) == A
    queues.busy(A)
    assert queues.choose(0.0) == A


def test_a_failed_queue_is_not_chosen_for_being_busy_before() -> None:
    """A queue that failed stays out, whatever it said before."""
    queues = chooser(A, B, home=SenderQueue(A))
    queues.busy(A)
    queues.failed(A)
    assert queues.choose(0.0) == B


@pytest.mark.parametrize(
    ("left", "seconds"),
    [(60.0, 30.0), (2 * LEAST_SECONDS, LEAST_SECONDS), (3.0, LEAST_SECONDS), (1.0, 1.0), (0.01, 0.01)],
)
def test_one_of_several_queues_may_take_half_of_the_time(left: float, seconds: float) -> None:
    """So that another can be tried; but no less than opening a link may take, and never more than is left."""
    assert chooser(A, B).time_limit(0.0, left) == seconds


def test_the_last_queue_may_take_all_of_the_time() -> None:
    """There is no other that could be tried: the others failed, refuse the message, or are out of the rotation."""
    assert chooser(A).time_limit(0.0, 60.0) == 60.0
    queues = chooser(A, B, C)
    queues.failed(A)
    assert queues.time_limit(0.0, 60.0) == 30.0
    queues.refused(B)
    assert queues.time_limit(0.0, 60.0) == 60.0
    rotation = Rotation([A, B], AWAY, first)
    rotation.leave(A, 0.0, "why")
    assert QueueChooser(rotation, SenderQueue()).time_limit(0.0, 60.0) == 60.0
