"""Drains and the peers they talk to: tokens, closed links and connections, odd outcomes, and resources left behind."""

from __future__ import annotations

import gc
import itertools
import logging
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from proton import Delivery

from pairbus import Namespace
from pairbus.domain.envelope import park
from pairbus.syphon.amqp import cbs
from pairbus.syphon.amqp.cbs import Token
from pairbus.syphon.drain import completion, drain_pass, lock_tracking
from tests.support.amqp_connections import plain_namespace
from tests.support.backlog import Backlog, Remembering, encoded, numbered
from tests.support.counting import arrivals, dead_letters, park_many
from tests.support.entra_credential import EntraCredential
from tests.support.pairing import Pair
from tests.support.process_fixtures import key_of
from tests.support.scripted_peer import KEY, Peer
from tests.support.waiting import wait_until


def test_a_credential_that_hangs_ends_the_drain_in_time(pair: Pair, backlog: Backlog) -> None:
    """The summary names the credential, and the messages stay in the backlog."""
    wake = threading.Event()

    class Silent(EntraCredential):
        def get_token(self, *scopes: str, **kwargs: Any) -> Any:
            wake.wait(60.0)
            return super().get_token(*scopes, **kwargs)

    backlog.park(pair.queue(), *numbered(3))
    known = pair.secondary_namespace()
    silent = Namespace(known.host, credential=Silent(), name="backup", use_tls=False)
    begun = time.monotonic()
    summary = backlog.drain(secondary=silent, budget=2.0, answer_timeout=4.0)
    lasted = time.monotonic() - begun
    wake.set()
    assert lasted < 8.0
    assert "gave no token" in (summary.error or "")
    assert backlog.depth() == 3


def test_a_drain_with_a_wrong_key_shows_no_secret(
    pair: Pair, backlog: Backlog, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither its summary nor a row nor the log holds one, and the messages stay in the backlog."""
    caplog.set_level(logging.DEBUG)
    queue = pair.queue()
    backlog.park(queue, *numbered(3))
    key = key_of(pair.primary.connection_string)
    wrong = pair.primary_namespace(pair.primary.connection_string.replace(key, KEY))
    summary = backlog.drain(primary=wrong)
    assert (summary.held, summary.dead_lettered) == (3, 0)
    assert f"{queue}: 401" in summary.held_for[0].reason
    texts = f"{summary!r} {backlog.journal.rows!r} {caplog.text}"
    assert KEY not in texts
    assert key not in texts
    assert "sig=" not in texts


@pytest.mark.parametrize(
    ("closed", "condition"),
    [
        ("link", "amqp:internal-error"),  # a link closed with a condition of one message: see test_poison
        *itertools.product(
            ["session", "connection"],
            ["amqp:link:message-size-exceeded", "amqp:not-allowed", "amqp:decode-error", "amqp:internal-error"],
        ),
    ],
)
def test_a_close_because_of_one_message_dead_letters_none(
    pair: Pair, backlog: Backlog, closed: str, condition: str
) -> None:
    """The peer does not say which message it was: all stay in the backlog, and those in flight are in doubt."""

    def close(peer: Peer, delivery: Any, payload: bytes) -> None:
        link = delivery.link
        peer.close({"link": link, "session": link.session, "connection": link.connection}[closed], condition, "so")

    backlog.park("q", *(encoded("x", id=f"m{number}", session=f"s{number % 2}") for number in range(10)))
    with Peer(close, credit=1) as peer:
        summary = backlog.drain(primary=_named(peer.namespace, pair.name), budget=2.0)
    assert (summary.dead_lettered, summary.delivered, summary.held) == (0, 0, 10)
    assert backlog.journal.of("in doubt")
    assert backlog.depth() == 10


@pytest.mark.parametrize("condition", ["amqp:not-found", "amqp:not-allowed", "amqp:invalid-field"])
def test_a_closed_connection_dead_letters_no_message(pair: Pair, backlog: Backlog, condition: str) -> None:
    """With any condition: the messages stay in the backlog."""

    def close(peer: Peer, delivery: Any, payload: bytes) -> None:
        peer.close(delivery.link.connection, condition, "this namespace is away")

    queue = pair.queue()
    backlog.park(queue, *(encoded("x", session=f"s{number}") for number in range(4)))
    with Peer(close, credit=1) as peer:
        summary = backlog.drain(primary=_named(peer.namespace, pair.name), budget=2.0)
    assert (summary.dead_lettered, summary.delivered) == (0, 0)
    assert backlog.drain().delivered == 4
    assert len(arrivals(backlog, queue)) == 4
    assert dead_letters(backlog) == []


@pytest.mark.parametrize(
    ("answer", "text", "is_locked_out"),
    [
        ({"grant": 400}, "400", True),
        ({"grant": b"\x00\x53\x77\xff"}, "cannot be read", False),
        ({"refuse_cbs": ("amqp:not-found", "no such node")}, "no such node", False),
        ({"refuse_cbs": ("amqp:not-allowed", "not now")}, "not now", False),
    ],
    ids=["a token is refused", "an answer is garbage", "there is no such node", "the node may not be used"],
)
def test_a_token_that_is_not_accepted_dead_letters_no_message(
    pair: Pair, backlog: Backlog, answer: dict[str, Any], text: str, is_locked_out: bool
) -> None:
    """Unless the primary says that the entity does not exist, the messages stay in the backlog."""
    queue = pair.queue()
    backlog.park(queue, *(encoded("x", session=f"s{number}") for number in range(4)))
    with Peer(**answer) as peer:
        summary = backlog.drain(primary=_named(peer.namespace, pair.name), budget=20.0)
    assert (summary.held, summary.dead_lettered, summary.delivered) == (4, 0, 0)
    assert text in summary.held_for[0].reason
    assert ("(or [event_hubs]) is refused" in (summary.error or "")) == is_locked_out
    assert backlog.drain().delivered == 4
    assert dead_letters(backlog) == []


def test_a_missing_entity_is_dead_lettered_though_its_token_is_refused(pair: Pair, backlog: Backlog) -> None:
    """The primary may report the missing entity when the token is put."""
    backlog.park("q", encoded("x"), encoded("y"))
    with Peer(grant=404) as peer:
        summary = backlog.drain(primary=_named(peer.namespace, pair.name), budget=20.0)
    assert (summary.dead_lettered, summary.held) == (2, 0)


@pytest.mark.parametrize(
    ("state", "doubted"), [(Delivery.RELEASED, 0), (Delivery.MODIFIED, 0), (None, 3)], ids=["released", "modified", "-"]
)
def test_an_outcome_that_neither_accepts_nor_rejects(pair: Pair, backlog: Backlog, state: Any, doubted: int) -> None:
    """A released or modified message is held. One that was settled without an outcome is in doubt."""

    def settle(peer: Peer, delivery: Any, payload: bytes) -> None:
        peer.settle(delivery, state)

    backlog.park("q", *(encoded("x", id=f"m{number}") for number in range(3)))
    with Peer(settle) as peer:
        summary = backlog.drain(primary=_named(peer.namespace, pair.name), budget=2.0)
    assert (summary.held, summary.delivered, summary.dead_lettered) == (3, 0, 0)
    assert len({row["message_id"] for row in backlog.journal.of("in doubt")}) == doubted
    assert backlog.depth() == 3


def _named(namespace: Namespace, name: str) -> Namespace:
    return Namespace(namespace.host, credential=namespace.credential, name=name, use_tls=False)


def test_a_drain_outlasts_its_tokens(
    pair: Pair, backlog: Backlog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are renewed before they expire; localbus would close the links of an expired one."""
    monkeypatch.setattr(cbs, "LIFETIME_SECONDS", 14.0)
    queue = pair.queue()
    park_many(backlog, queue, numbered(150))
    made: list[Token] = []
    original = cbs.token_for

    def early_expiry(*arguments: Any, **options: Any) -> Token:
        token = original(*arguments, **options)
        made.append(token._replace(expires_at=token.expires_at - 8))  # renewed early: a busy machine may be late
        return made[-1]

    monkeypatch.setattr(cbs, "token_for", early_expiry)
    summary = backlog.drain(max_rate=10.0, budget=60.0)
    assert (summary.delivered, summary.in_doubt, summary.held, summary.error) == (150, 0, 0, None)
    assert summary.seconds > 14.0, "the first tokens lasted for the whole drain: this proves nothing"
    assert len(made) <= 12, "renewed far too often"
    assert caplog.records == []


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_fifty_drains_leave_no_socket_and_no_thread(pair: Pair, backlog: Backlog) -> None:
    """Drains with messages, without messages, and of a primary that does not listen."""
    queue = pair.queue()
    backlog.make()
    for _ in range(3):
        backlog.drain()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # keeps the port without a listener
        unreachable = _named(plain_namespace(silent.getsockname()[1]), pair.name)
        gc.collect()
        files, threads = _open_files(), threading.active_count()
        for number in range(50):
            if number % 5 == 0:
                backlog.park(queue, *numbered(3))
            if number % 10 == 1:
                assert backlog.drain(primary=unreachable, retry_interval=0.001).error is not None
            else:
                assert backlog.drain().error is None
        gc.collect()
        wait_until(lambda: _open_files() <= files and threading.active_count() <= threads)
    assert len(arrivals(backlog, queue)) == 30


def test_a_stop_callback_that_raises_does_not_end_a_drain(
    pair: Pair, backlog: Backlog, caplog: pytest.LogCaptureFixture
) -> None:
    """The drain goes on within its budget, and logs the error."""
    queue = pair.queue()
    backlog.park(queue, *numbered(5))

    def stop() -> bool:
        raise OSError("the stop file is far away")

    journal = Remembering(lambda rows: wait_until(lambda: "far away" in caplog.text))
    assert backlog.drain(stop=stop, journal=journal).delivered == 5
    assert "the stop file is far away" in caplog.text


def test_a_backlog_that_does_not_say_whether_it_is_empty_is_not_called_empty(
    pair: Pair, backlog: Backlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that is silent when asked has not said that nothing is there."""
    monkeypatch.setattr(lock_tracking, "LONGEST_LOCK", 0.5)  # what it may have sent is waited for
    monkeypatch.setattr(completion, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(drain_pass, "CONFIRM_SECONDS", 0.2)
    with Peer() as peer:
        summary = backlog.drain(secondary=peer.namespace, budget=60.0)
    assert not summary.empty
    assert "did not say whether it is empty" in (summary.error or "")


def test_a_service_that_settles_by_itself(pair: Pair, backlog: Backlog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message whose lock the service ends by itself arrives, and is in doubt: no settlement is confirmed."""
    monkeypatch.setattr(completion, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(drain_pass, "CONFIRM_SECONDS", 0.2)
    queue = pair.queue()
    parked = [park(each, queue, "id") for each in numbered(5)]
    pair.primary.faults.latency(0.1, queue)
    with Peer(gives=parked) as peer:
        summary = backlog.drain(secondary=peer.namespace, answer_timeout=5.0, budget=1.5)
    assert (summary.delivered, summary.in_doubt, summary.empty) == (0, 5, False), summary
    assert len(arrivals(backlog, queue)) == 5
