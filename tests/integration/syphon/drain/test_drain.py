"""The rules of a drain, one by one: a real drain between two real localbus processes."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus.management import EntityStatus

from pairbus import OptionError
from pairbus.domain.envelope import SESSION_ID, TIME_TO_LIVE, park
from pairbus.domain.outcome import Head, Rows
from pairbus.syphon.drain import completion, drain_pass
from pairbus.syphon.drain.drain import DrainOptions
from pairbus.syphon.drain.pass_state import PassState
from pairbus.syphon.journal.journal import open_journal
from pairbus.syphon.journal.row_format import SCHEMA
from tests.support.backlog import Backlog, Remembering, encoded, numbered
from tests.support.journal_rows import read_journal
from tests.support.pairing import Pair
from tests.support.process_fixtures import administer
from tests.support.scripted_peer import Peer


def test_messages_are_moved(pair: Pair, backlog: Backlog) -> None:
    """Each is delivered once, in order, has a complete row, and has left the backlog."""
    queue = pair.queue()
    before = int(time.time() * 1000) - 1000
    backlog.park(queue, *numbered(300))
    summary = backlog.drain()
    assert summary.error is None
    assert (summary.received, summary.delivered, summary.held, summary.in_doubt) == (300, 300, 0, 0)
    assert summary.empty
    assert summary.bytes == sum(row["size"] for row in backlog.journal.rows)
    assert summary.operations == 3 * 300
    assert pair.bodies(queue) == [f"m{number}" for number in range(300)]
    assert backlog.depth() == 0
    rows = sorted(backlog.journal.rows, key=lambda row: row["sequence_number"])
    assert [row["message_id"] for row in rows] == [f"m{number}" for number in range(300)]
    assert [row["sequence_number"] for row in rows] == list(range(1, 301))
    assert {(row["outcome"], row["destination"], row["reason"], row["session_id"]) for row in rows} == {
        ("delivered", queue, None, None)
    }
    assert all(before < row["parked_at"] <= row["settled_at"] + 1000 for row in rows)
    assert {row["delivery_count"] for row in rows} == {0}


@pytest.mark.parametrize(("size", "units"), [(100, 1), (60_000, 1), (150_000, 3)])
def test_every_64_kb_of_a_message_is_an_operation(pair: Pair, backlog: Backlog, size: int, units: int) -> None:
    """Received, and sent if it is accepted. A settlement is one operation, whatever the size."""
    queue, ill = pair.queue(), pair.queue()
    backlog.park(queue, encoded(b"x" * size))
    assert backlog.drain().operations == units + units + 1
    backlog.park("no-such-queue", encoded(b"x" * size))
    summary = backlog.drain()
    assert (summary.dead_lettered, summary.operations) == (1, units + 1)
    backlog.park(ill, encoded(b"x" * size))
    pair.primary.faults.busy(ill)
    summary = backlog.drain()
    assert summary.held == 1
    assert summary.operations == summary.received * (units + 1), "each time that it is tried and given back"


def test_the_pause_doubles_while_no_pass_moves_a_message(pair: Pair, backlog: Backlog) -> None:
    """Twice the retry interval, then four times; after the third pass the drain gives up."""
    backlog.park(pair.queue(), *numbered(2))
    primary = pair.primary_namespace()
    pair.primary.kill()
    summary = backlog.drain(primary=primary, retry_interval=0.5)
    assert "cannot be reached" in str(summary.error)
    assert summary.received == 0
    assert summary.seconds >= 3.0


def test_a_row_holds_no_content(pair: Pair, backlog: Backlog, tmp_path: Path) -> None:
    """No body, and no property but those that the ledger names, for any outcome."""
    queue, silent = pair.queue(), pair.queue()
    secret: dict[str, Any] = {
        "subject": "unsaid-1",
        "reply_to": "unsaid-2",
        "user_id": b"unsaid-3",
        "correlation_id": "unsaid-4",
    }
    for number, name in enumerate((queue, "no-such-queue", silent)):
        message = encoded("unsaid-body", id=f"said-{number}", properties={"unsaid-key": "unsaid-value"}, **secret)
        backlog.park(name, message)
    pair.primary.faults.lost_accept(silent)
    journal = open_journal(str(tmp_path), Head(pair.name, 0))
    backlog.drain(journal=journal, answer_timeout=3.0)
    journal.close()
    (path,) = tmp_path.iterdir()
    rows = read_journal(str(path)).table.to_pylist()
    assert {row["outcome"] for row in rows} == {"delivered", "dead-lettered", "in doubt"}
    assert {row["message_id"] for row in rows} == {"said-0", "said-1", "said-2"}
    assert set(rows[0]) == set(SCHEMA.names)
    raw = path.read_bytes()
    assert b"said-0" in raw, "else this shows nothing"
    assert b"unsaid" not in raw


def test_an_empty_queue_is_seen_at_once(backlog: Backlog) -> None:
    """All counts are zero."""
    backlog.make()
    summary = backlog.drain()
    assert (summary.empty, summary.received, summary.operations, summary.error) == (True, 0, 0, None)


def test_a_message_is_settled_only_after_its_row_is_durable(pair: Pair, backlog: Backlog) -> None:
    """While the journal is being written, the messages are still in the backlog, though they have arrived."""
    queue = pair.queue()
    backlog.park(queue, *numbered(5))
    seen: list[tuple[int, int]] = []

    def look(rows: Rows) -> None:
        seen.append((len(rows), backlog.depth()))

    summary = backlog.drain(journal=Remembering(look))
    assert summary.delivered == 5
    written = 0
    for count, depth in seen:
        assert depth >= 5 - written
        written += count
    assert written == 5


def test_without_a_journal_nothing_is_settled(pair: Pair, backlog: Backlog) -> None:
    """A journal that cannot be written ends the drain with its error, and every message stays."""
    queue = pair.queue()
    backlog.park(queue, *numbered(600))

    def full(rows: Rows) -> None:
        raise OSError(28, "No space left on device", "the journal")

    summary = backlog.drain(journal=Remembering(full), window_messages=20)
    assert "No space left on device" in (summary.error or "")
    assert (summary.delivered, summary.dead_lettered) == (0, 0)
    assert summary.in_doubt == summary.received < 600
    assert backlog.depth() == 600


def test_a_journal_that_cannot_be_written_is_found_before_a_message_is_taken(pair: Pair, backlog: Backlog) -> None:
    """Otherwise every drain would deliver a window of messages again that it can neither record nor settle."""
    queue = pair.queue()
    backlog.park(queue, *numbered(50))

    class Full(Remembering):
        def prepare(self) -> None:
            raise OSError(28, "No space left on device", "the journal")

    for _ in range(2):
        summary = backlog.drain(journal=Full())
        assert "nothing is taken from the backlog" in (summary.error or "")
        assert "No space left on device" in (summary.error or "")
        assert (summary.received, summary.operations, summary.empty) == (0, 0, False)
    assert (pair.arrived(queue), backlog.depth()) == (0, 50)


@pytest.mark.parametrize(
    ("fault", "parameters", "said"),
    [
        ("busy", {}, "server-busy"),
        ("quota_exceeded", {}, "resource-limit-exceeded"),
        ("unavailable", {}, "amqp:internal-error"),
        ("reject", {"condition": "com.microsoft:timeout"}, "com.microsoft:timeout"),
        ("reject", {"condition": "amqp:unauthorized-access"}, "amqp:unauthorized-access"),
        ("reject", {"condition": "com.microsoft:session-lock-lost"}, "com.microsoft:session-lock-lost"),
    ],
)
def test_messages_of_a_destination_that_refuses_them_for_now_are_held(
    pair: Pair, backlog: Backlog, fault: str, parameters: dict[str, Any], said: str
) -> None:
    """They stay in the backlog and are listed; messages of other destinations, before and behind them, arrive."""
    well, ill = pair.queue(), pair.queue()
    for number in range(10):
        backlog.park(ill, encoded(f"ill{number}"))
        backlog.park(well, encoded(f"well{number}"))
    getattr(pair.primary.faults, fault)(entity=ill, **parameters)
    summary = backlog.drain()
    # A refused credential is an error: waiting does not help.
    assert ("(or [event_hubs]) is refused" in (summary.error or "")) == (said == "amqp:unauthorized-access")
    assert (summary.delivered, summary.held) == (10, 10)
    assert summary.empty
    (held,) = summary.held_for
    assert (held.destination, held.count) == (ill, 10)
    assert said in held.reason
    assert pair.bodies(well) == [f"well{number}" for number in range(10)]
    assert backlog.depth() == 10
    pair.primary.faults.clear()
    summary = backlog.drain()
    assert (summary.delivered, summary.error) == (10, None)
    assert pair.bodies(ill) == [f"ill{number}" for number in range(10)]


def test_many_full_destinations_starve_no_others(pair: Pair, backlog: Backlog, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than `$cbs` answers at first, all in front: one pass is enough for the queues behind them."""
    names = [f"of-many-{number:03}" for number in range(130)]
    with administer(pair.primary) as admin:
        for name in names:
            admin.create_queue(name)
    for name in names[:110]:
        pair.primary.faults.quota_exceeded(name)
    backlog.put(*(park(encoded("m"), name, "id-of-park", None) for name in names))
    delivered: list[int] = []
    run = drain_pass.DrainPass.run

    async def counted(self: drain_pass.DrainPass) -> PassState:
        state = await run(self)
        delivered.append(self._drain.delivered)
        return state

    monkeypatch.setattr(drain_pass.DrainPass, "run", counted)
    summary = backlog.drain(budget=None, answer_timeout=25.0)
    assert (delivered[0], summary.held, summary.error) == (20, 110, None)
    assert [pair.arrived(name) for name in names[110:]] == [1] * 20


def test_a_destination_that_does_not_exist(pair: Pair, backlog: Backlog) -> None:
    """Its messages are dead-lettered, with a reason and a description that name the destination and the error."""
    backlog.park("no-such-queue", *numbered(3))
    summary = backlog.drain()
    assert (summary.dead_lettered, summary.delivered, summary.held, summary.error) == (3, 0, 0, None)
    found = backlog.dead_letters()
    assert [str(each.message_id) for each in found] == ["m0", "m1", "m2"]
    for each in found:
        assert each.dead_letter_reason == "amqp:not-found"
        assert "no-such-queue" in each.dead_letter_error_description
        assert "404" in each.dead_letter_error_description
    rows = backlog.journal.of("dead-lettered")
    assert len(rows) == 3
    assert all("amqp:not-found" in row["reason"] and row["destination"] == "no-such-queue" for row in rows)
    assert backlog.depth() == 0


@pytest.mark.parametrize("status", [EntityStatus.DISABLED, EntityStatus.SEND_DISABLED])
def test_a_disabled_destination(pair: Pair, backlog: Backlog, status: EntityStatus) -> None:
    """No retry helps: its messages are dead-lettered."""
    queue = pair.queue()
    pair.update_queue(queue, status=status)
    backlog.park(queue, *numbered(2))
    assert backlog.drain().dead_lettered == 2
    assert {each.dead_letter_reason for each in backlog.dead_letters()} == {"com.microsoft:entity-disabled"}


@pytest.mark.parametrize("session", [None, "one"])
def test_one_message_too_large(pair: Pair, backlog: Backlog, session: str | None) -> None:
    """It alone is dead-lettered, with its size; the others of the destination and of its session arrive."""
    queue = pair.queue()
    small, large = encoded("small", session=session), encoded(b"x" * 200_000, id="large", session=session)
    pair.primary.faults.size_limit(100_000, queue)
    backlog.park(queue, small, large, small)
    summary = backlog.drain()
    assert (summary.delivered, summary.dead_lettered) == (2, 1)
    (found,) = backlog.dead_letters()
    assert (found.message_id, found.dead_letter_reason) == ("large", "amqp:link:message-size-exceeded")
    assert queue in found.dead_letter_error_description


def test_a_message_without_an_envelope(pair: Pair, backlog: Backlog) -> None:
    """It is dead-lettered, and the description names the missing x-ms-path."""
    backlog.put(encoded("no envelope", id="bare"))
    summary = backlog.drain()
    assert (summary.dead_lettered, summary.error) == (1, None)
    assert [row["message_id"] for row in backlog.journal.rows] == ["bare"]
    (found,) = backlog.dead_letters()
    assert found.dead_letter_reason == "pairbus:no-envelope"
    assert "x-ms-path" in found.dead_letter_error_description
    (row,) = backlog.journal.rows
    assert row["sequence_number"] == 1
    assert row["destination"] is None


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({"x-ms-path": 7}, "x-ms-path held int 7"),
        ({"x-ms-path": ""}, "x-ms-path held str ''"),
        ({"x-ms-path": "orders", SESSION_ID: 42}, f"{SESSION_ID} held int 42"),
        ({"x-ms-path": "orders", TIME_TO_LIVE: "soon"}, f"{TIME_TO_LIVE} held str 'soon'"),
        ({"x-ms-path": "orders/$management"}, "x-ms-path held 'orders/$management'"),
        ({"x-ms-path": "$cbs"}, "x-ms-path held '$cbs'"),
    ],
)
def test_an_envelope_property_of_the_wrong_type(backlog: Backlog, properties: dict[str, Any], named: str) -> None:
    """The message is dead-lettered; the description names the property and its value."""
    backlog.put(encoded("odd", properties=properties))
    assert backlog.drain().dead_lettered == 1
    (found,) = backlog.dead_letters()
    assert named.replace("int", "long").partition(" held")[0] in found.dead_letter_error_description
    assert named.rpartition(" ")[2] in found.dead_letter_error_description


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("a\nb", "'a\\nb' (3 characters)"),
        ("orders\x00", "'orders\\x00' (7 characters)"),
        ("orders\x85", "'orders\\x85' (7 characters)"),
        ("x" * 513, f"'{'x' * 80}…' (513 characters)"),
        ("/", "'/' (1 characters)"),
        ("orders/$management", "'orders/$management' (18 characters)"),
    ],
    ids=[
        "a line's end",
        "a zero",
        "a control character beyond ASCII",
        "longer than any",
        "nothing",
        "the service's own",
    ],
)
def test_a_path_that_no_entity_can_have(
    pair: Pair, backlog: Backlog, caplog: pytest.LogCaptureFixture, path: str, shown: str
) -> None:
    """The message is dead-lettered at once, and the path is shown escaped on one line."""
    queue = pair.queue()
    backlog.put(encoded("odd", id="odd", properties={"x-ms-path": path}))
    backlog.park(queue, encoded("other"))
    summary = backlog.drain()
    assert (summary.delivered, summary.dead_lettered, summary.held, summary.error) == (1, 1, 0, None)
    (found,) = backlog.dead_letters()
    assert found.dead_letter_reason == "pairbus:bad-path"
    assert f"x-ms-path held {shown}, which no message can be sent to" in found.dead_letter_error_description
    assert all(len(each.getMessage().splitlines()) == 1 for each in caplog.records)


def test_a_queue_that_is_named_like_a_hubs_partition(pair: Pair, backlog: Backlog) -> None:
    """Only event hubs have partitions: on the primary it is an entity like any other, with a token of its own."""
    queue = f"hub-that-is-none-{pair.name}/Partitions/1"
    with administer(pair.primary) as admin:
        admin.create_queue(queue)
    backlog.park(queue, *numbered(3))
    summary = backlog.drain()
    assert (summary.delivered, summary.dead_lettered, summary.error) == (3, 0, None)
    assert pair.bodies(queue) == ["m0", "m1", "m2"]


def test_the_longest_path_is_a_path(pair: Pair, backlog: Backlog) -> None:
    """The service says that there is no such entity, not the drain."""
    backlog.put(encoded("odd", properties={"x-ms-path": "x" * 512}))
    assert backlog.drain().dead_lettered == 1
    (found,) = backlog.dead_letters()
    assert found.dead_letter_reason != "pairbus:bad-path"


@pytest.mark.parametrize("raw", [b"no AMQP", b"\x00\x53\x75\xa0\xff", b"\x00\x53\x99\x40"])
def test_bytes_that_are_no_message(pair: Pair, backlog: Backlog, monkeypatch: pytest.MonkeyPatch, raw: bytes) -> None:
    """The drain goes on, and has them dead-lettered. (localbus itself refuses such bytes.)"""
    monkeypatch.setattr(completion, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(drain_pass, "CONFIRM_SECONDS", 0.2)
    queue = pair.queue()
    with Peer(gives=[raw, park(encoded("other", id="other"), queue, "id")]) as peer:
        backlog.drain(
            secondary=peer.namespace, answer_timeout=5.0, budget=60.0, stop=lambda: len(backlog.journal.rows) >= 2
        )
    (row,) = backlog.journal.of("dead-lettered")
    assert (row["message_id"], row["destination"], row["size"]) == (None, None, len(raw))
    assert row["reason"].startswith("pairbus:no-envelope: ")
    assert pair.bodies(queue) == ["other"]


@pytest.mark.parametrize(("late", "delivered"), [("deliver", 1), ("dead-letter", 0)])
def test_a_message_that_expired_in_the_backlog(pair: Pair, backlog: Backlog, late: str, delivered: int) -> None:
    """Delivered with a new time to live, or dead-lettered, as the option says. Others are never late."""
    queue = pair.queue()
    backlog.park(queue, encoded("late", id="late", ttl=1), encoded("timeless", id="timeless"))
    backlog.park(queue, encoded("in time", id="in time", ttl=3600))
    time.sleep(1.1)  # a life has to end
    summary = backlog.drain(late=late)
    assert (summary.delivered, summary.dead_lettered) == (2 + delivered, 1 - delivered)
    found = backlog.dead_letters()
    if delivered:
        assert found == []
    else:
        assert (found[0].message_id, found[0].dead_letter_reason) == ("late", "pairbus:late")
        assert "1000 ms" in found[0].dead_letter_error_description


def test_a_clock_that_is_ahead_makes_no_message_late(
    pair: Pair, backlog: Backlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lateness goes by the service's clock, as the time of parking does."""
    queue = pair.queue()
    backlog.park(queue, encoded("fresh", id="fresh", ttl=120))
    monkeypatch.setattr(drain_pass, "time", SimpleNamespace(time=lambda: time.time() + 180.0))
    summary = backlog.drain(late="dead-letter")
    assert (summary.delivered, summary.dead_lettered) == (1, 0)


def test_a_long_lock_makes_no_message_late(pair: Pair, backlog: Backlog) -> None:
    """A queue of another owner may lock for five minutes: this machine's clock is not four minutes behind then."""
    queue = pair.queue()
    backlog.make(lock_duration=timedelta(minutes=5))
    backlog.park(queue, encoded("fresh", id="fresh", ttl=120))
    summary = backlog.drain(late="dead-letter")
    assert (summary.delivered, summary.dead_lettered) == (1, 0)


@pytest.mark.parametrize("namespace", ["evil\n2026-01-01 INFO pairbus: all is well", "e" * 5000])
def test_text_from_a_message_is_one_short_line_in_logs_and_rows(
    backlog: Backlog, caplog: pytest.LogCaptureFixture, namespace: str
) -> None:
    """A sender to the backlog cannot write log lines of its own."""
    backlog.park("orders\nto", encoded("m"), namespace=namespace)
    assert backlog.drain().dead_lettered == 1
    (row,) = backlog.journal.rows
    for told in (row["destination"], row["reason"], *caplog.messages):
        assert "\n" not in told
        assert len(told) < 600
    assert row["destination"].startswith("sb://e")
    assert row["destination"].endswith(r"/orders\nto")


def test_an_unknown_namespace(pair: Pair, backlog: Backlog) -> None:
    """The message is dead-lettered, and no connection is made. The primary's own host name is known."""
    queue = pair.queue()
    backlog.park(queue, encoded("stranger"), namespace="evil.servicebus.windows.net")
    backlog.park(queue, encoded("friend"), namespace=pair.primary_namespace().host)
    summary = backlog.drain()
    assert (summary.delivered, summary.dead_lettered) == (1, 1)
    (found,) = backlog.dead_letters()
    assert found.dead_letter_reason == "pairbus:unknown-namespace"
    assert "evil.servicebus.windows.net" in found.dead_letter_error_description
    assert pair.bodies(queue) == ["friend"]


def test_topics_are_destinations_too(pair: Pair, backlog: Backlog) -> None:
    """A topic's subscriptions get the messages that were parked for it."""
    topic, subscription = pair.topic()
    backlog.park(topic, *numbered(5))
    assert backlog.drain().delivered == 5
    assert pair.bodies(subscription) == [f"m{number}" for number in range(5)]


def test_a_message_refused_with_an_unknown_condition(pair: Pair, backlog: Backlog) -> None:
    """It is held at first, and dead-lettered after ten deliveries."""
    queue = pair.queue()
    backlog.park(queue, encoded("poison", id="poison"))
    pair.primary.faults.reject("com.microsoft:session-lock-lost", queue)
    for _ in range(10):
        summary = backlog.drain(budget=5.0)
        assert (summary.held, summary.dead_lettered) == (1, 0)
    assert backlog.drain(budget=5.0).dead_lettered == 1
    (found,) = backlog.dead_letters()
    assert found.dead_letter_reason == "com.microsoft:session-lock-lost"


def test_a_primary_that_cannot_be_reached_costs_no_delivery(pair: Pair, backlog: Backlog) -> None:
    """No message is received that could not be sent; the error names the host."""
    queue = pair.queue()
    backlog.park(queue, *numbered(5))
    pair.primary.kill()
    summary = backlog.drain(budget=2.0)
    assert summary.received == 0
    assert pair.primary_namespace().host in (summary.error or "")
    pair.primary.restart()
    assert backlog.drain().delivered == 5
    assert {row["delivery_count"] for row in backlog.journal.rows} == {0}


def test_a_backlog_that_cannot_be_reached_is_an_error_and_no_exception(pair: Pair, backlog: Backlog) -> None:
    """Nor is a backlog queue that does not exist."""
    pair.secondary.kill()
    assert pair.secondary_namespace().host in (backlog.drain(budget=1.0).error or "")
    pair.secondary.restart()
    assert "amqp:not-found" in (backlog.drain(index=77, budget=1.0).error or "")


def test_the_budget_ends_a_drain_and_loses_nothing(pair: Pair, backlog: Backlog) -> None:
    """Messages that were received are moved, the others stay; the next drain goes on there."""
    queue = pair.queue()
    backlog.park(queue, *numbered(600))
    pair.primary.faults.latency(0.05, queue)
    first = backlog.drain(budget=2.0, window_messages=5)
    assert 0 < first.delivered < 600
    assert (first.received, first.held, first.in_doubt, first.empty) == (first.delivered, 0, 0, False)
    pair.primary.faults.clear()
    assert backlog.drain().delivered == 600 - first.delivered
    assert pair.bodies(queue) == [f"m{number}" for number in range(600)]


def test_the_smallest_rate_moves_a_message(pair: Pair, backlog: Backlog) -> None:
    """With a budget that is shorter than the time between two messages, one is moved."""
    queue = pair.queue()
    backlog.park(queue, *numbered(5))
    summary = backlog.drain(max_rate=0.001, budget=2.0)
    assert (summary.delivered, summary.empty, summary.error) == (1, False, None)
    assert (pair.arrived(queue), backlog.depth()) == (1, 4)


def test_a_stop_ends_a_drain_and_loses_nothing(pair: Pair, backlog: Backlog) -> None:
    """Messages that were received are moved, the others stay."""
    queue = pair.queue()
    backlog.park(queue, *numbered(600))
    pair.primary.faults.latency(0.2, queue)
    summary = backlog.drain(budget=None, window_messages=20, stop=lambda: bool(backlog.journal.rows))
    assert 0 < summary.delivered < 600
    assert (summary.received, summary.in_doubt) == (summary.delivered, 0)
    assert backlog.depth() == 600 - summary.delivered


def test_a_destination_that_opens_no_link(pair: Pair, backlog: Backlog) -> None:
    """Its messages are held, with the reason; they were never sent, so they are not in doubt."""
    queue = pair.queue()
    backlog.park(queue, *numbered(3))
    pair.primary.faults.black_hole(queue)
    summary = backlog.drain(answer_timeout=5.0)
    assert summary.seconds < 30
    assert (summary.delivered, summary.held, summary.in_doubt) == (0, 3, 0)
    assert "the link was not answered within 5 s" in summary.held_for[0].reason
    assert backlog.journal.rows == []
    assert backlog.depth() == 3


def test_a_destination_that_answers_nothing(pair: Pair, backlog: Backlog) -> None:
    """Its messages are held, and in doubt in the journal, as they may have arrived."""
    queue = pair.queue()
    backlog.park(queue, *numbered(3))
    pair.primary.faults.lost_accept(queue)
    summary = backlog.drain(answer_timeout=5.0)
    assert summary.seconds < 30
    assert (summary.delivered, summary.held, summary.in_doubt) == (0, 3, 3)
    assert {row["message_id"] for row in backlog.journal.rows} == {"m0", "m1", "m2"}
    for row in backlog.journal.rows:
        assert (row["outcome"], row["destination"]) == ("in doubt", queue)
        assert f"{queue} did not answer" in row["reason"]
    assert backlog.depth() == 3
    assert pair.bodies(queue) == ["m0", "m1", "m2"]  # they had arrived without an answer


def test_held_messages_are_given_back_at_the_end(pair: Pair, backlog: Backlog) -> None:
    """They can be received again at once: no lock is left behind."""
    queue = pair.queue()
    backlog.park(queue, *numbered(20))
    pair.primary.faults.quota_exceeded(queue)
    assert backlog.drain().held == 20
    assert len(pair.take(pair.secondary, backlog.path(), 20)) == 20


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"window_messages": 0}, "window_messages must be a whole number, 1 or more, not 0"),
        ({"late": "never"}, "late must be one of deliver, dead-letter, not 'never'"),
        ({"budget": 0.0}, r"budget must be more than 0 s \(seconds or timedelta\), not 0.0"),
        ({"max_rate": -1.0}, "max_rate must be a number of messages a second, 0 for no limit, not -1.0"),
        ({"answer_timeout": 0.0}, r"answer_timeout must be more than 0 s \(seconds or timedelta\), not 0.0"),
    ],
)
def test_bad_options_are_refused_by_name(options: dict[str, Any], said: str) -> None:
    """With the value, and the values that would be right."""
    with pytest.raises(OptionError, match=said):
        DrainOptions(**options)


def test_the_dead_letter_queue_is_the_backlogs_own(pair: Pair, backlog: Backlog) -> None:
    """The secondary counts them as dead letters of the backlog queue."""
    backlog.park("no-such-queue", *numbered(4))
    backlog.drain()
    with administer(pair.secondary) as admin:
        found = admin.get_queue_runtime_properties(backlog.path())
    assert (found.active_message_count, found.dead_letter_message_count) == (0, 4)
