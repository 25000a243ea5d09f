"""`Drain`: the passes over a queue, from one to the next, and its summary. The passes are scripted."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from pairbus.domain.outcome import HeldCount, Outcome, QueueSummary
from pairbus.syphon.drain import drain as drain_module
from pairbus.syphon.drain.drain import Drain, DrainOptions, never
from pairbus.syphon.drain.flow_control import SendWindow
from pairbus.syphon.drain.in_flight import InFlightMessage
from pairbus.syphon.drain.pass_state import EndReason, PassState
from tests.support.backlog import Remembering
from tests.unit.syphon.drain.fakes import namespace

#: What one pass does; it returns the reason that ended it, and perhaps an error.
Script = Callable[[Drain], "EndReason | tuple[EndReason, str]"]


class Scripted:
    """A drain whose passes do what a test says, the last of them again and again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.passes = 0

    def __call__(
        self, *scripts: Script, stop: Callable[[], bool] = never, journal: Any = None, **options: Any
    ) -> QueueSummary:
        given = DrainOptions(**{"retry_interval": 0.01, **options})
        drain = Drain(namespace("contoso"), namespace("backup"), None, 0, journal or Remembering(), given, stop)
        scripted = self

        class Pass:
            def __init__(self, drain: Drain, writer: Any) -> None:
                self.state = PassState().connected()

            async def run(self) -> PassState:
                script = scripts[min(scripted.passes, len(scripts) - 1)]
                scripted.passes += 1
                await asyncio.sleep(0)
                ended = script(drain)
                reason, error = ended if isinstance(ended, tuple) else (ended, None)
                self.state = self.state.end(reason, 0.0, error)
                return self.state

        self._monkeypatch.setattr(drain_module, "DrainPass", Pass)
        return asyncio.run(drain.run())


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    return Scripted(monkeypatch)


def deliver(drain: Drain, *sequences: int) -> None:
    for sequence in sequences:
        message = InFlightMessage(None, 10)
        message.sequence, message.size, message.outcome = sequence, 10, Outcome.DELIVERED
        drain.note_received(sequence, asyncio.get_running_loop().time(), 60.0)
        drain.note_settled(message)


def hold(drain: Drain, *sequences: int, why: str = "busy") -> None:
    for sequence in sequences:
        drain.note_received(sequence, asyncio.get_running_loop().time(), 60.0)
        drain.held[sequence] = "q", why


def empty(drain: Drain) -> EndReason:
    return EndReason.EMPTY


def lose_link(locked: float) -> Script:
    """A pass that delivers a message and leaves another locked for `locked` seconds and one."""

    def script(drain: Drain) -> tuple[EndReason, str]:
        deliver(drain, 1)
        drain.locked.pass_ended(asyncio.get_running_loop().time(), locked, [(2, ("q", "a"))], unseen=False)
        return EndReason.BACKLOG_LOST, "the link was lost"

    return script


def test_a_queue_that_was_found_empty_is_drained(scripted: Scripted) -> None:
    """One pass is enough, as nothing is held back."""

    def script(drain: Drain) -> EndReason:
        deliver(drain, 1, 2)
        return EndReason.EMPTY

    summary = scripted(script)
    assert (summary.delivered, summary.bytes, summary.empty, summary.error) == (2, 20, True, None)
    assert scripted.passes == 1


def test_held_messages_are_tried_again_while_messages_move(scripted: Scripted) -> None:
    """A pass that moves none ends the drain; a held message that is delivered is not held any more."""

    def first(drain: Drain) -> EndReason:
        deliver(drain, 1)
        hold(drain, 2, 3)
        return EndReason.EMPTY

    def second(drain: Drain) -> EndReason:
        deliver(drain, 2)
        return EndReason.EMPTY

    summary = scripted(first, second, empty)
    assert scripted.passes == 3
    assert (summary.delivered, summary.held, summary.empty) == (2, 1, True)
    assert summary.held_for == (HeldCount("q", "busy", 1),)


def test_the_same_held_messages_of_the_goal_end_a_drain(scripted: Scripted) -> None:
    """Though other messages move, which were parked meanwhile."""
    numbers = iter(range(3, 1000))

    def script(drain: Drain) -> EndReason:
        hold(drain, 1, 2)
        deliver(drain, next(numbers))
        return EndReason.GOAL_REACHED

    summary = scripted(script, goal=2, budget=None)
    assert scripted.passes == 2
    assert (summary.held, summary.empty) == (2, True)


def test_isolated_messages_have_another_pass(scripted: Scripted) -> None:
    """The message that ends the link is not found yet, and the others wait for that."""

    def script(drain: Drain) -> EndReason:
        hold(drain, 1)
        window = drain.send_windows.setdefault("q", SendWindow(10))
        if scripted.passes == 1:
            window.isolate(1)
        else:
            window.accepted()
        return EndReason.EMPTY

    scripted(script)
    assert scripted.passes == 2


def test_an_error_that_persists_ends_a_drain(scripted: Scripted) -> None:
    """After the third pass that moves nothing; the summary has the last error."""
    summary = scripted(lambda drain: (EndReason.UNREACHABLE, f"attempt {scripted.passes}"))
    assert scripted.passes == 3
    assert (summary.error, summary.empty) == ("attempt 3", False)


def test_a_defect_in_a_pass_is_an_error(scripted: Scripted, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and another pass is tried."""

    def defect(drain: Drain) -> EndReason:
        raise ZeroDivisionError("a defect of ours")

    assert scripted(defect).error == "ZeroDivisionError: a defect of ours"
    assert scripted.passes == 3
    assert "a pass over backlog queue 0 failed" in caplog.text
    scripted.passes = 0
    assert scripted(defect, empty).empty
    assert scripted.passes == 2


@pytest.mark.parametrize("reason", [EndReason.TOO_MANY_HELD, EndReason.JOURNAL_FAILED])
def test_an_obstacle_that_would_be_met_again_ends_a_drain(scripted: Scripted, reason: EndReason) -> None:
    """Other errors are tried three times."""
    assert scripted(lambda drain: (reason, "no way on")).error == "no way on"
    assert scripted.passes == 1


def test_a_journal_that_cannot_be_written_keeps_passes_from_beginning(scripted: Scripted) -> None:
    """The summary says so."""

    class Full(Remembering):
        def prepare(self) -> None:
            raise OSError(28, "No space left on device")

    summary = scripted(empty, journal=Full())
    assert scripted.passes == 0
    assert not summary.empty
    assert "the journal cannot be written, so nothing is taken from the backlog" in str(summary.error)


def test_a_queue_with_locked_messages_is_not_empty_yet(scripted: Scripted) -> None:
    """Another pass looks once their locks have ended."""
    began = time.monotonic()
    summary = scripted(lose_link(0.5), empty)
    assert scripted.passes >= 3
    assert summary.empty
    assert time.monotonic() - began > 1.4


def test_the_budget_does_not_cut_the_wait_for_order_short(scripted: Scripted) -> None:
    """The next drain would send later messages of the session first. The queue is not called empty."""
    began = time.monotonic()
    summary = scripted(lose_link(0.5), budget=0.05)
    assert not summary.empty
    assert time.monotonic() - began > 1.4


def test_a_queue_that_seems_empty_is_not_called_so_while_messages_are_locked(scripted: Scripted) -> None:
    """The budget is over before they can be received."""

    def script(drain: Drain) -> EndReason:
        drain.locked.pass_ended(asyncio.get_running_loop().time(), 0.2, [(2, None)], unseen=False)
        return EndReason.EMPTY

    summary = scripted(script, budget=0.05)
    assert not summary.empty


def test_a_stop_cuts_the_wait_for_order_short(scripted: Scripted) -> None:
    """Someone waits for the process to end."""
    began = time.monotonic()
    summary = scripted(lose_link(50.0), stop=lambda: scripted.passes > 0)
    assert not summary.empty
    assert time.monotonic() - began < 20.0


def test_the_budget_ends_a_drain(scripted: Scripted) -> None:
    """Though every pass moves messages, and with a `stop` that never answers."""
    numbers = iter(range(1, 100_000))

    def script(drain: Drain) -> EndReason:
        deliver(drain, next(numbers))
        hold(drain, 0)
        return EndReason.EMPTY

    def never_answers() -> bool:
        time.sleep(5)
        return False

    summary = scripted(script, budget=0.3, stop=never_answers)
    assert summary.seconds < 4.0
    assert scripted.passes > 1


def test_a_stop_that_cannot_be_read_is_asked_for_again(
    scripted: Scripted, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error is no stop, and is logged with the next attempt."""
    monkeypatch.setattr(drain_module, "_STOP_SECONDS", 0.05)
    asked: list[None] = []

    def stop() -> bool:
        asked.append(None)
        if len(asked) == 1:
            raise OSError("the disk is far away")
        return True

    def script(drain: Drain) -> EndReason:
        hold(drain, 0)
        deliver(drain, scripted.passes)
        return EndReason.EMPTY

    scripted(script, stop=stop, budget=None)
    assert len(asked) == 2
    assert "the stop request could not be read: the disk is far away; next attempt in 0.05 s" in caplog.text


def test_after_a_kill_a_queue_without_messages_is_looked_at_again(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it may be locked, for a time that is unknown before the first message: the wait is a short one."""
    monkeypatch.setattr(drain_module, "_FIRST_LOCK_WAIT", 0.1)

    def second(drain: Drain) -> EndReason:
        assert drain.locked.has_sessions
        drain.note_received(1, asyncio.get_running_loop().time(), 0.5)
        assert not drain.locked.has_sessions  # unknown before the first message, and then seen
        deliver(drain, 1)
        return EndReason.EMPTY

    began = time.monotonic()
    summary = scripted(empty, second, empty, after_a_kill=True)
    assert (summary.delivered, summary.empty) == (1, True)
    assert scripted.passes >= 3
    assert 1.4 < time.monotonic() - began < 30.0


def test_dead_letters_are_logged_by_destination_and_reason(
    scripted: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    """One line for each kind, with the first description, for twenty kinds at most."""

    def script(drain: Drain) -> EndReason:
        for number in range(30):
            drain.count_dead_letter(f"q{number}", "amqp:not-found", "first")
        drain.count_dead_letter("q0", "amqp:not-found", "second")
        return EndReason.EMPTY

    with caplog.at_level(logging.WARNING):
        scripted(script)
    assert len(caplog.messages) == 20
    assert caplog.messages[0] == "queue 0: 2 for q0 go to its dead-letter queue (amqp:not-found: first)"


def test_a_refused_credential_is_an_error(scripted: Scripted) -> None:
    """Held messages alone are none; an error of a pass comes first."""

    def script(drain: Drain) -> EndReason:
        hold(drain, 1, why="amqp:unauthorized-access")
        drain.credential_refusals.add("amqp:unauthorized-access")
        return EndReason.EMPTY

    assert scripted(script).error == (
        "the credential of [primary] (or [event_hubs]) is refused: q: amqp:unauthorized-access"
    )
    scripted.passes = 0
    assert scripted(lambda drain: (script(drain), (EndReason.BACKLOG_LOST, "lost"))[1]).error == "lost"
