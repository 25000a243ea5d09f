"""Random tests of a queue: no message is lost or duplicated, every lock has one holder, every count is right.

The queue is pure: Hypothesis acts as senders, receivers, clock and crashes, and compares it with a simple model.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pairbus.localbus.bus_errors import BusError
from pairbus.localbus.entities.message import ACTIVE, DEFERRED, SCHEDULED, Draft, Message, read_message
from pairbus.localbus.entities.payload import Parts
from pairbus.localbus.entities.queues import Queue
from pairbus.localbus.entities.sessions import Session
from pairbus.localbus.settings import QueueSettings
from tests.support import amqp_frames as amqp
from tests.support.recorded_effects import NEVER, RecordedEffects, queue_with_dead_letters

LOCK = 10.0


def rebuild(effects: RecordedEffects, chosen: QueueSettings, now: float) -> Queue:
    """Return the queue that the broker restores from a store after a crash."""
    queue = queue_with_dead_letters(effects, chosen)
    assert queue.dead_letters is not None
    both = {0: queue, 1: queue.dead_letters}
    for number, following in effects.next_sequences.items():
        both[number].next_sequence = following
    for kept in sorted(effects.kept.values(), key=lambda k: (k.queue, k.message.sequence)):
        old = kept.message
        draft = Draft(
            kept.payload,
            old.size,
            session_id=old.session_id,
            time_to_live=old.time_to_live,
            scheduled_at=old.scheduled_at,
        )
        message = Message(old.id, old.sequence, old.enqueued_at, draft)
        message.enqueue_sequence, message.expires_at = old.enqueue_sequence, old.expires_at
        message.source, message.hops = old.source, old.hops
        message.state, message.delivery_count = kept.state, kept.delivery_count
        kept.message = message
        both[kept.queue].insert(message)
    for (number, session), state in effects.states.items():
        both[number].restore_session_state(session, state, now)
    return queue


def facts(queue: Queue) -> dict[int, tuple[Any, ...]]:
    """Return everything about a queue's messages that must outlive a crash.

    A locked message counts one more delivery, except in a dead-letter queue, where the service counts none.
    """
    counts = queue.dead_letters is not None
    return {
        m.sequence: (
            m.id,
            m.state,
            m.delivery_count + (counts and m.lock is not None),
            m.expires_at,
            m.scheduled_at,
            m.session_id,
            m.size,
            m.enqueue_sequence,
            m.enqueued_at,
            m.source,
        )
        for m in queue.messages.values()
    }


@dataclass
class Known:
    """The expected state of one message."""

    body: bytes
    sequence: int
    session: str | None
    where: str  # waiting, locked, deferred, held (deferred and locked), scheduled, dead, dead-locked, gone
    count: int = 0
    expires_at: float = NEVER
    life: float | None = None
    due_at: float = 0.0
    tag: bytes = b""
    until: float = 0.0


class QueueMachine(RuleBasedStateMachine):
    """A queue without sessions under random commands."""

    sessions = False

    @initialize(limit=st.sampled_from((1, 2, 3, 10)), bury_expired=st.booleans(), life=st.sampled_from((None, 4, 25)))
    def start(self, limit: int, bury_expired: bool, life: int | None) -> None:
        self.now = 1000.0
        self.number = 0
        self.effects = RecordedEffects()
        more: dict[str, Any] = {} if life is None else {"default_message_time_to_live": timedelta(seconds=life)}
        self.settings = QueueSettings(
            "q",
            lock_duration=timedelta(seconds=LOCK),
            max_delivery_count=limit,
            dead_lettering_on_message_expiration=bury_expired,
            requires_session=self.sessions,
            **more,
        )
        self.default_life = None if life is None else float(life)
        self.limit = limit
        self.bury_expired = bury_expired
        self.queue = queue_with_dead_letters(self.effects, self.settings)
        self.known: list[Known] = []
        self.holders: dict[str, tuple[Session, object, float]] = {}
        self.next_sequence = 1

    # --- what the test believes ----------------------------------------------------------------------------------

    def at(self, *where: str) -> list[Known]:
        return [k for k in self.known if k.where in where]

    def expire(self, known: Known) -> None:
        known.where = "dead" if self.bury_expired else "gone"

    def give_back(self, known: Known, counted: bool = True) -> None:
        if counted:
            known.count += 1
        known.tag = b""
        if known.where == "dead-locked" or (counted and known.count >= self.limit):
            known.where = "dead"
        elif known.where == "held":
            known.where = "deferred"
        elif known.expires_at <= self.now:
            self.expire(known)
        else:
            known.where = "waiting"

    def lock_end(self, known: Known) -> float:
        if self.sessions and known.where != "dead-locked":
            return self.holders[known.session or ""][2]
        return known.until

    # --- rules ------------------------------------------------------------------------------------------------------

    @rule(
        life=st.sampled_from((None, 1.0, 5.0, 15.0, 40.0)),
        wait=st.sampled_from((None, None, -5.0, 3.0, 12.0)),
        session=st.sampled_from(("a", "b")),
    )
    def enqueue(self, life: float | None, wait: float | None, session: str) -> None:
        self.number += 1
        body = b"body-%d" % self.number
        draft = read_message(amqp.message(body))
        draft.time_to_live = life
        draft.scheduled_at = None if wait is None else self.now + wait
        draft.session_id = session if self.sessions else None
        message = self.queue.enqueue(draft, self.now)
        assert message is not None
        assert message.sequence == self.next_sequence
        self.next_sequence += 1
        if self.default_life is not None and (life is None or self.default_life < life):
            life = self.default_life
        known = Known(body, message.sequence, draft.session_id, "waiting", life=life)
        if wait is not None and wait > 0:
            known.where, known.due_at = "scheduled", self.now + wait
        elif life is not None:
            known.expires_at = self.now + life
        self.known.append(known)

    def acquire_from(self, session: Session | None, limit: int, delete: bool) -> None:
        name = None if session is None else session.id
        there = sorted(
            (k for k in self.at("waiting") if session is None or (k.session or "") == name),
            key=lambda k: k.sequence,
        )
        wanted: list[Known] = []
        for known in there:
            if len(wanted) == limit:
                break
            if known.expires_at <= self.now:
                self.expire(known)
            else:
                wanted.append(known)
        got = self.queue.acquire(self.now, limit, object(), session, delete=delete)
        assert [m.sequence for m in got] == [k.sequence for k in wanted], "in the order of sequence numbers"
        for message, known in zip(got, wanted, strict=True):
            assert message.delivery_count == known.count
            if delete:
                known.where = "gone"
            else:
                known.where, known.tag, known.until = "locked", message.lock.tag, self.now + LOCK

    @precondition(lambda self: not self.sessions)
    @rule(limit=st.integers(1, 4), delete=st.booleans())
    def acquire(self, limit: int, delete: bool) -> None:
        self.acquire_from(None, limit, delete)

    @precondition(lambda self: self.at("dead"))
    @rule(limit=st.integers(1, 3))
    def acquire_dead(self, limit: int) -> None:
        assert self.queue.dead_letters is not None
        got = self.queue.dead_letters.acquire(self.now, limit, object())
        there = {k.sequence: k for k in self.at("dead")}
        assert len(got) == min(limit, len(there))
        for message in got:
            known = there[message.sequence]
            known.where, known.tag, known.until = "dead-locked", message.lock.tag, self.now + LOCK
            known.count = message.delivery_count

    @precondition(lambda self: self.at("locked", "held", "dead-locked"))
    @rule(data=st.data(), how=st.sampled_from(("complete", "abandon", "release", "defer", "dead_letter", "renew")))
    def settle(self, data: st.DataObject, how: str) -> None:
        known = data.draw(st.sampled_from(self.at("locked", "held", "dead-locked")))
        queue = self.queue.dead_letters if known.where == "dead-locked" else self.queue
        assert queue is not None
        tag = known.tag
        if self.lock_end(known) <= self.now:
            with pytest.raises(BusError):
                getattr(queue, how)(tag, self.now)
            return
        if how == "renew":
            end = queue.renew(tag, self.now)
            if not self.sessions or known.where == "dead-locked":
                known.until = self.now + LOCK
            assert end == self.lock_end(known)
            return
        if how == "dead_letter" and known.where == "dead-locked":
            with pytest.raises(BusError):  # a dead letter has no dead-letter queue: it stays locked
                queue.dead_letter(tag, self.now)
            return
        getattr(queue, how)(tag, self.now)
        with pytest.raises(BusError):  # a token is good once
            queue.complete(tag, self.now)
        self.settled(known, queue, how)

    def settled(self, known: Known, queue: Queue, how: str) -> None:
        """Record in the model that a message was settled."""
        if how == "complete":
            known.where = "gone"
        elif how in ("abandon", "release"):
            self.give_back(known, counted=how == "abandon")
        elif how == "defer" and queue is self.queue:
            known.where = "held"
            self.give_back(known)
        elif how == "defer":  # deferred in the dead-letter queue: received by its number
            known.where = "gone"
            again = queue.receive_deferred([known.sequence], self.now, delete=True)
            assert [m.sequence for m in again] == [known.sequence]
        else:
            known.where = "dead"

    def session_for(self, known: Known) -> Session | None:
        return self.holders[known.session or ""][0] if self.sessions else None

    @precondition(lambda self: self.at("deferred"))
    @rule(data=st.data(), delete=st.booleans(), twice=st.booleans())
    def receive_deferred(self, data: st.DataObject, delete: bool, twice: bool) -> None:
        known = data.draw(st.sampled_from(self.at("deferred")))
        if self.sessions and (known.session or "") not in self.holders:
            return
        numbers = [known.sequence] * (2 if twice else 1)
        got = self.queue.receive_deferred(numbers, self.now, object(), self.session_for(known), delete=delete)
        assert [m.sequence for m in got] == [known.sequence]
        if delete:
            known.where = "gone"
        else:
            known.where, known.tag, known.until = "held", got[0].lock.tag, self.now + LOCK

    @precondition(lambda self: self.at("waiting", "locked", "scheduled", "held"))
    @rule(data=st.data())
    def what_is_not_deferred_cannot_be_had_by_number(self, data: st.DataObject) -> None:
        known = data.draw(st.sampled_from(self.at("waiting", "locked", "scheduled", "held")))
        try:
            self.queue.receive_deferred([known.sequence], self.now)
        except BusError:
            return
        raise AssertionError("a message was had by its number that is not deferred")

    @precondition(lambda self: self.at("scheduled"))
    @rule(data=st.data(), twice=st.booleans())
    def cancel(self, data: st.DataObject, twice: bool) -> None:
        known = data.draw(st.sampled_from(self.at("scheduled")))
        self.queue.cancel_scheduled([known.sequence] * (2 if twice else 1))
        known.where = "gone"

    @rule(seconds=st.sampled_from((0.5, 2.0, 5.0, 10.0, 30.0)))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        # The broker calls `advance` at the requested times only.
        for queue in (self.queue, self.queue.dead_letters):
            assert queue is not None
            if self.effects.advance_at.get(queue.id, NEVER) <= self.now:
                del self.effects.advance_at[queue.id]
                queue.advance(self.now)
        ended = {name for name, (_, _, until) in self.holders.items() if until <= self.now}
        for known in self.at("locked", "held", "dead-locked"):
            of_session = self.sessions and known.where != "dead-locked"
            if ((known.session or "") in ended) if of_session else known.until <= self.now:
                self.give_back(known)
        for name in ended:
            del self.holders[name]
        assert set(self.effects.lost) == ended, "who loses a session is told, and nobody else"
        self.effects.lost.clear()
        for known in sorted(self.at("scheduled"), key=lambda k: (k.due_at, k.sequence)):
            if known.due_at <= self.now:
                known.where, known.sequence = "waiting", self.next_sequence
                known.expires_at = NEVER if known.life is None else self.now + known.life
                self.next_sequence += 1
        for known in self.at("waiting"):
            if known.expires_at <= self.now:
                self.expire(known)

    @rule()
    def crash(self) -> None:
        """Crash: locks end, and each locked message counts one more delivery; everything else stays."""
        assert self.queue.dead_letters is not None
        before = facts(self.queue), facts(self.queue.dead_letters)
        self.effects.advance_at.clear()
        self.queue = rebuild(self.effects, self.settings, self.now)
        assert self.queue.dead_letters is not None
        assert (facts(self.queue), facts(self.queue.dead_letters)) == before
        assert self.queue.next_sequence == self.next_sequence
        for known in self.at("locked", "held", "dead-locked"):
            known.count += 1
            known.tag = b""
            known.where = {"locked": "waiting", "held": "deferred", "dead-locked": "dead"}[known.where]
        self.holders.clear()
        self.wait(0.0)

    # --- what must always hold --------------------------------------------------------------------------------------

    @invariant()
    def every_message_is_in_one_place(self) -> None:
        if not hasattr(self, "queue"):
            return
        dead = self.queue.dead_letters
        assert dead is not None
        alive = {k.sequence: k for k in self.known if k.where not in ("gone", "dead", "dead-locked")}
        buried = {k.sequence: k for k in self.known if k.where in ("dead", "dead-locked")}
        assert list(self.queue.messages) == sorted(alive)
        assert list(dead.messages) == sorted(buried)
        states = {"deferred": DEFERRED, "held": DEFERRED, "scheduled": SCHEDULED}
        for queue, there in ((self.queue, alive), (dead, buried)):
            for sequence, known in there.items():
                message = queue.messages[sequence]
                assert message.state == states.get(known.where, ACTIVE)
                assert (message.lock is not None) == (known.where in ("locked", "held", "dead-locked"))
                assert known.body in self.effects.kept[message.id].payload
                if queue is self.queue:
                    assert message.delivery_count == known.count
                    if known.where != "scheduled":
                        assert message.expires_at == known.expires_at
                else:
                    assert message.expires_at == NEVER
                    assert message.source == "q"
        assert len(self.effects.kept) == len(alive) + len(buried), "nothing is kept that is gone"

    @invariant()
    def counts_and_sizes_are_true(self) -> None:
        if not hasattr(self, "queue"):
            return
        counts = self.queue.counts()
        assert counts.active == len(self.at("waiting", "locked", "deferred", "held"))
        assert counts.scheduled == len(self.at("scheduled"))
        assert counts.dead_letter == len(self.at("dead", "dead-locked"))
        assert self.queue.size_in_bytes == sum(k.message.size for k in self.effects.kept.values())

    @invariant()
    def a_lock_is_held_by_one(self) -> None:
        if not hasattr(self, "queue"):
            return
        tags = [k.tag for k in self.at("locked", "held", "dead-locked")]
        assert len(set(tags)) == len(tags)
        assert sum(m.lock is not None for m in self.queue.messages.values()) == len(self.at("locked", "held"))

    @invariant()
    def a_dead_letter_says_why(self) -> None:
        if not hasattr(self, "queue"):
            return
        assert self.queue.dead_letters is not None
        for message in self.queue.dead_letters.messages.values():
            assert message.payload is not None
            if message.delivery_count >= self.limit:
                assert Parts.of(message.payload).bare


class SessionQueueMachine(QueueMachine):
    """A queue with sessions under random commands: messages are received through the owner of their session."""

    sessions = True

    @rule(name=st.sampled_from((None, "a", "b", "c")))
    def accept(self, name: str | None) -> None:
        owner = object()
        free = [k for k in self.at("waiting") if (k.session or "") not in self.holders]
        if name is not None and name in self.holders:
            try:
                self.queue.accept_session(name, owner, self.now)
            except BusError:
                return
            raise AssertionError("a session was given to two")
        session = self.queue.accept_session(name, owner, self.now)
        if session is None:
            assert name is None
            assert not free
            return
        assert name is None or session.id == name
        if name is None:
            assert session.id in {k.session for k in free}
        self.holders[session.id] = (session, owner, self.now + LOCK)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), limit=st.integers(1, 3), delete=st.booleans())
    def acquire_in_session(self, data: st.DataObject, limit: int, delete: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.holders)))
        self.acquire_from(self.holders[name][0], limit, delete)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """Release a session: its messages are ready at once, and their deliveries do not count."""
        name = data.draw(st.sampled_from(sorted(self.holders)))
        session, owner, _ = self.holders.pop(name)
        self.queue.release_session(session, object(), self.now)  # another owner cannot release it
        self.queue.release_session(session, owner, self.now)
        for known in self.at("locked", "held"):
            if (known.session or "") == name:
                self.give_back(known, counted=False)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), state=st.none() | st.binary(max_size=3))
    def renew_and_set_state(self, data: st.DataObject, state: bytes | None) -> None:
        name = data.draw(st.sampled_from(sorted(self.holders)))
        session, owner, _ = self.holders[name]
        assert self.queue.renew_session(name, self.now) == self.now + LOCK
        self.holders[name] = (session, owner, self.now + LOCK)
        self.queue.set_session_state(name, state, self.now)
        assert self.effects.states.get((0, name)) == state

    @invariant()
    def only_sessions_with_something_are_kept(self) -> None:
        if not hasattr(self, "queue"):
            return
        named = {k.session for k in self.known if k.where not in ("gone", "dead", "dead-locked")}
        stated = {name for number, name in self.effects.states if number == 0}
        assert self.queue.session_ids() == sorted(named | stated)  # type: ignore[type-var]
        assert self.queue.sessions is not None
        assert {s.id for s in self.queue.sessions} == named | stated | set(self.holders)


def _effort(examples: int, steps: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


@pytest.mark.parametrize("machine", [QueueMachine, SessionQueueMachine])
def test_invariants_hold_under_any_commands(machine: type[QueueMachine]) -> None:
    """In any order of commands every invariant of the machine holds."""
    run_state_machine_as_test(machine, settings=_effort(80, 30))


@pytest.mark.campaign
@pytest.mark.parametrize("machine", [QueueMachine, SessionQueueMachine])
def test_invariants_hold_under_long_runs(machine: type[QueueMachine]) -> None:
    """More and longer random runs keep every invariant."""
    run_state_machine_as_test(machine, settings=_effort(1500, 60))
