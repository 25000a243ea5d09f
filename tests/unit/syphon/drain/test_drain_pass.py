"""One pass, event by event: from a message to its settlement, and each reason that ends it. No socket is involved."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from pairbus.syphon.amqp.link import ConnectionLost, LinkError
from pairbus.syphon.drain import drain_pass
from pairbus.syphon.drain.flow_control import ServiceClock
from pairbus.syphon.drain.pass_state import EndReason, Phase
from tests.unit.syphon.drain import fakes
from tests.unit.syphon.drain.fakes import FailingJournal, PassRun, delivered


async def test_a_message_is_settled_once_its_row_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent, accepted, recorded, completed, confirmed: then the queue is seen empty and the pass ends."""
    completed_at_write: list[Any] = []
    async with PassRun(monkeypatch) as run:
        write = run.journal.write

        def noted(rows: Any) -> Any:
            completed_at_write.append(run.asked("complete"))
            return write(rows)

        monkeypatch.setattr(run.journal, "write", noted)
        for sequence in (1, 2, 3):
            run.receiver.deliver(sequence)
        state = await run.end()
        assert (state.reason, state.error, state.found_empty) == (EndReason.EMPTY, None, True)
        assert run.senders["q"].sent == [1, 2, 3]
        assert completed_at_write == [[]]
        assert run.asked("complete") == [1, 2, 3]
        assert (run.drain.delivered, run.drain.held) == (3, {})
        assert [row["message_id"] for row in run.journal.rows] == ["m1", "m2", "m3"]
        assert run.drain.locked.seconds_locked(0.0) == 0.0


async def test_an_empty_queue_ends_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The credit is drained once nothing moves."""
    async with PassRun(monkeypatch) as run:
        state = await run.end()
        assert (state.reason, state.found_empty) == (EndReason.EMPTY, True)
        assert run.receiver.calls == [("allow", 64), "drain"]


async def test_a_service_that_has_used_the_credit_up_may_have_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that returned no credit does not show an empty queue: the pass asks for more."""
    async with PassRun(monkeypatch) as run:
        run.receiver.returns_credit = False
        await run.until(lambda: "drain" in run.receiver.calls)
        run.receiver.credit = 0
        run.receiver.events.on_drained(False)
        await run.until(lambda: run.asked("allow") == [64, 64])
        assert run.one.state.phase is Phase.DRAINING


async def test_credit_that_is_returned_without_a_question_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only an answer shows that the service has sent all that it had."""
    async with PassRun(monkeypatch) as run:
        run.receiver.events.on_drained(True)
        assert run.one.state.phase is Phase.DRAINING


async def test_a_stop_takes_the_credit_back_and_finishes_what_is_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing more is received; the message that was sent is settled."""
    async with PassRun(monkeypatch) as run:
        run.accepts = False
        run.receiver.deliver(1)
        sender = await run.sent("q")
        granted = run.asked("allow")
        run.drain.stopping = True
        await run.until(lambda: run.one.state.phase is Phase.ENDING and not run.receiver.credit)
        assert run.asked("complete") == []
        sender.accept()
        state = await run.end()
        assert (state.reason, state.error, state.found_empty) == (EndReason.STOPPED, None, False)
        assert run.asked("complete") == [1]
        assert run.receiver.calls.count("drain") == 1
        assert run.asked("allow") == granted


async def test_a_pass_ends_once_it_has_moved_its_goal(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not ask for messages behind it, and counts as having found the queue empty."""
    async with PassRun(monkeypatch, goal=2) as run:
        run.receiver.deliver(1)
        run.receiver.deliver(2)
        state = await run.end()
        assert (state.reason, state.found_empty) == (EndReason.GOAL_REACHED, True)
        assert len(run.asked("allow")) == 1
        assert run.drain.delivered == 2


async def test_too_many_held_messages_end_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are given back, and the error says for which destination they are."""
    async with PassRun(monkeypatch, held_messages=2) as run:
        run.accepts = False
        for sequence in (1, 2, 3):
            run.receiver.deliver(sequence)
        sender = await run.sent("q")
        sender.refuse("com.microsoft:server-busy")
        state = await run.end()
        assert (state.reason, state.found_empty) == (EndReason.TOO_MANY_HELD, False)
        assert "3 messages are held back (3 of them for q)" in str(state.error)
        assert sorted(run.asked("abandon")) == [1, 2, 3]
        assert not state.allows_another_pass(moved=False)


async def test_a_lost_primary_ends_the_pass_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be delivered any more, so nothing more is received."""
    async with PassRun(monkeypatch) as run:
        run.connections["contoso"].lost = ConnectionLost(None, "reset by peer")
        state = await run.end()
        assert state.reason is EndReason.PRIMARY_LOST
        assert state.error == "the primary was lost: reset by peer"
        assert "drain" in run.receiver.calls


async def test_a_service_that_does_not_say_whether_the_queue_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass ends with an error, and the queue is not called empty."""
    monkeypatch.setattr("pairbus.syphon.drain.completion.ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(drain_pass, "CONFIRM_SECONDS", 0.1)
    async with PassRun(monkeypatch) as run:
        run.receiver.returns_credit = False
        state = await run.end()
        assert (state.reason, state.found_empty) == (EndReason.NO_EMPTY_ANSWER, False)
        assert state.error == "the backlog did not say whether it is empty"


# --- after the end ---------------------------------------------------------------------------------------------------


async def test_a_message_that_arrives_after_the_end_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was sent within the credit of before; no destination gets it, and no lock is left behind."""
    async with PassRun(monkeypatch) as run:
        run.journal.write = FailingJournal().write  # type: ignore[method-assign]
        run.receiver.returns_credit = False
        run.receiver.deliver(1)
        sender = await run.sent("q")
        await run.until(lambda: run.one.state.phase is Phase.FINISHED and "drain" in run.receiver.calls)
        late = run.receiver.deliver(2)
        assert late.outcome is None
        assert 2 in run.asked("abandon")
        run.receiver.return_credit()
        state = await run.end()
        assert state.reason is EndReason.JOURNAL_FAILED
        assert sender.sent == [1]
        assert run.asked("abandon").count(2) == 1
        assert run.drain.held == {2: ("q", "the pass was over")}


async def test_credit_is_drained_before_messages_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The link would receive them again at once, and again."""
    async with PassRun(monkeypatch) as run:
        run.accepts = False
        run.journal.write = FailingJournal().write  # type: ignore[method-assign]
        run.receiver.deliver(1, "ill")
        run.receiver.deliver(2, "well")
        ill, well = await run.sent("ill"), await run.sent("well")
        ill.refuse("com.microsoft:server-busy")
        well.accept()
        state = await run.end()
        assert state.reason is EndReason.JOURNAL_FAILED
        assert "No space left on device" in str(state.error)
        calls = run.receiver.calls
        assert calls.index("drain") < calls.index(("abandon", 1))
        assert run.asked("abandon") == [1]
        assert run.asked("complete") == []


async def test_what_is_not_confirmed_is_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A settlement without an answer, at the end of the pass: a second row says so."""
    monkeypatch.setattr(drain_pass, "CONFIRM_SECONDS", 0.1)
    async with PassRun(monkeypatch) as run:
        run.receiver.confirms = False
        run.receiver.deliver(1)
        await run.until(lambda: run.asked("complete"))
        run.receiver.close(LinkError("amqp:link:detach-forced", "closed"))
        state = await run.end()
        assert state.reason is EndReason.BACKLOG_LOST
        assert [row["outcome"] for row in run.journal.rows] == ["delivered", "in doubt"]
        assert (run.drain.delivered, run.drain.in_doubt) == (0, 1)


# --- a link that was lost --------------------------------------------------------------------------------------------


def is_blocked(run: PassRun, sequence: int, session: str) -> bool:
    """Tell if the next pass would hold a message back because of what this one has left locked."""
    run.drain.locked.pass_began(asyncio.get_running_loop().time())
    run.drain.locked.received(sequence)
    message = run.one.on_message(sequence, delivered(sequence, session=session))
    return run.drain.locked.blocks(message)


async def test_a_lost_link_leaves_sessions_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that were received and not sent come first: the next pass sends nothing of their sessions before."""
    async with PassRun(monkeypatch) as run:
        run.accepts = False
        run.receiver.deliver(1, session="a")
        await run.sent("q")
        run.receiver.close(LinkError("amqp:link:detach-forced", "closed"))
        state = await run.end()
        assert (state.reason, state.error) == (
            EndReason.BACKLOG_LOST,
            "the backlog queue's link was lost: amqp:link:detach-forced: closed",
        )
        assert run.drain.locked.seconds_out_of_order(asyncio.get_running_loop().time()) > 50.0
        assert is_blocked(run, 2, "a")
        assert not is_blocked(run, 3, "b")


async def test_a_lost_link_leaves_no_session_of_an_accepted_message_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has arrived: later messages may follow, though the queue is not empty before it was received again."""
    async with PassRun(monkeypatch) as run:
        run.receiver.confirms = False
        run.receiver.deliver(1, session="a")
        await run.until(lambda: run.asked("complete"))
        run.receiver.close(LinkError("amqp:link:detach-forced", "closed"))
        await run.end()
        now = asyncio.get_running_loop().time()
        assert run.drain.locked.seconds_locked(now) > 50.0
        assert run.drain.locked.seconds_out_of_order(now) == 0.0
        assert not is_blocked(run, 2, "a")


@pytest.mark.parametrize("lost", ["link", "connection"])
async def test_only_a_lost_connection_loses_messages_on_their_way(monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    """All that was sent over a link before it was closed has arrived. With a connection any session may be locked."""
    async with PassRun(monkeypatch) as run:
        if lost == "connection":
            error: LinkError = ConnectionLost(None, "reset by peer")
            run.connections["backup"].lost = ConnectionLost(None, "reset by peer")
        else:
            error = LinkError("amqp:link:detach-forced", "closed")
        run.receiver.close(error)
        state = await run.end()
        assert f"the backlog queue's {lost} was lost" in str(state.error)
        assert is_blocked(run, 7, "a") is (lost == "connection")


# --- time ------------------------------------------------------------------------------------------------------------


async def test_a_backlog_that_confirms_nothing_ends_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the time for an answer; but not while its socket is not read, when no confirmation can be received."""
    monkeypatch.setattr(drain_pass, "CONFIRM_SECONDS", 0.1)
    async with PassRun(monkeypatch, answer_timeout=0.3) as run:
        run.receiver.confirms = False
        run.receiver.deliver(1)
        await run.until(lambda: run.asked("complete"))
        connection = run.connections["backup"]
        monkeypatch.setattr(connection, "resume_reading", lambda: None)
        connection.is_paused = True
        await run.wait(1.0)
        assert run.one.state.phase is Phase.DRAINING
        connection.is_paused = False
        read_again = time.monotonic()
        state = await run.end()
        assert time.monotonic() - read_again > 0.2  # the time begins when the socket is read again
        assert (state.reason, state.error) == (EndReason.UNCONFIRMED, "the backlog confirmed nothing for 0.3 s")


async def test_after_a_suspension_answers_are_read_before_they_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that stood still for longer than an answer may take reads first what has arrived meanwhile."""
    async with PassRun(monkeypatch, answer_timeout=0.5) as run:
        run.accepts = False
        run.receiver.deliver(1)
        sender = await run.sent("q")
        await asyncio.sleep(0.1)  # the deadlines are checked now and then
        time.sleep(1.2)
        asyncio.get_running_loop().call_later(0.02, sender.accept)
        await run.end()
        assert (run.drain.delivered, run.drain.in_doubt) == (1, 0)


async def test_a_destination_that_does_not_answer_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its messages are in doubt, and given back at the end of the pass."""
    async with PassRun(monkeypatch, answer_timeout=0.3) as run:
        run.accepts = False
        run.receiver.deliver(1)
        await run.sent("q")
        state = await run.end()
        assert (state.reason, state.found_empty) == (EndReason.EMPTY, True)
        assert (run.drain.in_doubt, run.asked("abandon")) == (1, [1])
        ((name, why),) = run.drain.held.values()
        assert name == "q"
        assert "q did not answer: com.microsoft:timeout: no answer within" in why


async def test_the_time_for_confirmations_begins_with_the_first_settlement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with the pass, which may have waited for its first message for long."""
    async with PassRun(monkeypatch, answer_timeout=2.0) as run:
        run.receiver.confirms = False
        run.receiver.deliver(1)
        await run.until(lambda: run.asked("complete"))
        await run.wait(0.2)
        assert run.one.state.phase is Phase.DRAINING
        run.receiver.confirm(1)
        state = await run.end()
        assert (state.reason, run.drain.delivered) == (EndReason.EMPTY, 1)


@pytest.fixture
def short_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServiceClock, "RANGE", (0.1, 60.0))
    monkeypatch.setattr(fakes, "LOCK_SECONDS", 0.5)


async def test_a_held_message_is_given_back_once(monkeypatch: pytest.MonkeyPatch, short_locks: None) -> None:
    """Before its lock ends; the end of the pass does not give it back again."""
    monkeypatch.setattr(drain_pass, "CONFIRM_SECONDS", 0.1)
    async with PassRun(monkeypatch, answer_timeout=1.0) as run:
        run.accepts = run.receiver.confirms = run.receiver.returns_credit = False
        run.receiver.deliver(1)
        sender = await run.sent("q")
        sender.refuse("com.microsoft:server-busy")
        await run.until(lambda: run.asked("abandon"))
        assert run.one.state.phase is Phase.DRAINING
        state = await run.end()
        assert state.reason is EndReason.UNCONFIRMED
        assert run.asked("abandon") == [1]


async def test_a_pass_that_only_gives_messages_back_ends(monkeypatch: pytest.MonkeyPatch, short_locks: None) -> None:
    """Held messages are received again and again, and hide the others: the error names their destination."""
    async with PassRun(monkeypatch, answer_timeout=30.0) as run:
        run.accepts = run.receiver.returns_credit = False
        run.receiver.deliver(1)
        sender = await run.sent("q")
        sender.refuse("com.microsoft:server-busy")
        for sequence in range(2, 30):
            await run.wait(0.1)
            if run.one.state.phase is not Phase.DRAINING:
                break
            run.receiver.deliver(sequence)
        run.receiver.return_credit()
        state = await run.end()
        assert state.reason is EndReason.STALLED
        assert "messages are held back" in str(state.error)


async def test_a_pass_is_not_stalled_before_a_lock_s_time_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Held messages are given back earlier; a fast rate changes nothing about that."""
    monkeypatch.setattr(ServiceClock, "RANGE", (0.1, 60.0))
    monkeypatch.setattr(fakes, "LOCK_SECONDS", 3.0)
    async with PassRun(monkeypatch, answer_timeout=30.0, max_rate=100.0) as run:
        run.accepts = run.receiver.returns_credit = False
        run.receiver.deliver(1)
        sender = await run.sent("q")
        sender.refuse("com.microsoft:server-busy")
        await run.until(lambda: run.asked("abandon"))
        assert run.one.state.phase is Phase.DRAINING


async def test_a_slow_rate_is_no_reason_to_end(monkeypatch: pytest.MonkeyPatch, short_locks: None) -> None:
    """At one message in ten seconds the next one may be yet to come."""
    async with PassRun(monkeypatch, answer_timeout=30.0, max_rate=0.1) as run:
        run.accepts = run.receiver.returns_credit = False
        run.receiver.deliver(1)
        sender = await run.sent("q")
        sender.refuse("com.microsoft:server-busy")
        await run.wait(1.5)
        assert run.asked("abandon") == [1]
        assert run.one.state.phase is Phase.DRAINING
