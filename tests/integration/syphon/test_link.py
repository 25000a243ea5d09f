"""One AMQP connection: ways in, hosts that misbehave, tokens that end, silence that is noticed, nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from proton import Delivery

from pairbus import Namespace
from pairbus.domain.envelope import park
from pairbus.localbus import LocalBus
from pairbus.localbus.auth import DEFAULT_KEY_NAME
from pairbus.syphon.amqp import cbs as authority
from pairbus.syphon.amqp import connection, tokens
from pairbus.syphon.amqp.connection import Connection
from pairbus.syphon.amqp.link import ACCEPTED, ConnectionLost, LinkError, batch_head
from pairbus.syphon.amqp.tokens import Token, token_for
from pairbus.syphon.drain import completion
from pairbus.syphon.drain import drain_pass as passes
from pairbus.syphon.drain import lock_tracking as owed
from tests.integration.sending.test_credentials import Entra
from tests.support.backlog import Backlog, Remembering, encoded, numbered
from tests.support.counting import arrivals, dead_letters, park_many
from tests.support.pairing import Pair, wait_until
from tests.support.process_fixtures import create, key_of, sas_token
from tests.support.scripted_peer import KEY, Peer


class Heard:
    """What the links of a test tell."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[Any, int, LinkError | None]] = []
        self.closed: list[LinkError] = []

    def on_outcome(self, context: Any, state: int, error: LinkError | None) -> None:
        self.outcomes.append((context, state, error))

    def on_credit(self) -> None: ...

    def on_closed(self, error: LinkError) -> None:
        self.closed.append(error)


async def until(what: Callable[[], Any], seconds: float = 60.0) -> None:
    """Wait for a condition without stopping the loop."""
    ends = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < ends, f"it did not come true within {seconds} s"
        await asyncio.sleep(0.005)


@asynccontextmanager
async def connected(namespace: Namespace, **options: Any) -> AsyncIterator[Connection]:
    made = await Connection.open(namespace, timeout=30.0, **options)
    try:
        yield made
    finally:
        await made.close()


async def send_one(namespace: Namespace, path: str) -> None:
    """Get in, send, hear that it was accepted."""
    heard = Heard()
    async with connected(namespace) as made:
        await made.authorize(path, timeout=30.0)
        sender = await made.sender(path, heard, timeout=30.0)
        await until(lambda: sender.credit)
        sender.send(encoded("hello"), "it")
        await until(lambda: heard.outcomes)
    assert heard.outcomes == [("it", ACCEPTED, None)]


# --- ways in ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bus() -> Iterator[LocalBus]:
    with LocalBus("ways", accept_any_jwt=True) as made:
        create(made, "q")
        yield made


def _named_key(bus: LocalBus) -> Any:
    return AzureNamedKeyCredential(DEFAULT_KEY_NAME, key_of(bus.connection_string))


def _signature(bus: LocalBus) -> Any:
    text = sas_token(f"sb://127.0.0.1:{bus.port}/", DEFAULT_KEY_NAME, key_of(bus.connection_string), time.time() + 600)
    return AzureSasCredential(text)


@pytest.mark.parametrize("use_tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("credential", [_named_key, _signature, lambda _: Entra()], ids=["key", "signature", "entra"])
async def test_every_way_in(bus: LocalBus, use_tls: bool, credential: Callable[[LocalBus], Any]) -> None:
    """A key, a signature, a token of Entra; plain, and over TLS with the authority of localbus."""
    host = f"127.0.0.1:{bus.port}"
    await send_one(Namespace(host, credential=credential(bus), name="n", ca_file=bus.ca_file, use_tls=use_tls), "q")


def test_a_credential_that_does_not_answer_is_not_waited_for(pair: Pair, backlog: Backlog) -> None:
    """A drain keeps to its time, also if a credential's own request hangs; the error says what it was."""
    wake = threading.Event()

    class Silent(Entra):
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
    assert lasted < 20.0
    assert "gave no token" in (summary.error or "")
    assert backlog.depth() == 3


async def test_a_credential_that_hangs_is_asked_once(bus: LocalBus) -> None:
    """Each link that wants a token waits its time, and leaves no call of its own behind with the credential."""
    wake = threading.Event()
    asked: list[str] = []

    class Silent(Entra):
        def get_token(self, *scopes: str, **kwargs: Any) -> Any:
            asked.append(scopes[0])
            wake.wait(60.0)
            return super().get_token(*scopes, **kwargs)

    try:
        async with connected(Namespace(f"127.0.0.1:{bus.port}", credential=Silent(), name="n", use_tls=False)) as made:
            for _ in range(3):
                with pytest.raises(LinkError, match="gave no token"):
                    await made.authorize("q", timeout=0.2)
        assert len(asked) == 1
    finally:
        wake.set()


async def test_an_authority_whose_file_is_gone(bus: LocalBus, tmp_path: Path) -> None:
    """It was there when the namespace was made: a connection that cannot be opened, and no mistake of ours."""
    file = tmp_path / "ca.pem"
    file.write_bytes(Path(bus.ca_file).read_bytes())
    namespace = Namespace(f"127.0.0.1:{bus.port}", credential=_named_key(bus), name="n", ca_file=file)
    file.unlink()
    with pytest.raises(ConnectionLost, match="No such file"):
        await Connection.open(namespace, timeout=30.0)


async def test_an_authority_that_nobody_trusts(bus: LocalBus, tmp_path: Path) -> None:
    """Refused, and the error says that it is the certificate, and whose."""
    namespace = Namespace(f"127.0.0.1:{bus.port}", credential=_named_key(bus), name="n")
    with pytest.raises(ConnectionLost, match=f"127.0.0.1:{bus.port}.*certificate verify failed"):
        await Connection.open(namespace, timeout=30.0)
    with LocalBus("other") as other:
        wrong = Namespace(f"127.0.0.1:{bus.port}", credential=_named_key(bus), name="n", ca_file=other.ca_file)
        with pytest.raises(ConnectionLost, match="certificate verify failed"):
            await Connection.open(wrong, timeout=30.0)


async def test_a_certificate_of_another_host(bus: LocalBus) -> None:
    """The name is checked, not only the authority."""
    named = Namespace(f"localhost.localdomain:{bus.port}", credential=_named_key(bus), name="n", ca_file=bus.ca_file)
    with pytest.raises(ConnectionLost):
        await Connection.open(named, timeout=30.0)


async def test_a_wrong_key_says_nothing_but_what_is_needed(bus: LocalBus, caplog: pytest.LogCaptureFixture) -> None:
    """The entity is named, no secret is: not in the error, not in the log, not in a repr."""
    caplog.set_level(logging.DEBUG)
    wrong = "d3JvbmcgYnV0IHNlY3JldCBhbnl3YXk="
    host = f"127.0.0.1:{bus.port}"
    namespace = Namespace(host, credential=AzureNamedKeyCredential(DEFAULT_KEY_NAME, wrong), name="n", use_tls=False)
    async with connected(namespace) as made:
        with pytest.raises(LinkError) as raised:
            await made.authorize("some/q", timeout=30.0)
        assert raised.value.condition == "com.microsoft:auth-failed"
        assert "some/q" in str(raised.value)
        token = token_for(namespace, "some/q")
        said = [str(raised.value), repr(raised.value), caplog.text, repr(made), repr(namespace), repr(token)]
        signature = token.text.split("sig=")[1].split("&")[0]
        assert not [text for text in said if wrong in text or signature in text]


async def test_a_credential_that_fails_says_nothing_of_its_own(bus: LocalBus) -> None:
    """What it raises may hold a secret: only its kind is told."""

    class Broken:
        def get_token(self, *scopes: str, **kwargs: Any) -> Any:
            raise RuntimeError("the client secret hunter2 was refused")

    namespace = Namespace(f"127.0.0.1:{bus.port}", credential=Broken(), name="n", use_tls=False)
    async with connected(namespace) as made:
        with pytest.raises(LinkError, match="no token could be had for q: RuntimeError") as raised:
            await made.authorize("q", timeout=30.0)
    assert raised.value.condition == "com.microsoft:auth-failed"
    assert "hunter2" not in str(raised.value)


def test_no_secret_in_a_drain_that_is_refused(pair: Pair, backlog: Backlog, caplog: pytest.LogCaptureFixture) -> None:
    """Neither in its summary, nor in rows, nor in the log; messages wait for the right key."""
    caplog.set_level(logging.DEBUG)
    queue = pair.queue()
    backlog.park(queue, *numbered(3))
    key = key_of(pair.primary.connection_string)
    wrong = pair.primary_namespace(pair.primary.connection_string.replace(key, KEY))
    summary = backlog.drain(primary=wrong)
    assert (summary.held, summary.dead_lettered) == (3, 0)
    assert f"{queue}: 401" in summary.held_for[0].reason
    said = f"{summary!r} {backlog.journal.rows!r} {caplog.text}"
    assert KEY not in said
    assert key not in said
    assert "sig=" not in said


# --- hosts that misbehave --------------------------------------------------------------------------------------------


def _namespace(port: int, **options: Any) -> Namespace:
    credential = AzureNamedKeyCredential("key", KEY)
    return Namespace(f"127.0.0.1:{port}", credential=credential, name="n", **{"use_tls": False, **options})


async def test_nobody_listens() -> None:
    """Refused at once, naming the host."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ConnectionLost, match=f"127.0.0.1:{port}"):
        await Connection.open(_namespace(port), timeout=30.0)


@contextmanager
def listener(says: bytes | None) -> Iterator[int]:
    """A host that accepts connections; says something to each, if anything, and then nothing more."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        over, kept = threading.Event(), list[socket.socket]()

        def serve() -> None:
            while not over.is_set():
                try:
                    client, _ = server.accept()
                except TimeoutError:
                    continue
                kept.append(client)
                if says is not None:
                    client.sendall(says)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            over.set()
            thread.join()
            for client in kept:
                client.close()


@pytest.mark.parametrize("use_tls", [False, True])
async def test_a_host_that_accepts_and_says_nothing(use_tls: bool) -> None:
    """Given up within the time that was given."""
    with listener(None) as port:
        begun = time.monotonic()
        with pytest.raises(ConnectionLost, match=r"no answer within 0\.3 s"):
            await Connection.open(_namespace(port, use_tls=use_tls), timeout=0.3)
        assert time.monotonic() - begun < 10


@pytest.mark.parametrize("garbage", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00" * 64, b"AMQP\x00\x00\x09\x09" * 4])
@pytest.mark.parametrize("use_tls", [False, True])
async def test_a_host_that_answers_garbage(garbage: bytes, use_tls: bool) -> None:
    """An error that names the host, and no hang."""
    with listener(garbage) as port, pytest.raises(ConnectionLost, match=f"127.0.0.1:{port}"):
        await Connection.open(_namespace(port, use_tls=use_tls), timeout=3.0)


async def test_the_link_is_refused() -> None:
    """With the condition that the service gave."""
    with Peer(refuse=("amqp:not-found", "no such thing")) as peer:
        async with connected(peer.namespace) as made:
            with pytest.raises(LinkError, match="no such thing") as raised:
                await made.sender("q", Heard(), timeout=30.0)
    assert raised.value.condition == "amqp:not-found"


@pytest.mark.parametrize("what", ["link", "session", "connection"])
async def test_a_peer_that_closes_with_a_condition(what: str) -> None:
    """Who sent is told once, with the condition; a session or connection that is closed ends the connection."""

    def close(peer: Peer, delivery: Any, payload: bytes) -> None:
        link = delivery.link
        peer.close({"link": link, "session": link.session, "connection": link.connection}[what], "amqp:oh:no", "so")

    heard = Heard()
    with Peer(close) as peer:
        async with connected(peer.namespace) as made:
            sender = await made.sender("q", heard, timeout=30.0)
            await until(lambda: sender.credit)
            sender.send(b"\x00\x53\x75\xa0\x00", "it")
            await until(lambda: heard.closed)
            assert sender.abandon_unanswered() == ["it"]
            assert sender.credit == 0
            assert (made.lost is None) == (what == "link")
            if what != "link":
                with pytest.raises(ConnectionLost):
                    await made.sender("q", Heard(), timeout=30.0)
    (error,) = heard.closed
    assert error.condition == "amqp:oh:no"
    assert "so" in (error.description or "")
    assert heard.outcomes == []


# --- batches on the wire ---------------------------------------------------------------------------------------------


async def test_a_batch_that_the_window_holds_back_is_a_batch_all_the_same() -> None:
    """Through a window of two small frames, behind and before other messages: each frame of a batch has its number,
    no other frame has, and every byte comes."""
    heard = Heard()
    singles = [bytes((65 + number,)) * 3000 for number in range(4)]
    messages = [bytes((97 + number % 26,)) * 2000 for number in range(40)]
    with Peer(max_frame=4096, capacity=8192) as peer:
        async with connected(peer.namespace) as made:
            sender = await made.sender("q", heard, timeout=30.0)
            await until(lambda: sender.credit)
            for number in range(2):
                sender.send(singles[2 * number], "one")
                sender.send_batch(batch_head("s"), messages, "batch")
                sender.send(singles[2 * number + 1], "one")
            await until(lambda: len(heard.outcomes) == 6)
        assert {state for _, state, _ in heard.outcomes} == {ACCEPTED}
        batch = batch_head("s") + b"".join(b"\x00\x53\x75\xb0" + len(m).to_bytes(4, "big") + m for m in messages)
        assert peer.payloads == [singles[0], batch, singles[1], singles[2], batch, singles[3]]
        formats: dict[bytes, set[int]] = {}
        for tag, number in peer.transfers:
            if tag:
                formats.setdefault(tag, set()).add(number)
        assert sorted(map(sorted, formats.values())) == [[0]] * 4 + [[0x80013700]] * 2
        assert len(peer.transfers) > 40


# --- what an answer means to a drain ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "condition"),
    [
        ("link", "amqp:internal-error"),  # one that is a message's own: see test_poison
        *itertools.product(
            ["session", "connection"],
            ["amqp:link:message-size-exceeded", "amqp:not-allowed", "amqp:decode-error", "amqp:internal-error"],
        ),
    ],
)
def test_an_end_because_of_one_message_is_not_the_end_of_all(
    pair: Pair, backlog: Backlog, what: str, condition: str
) -> None:
    """Nobody says which message it was: all wait in the backlog, what was sent is in doubt, none is dead-lettered."""

    def close(peer: Peer, delivery: Any, payload: bytes) -> None:
        link = delivery.link
        peer.close({"link": link, "session": link.session, "connection": link.connection}[what], condition, "so")

    backlog.park("q", *(encoded("x", id=f"m{number}", session=f"s{number % 2}") for number in range(10)))
    with Peer(close, credit=1) as peer:
        summary = backlog.drain(primary=_like(peer.namespace, pair.name), budget=2.0)
    assert (summary.dead_lettered, summary.delivered, summary.held) == (0, 0, 10)
    assert backlog.journal.of("in doubt")
    assert backlog.depth() == 10


@pytest.mark.parametrize("condition", ["amqp:not-found", "amqp:not-allowed", "amqp:invalid-field"])
def test_a_connection_that_is_refused_is_no_messages_fault(pair: Pair, backlog: Backlog, condition: str) -> None:
    """Whatever its condition: the messages wait."""

    def close(peer: Peer, delivery: Any, payload: bytes) -> None:
        peer.close(delivery.link.connection, condition, "this namespace is away")

    queue = pair.queue()
    backlog.park(queue, *(encoded("x", session=f"s{number}") for number in range(4)))
    with Peer(close, credit=1) as peer:
        summary = backlog.drain(primary=_like(peer.namespace, pair.name), budget=2.0)
    assert (summary.dead_lettered, summary.delivered) == (0, 0)
    assert backlog.drain().delivered == 4
    assert len(arrivals(backlog, queue)) == 4
    assert dead_letters(backlog) == []


@pytest.mark.parametrize(
    ("trouble", "said", "is_locked_out"),
    [
        ({"grant": 400}, "400", True),
        ({"grant": b"\x00\x53\x77\xff"}, "cannot be read", False),
        ({"refuse_cbs": ("amqp:not-found", "no such node")}, "no such node", False),
        ({"refuse_cbs": ("amqp:not-allowed", "not now")}, "not now", False),
    ],
    ids=["a token is refused", "an answer is garbage", "there is no such node", "the node may not be used"],
)
def test_trouble_with_tokens_is_no_messages_fault(
    pair: Pair, backlog: Backlog, trouble: dict[str, Any], said: str, is_locked_out: bool
) -> None:
    """Whatever a primary says instead of taking a token: the messages wait, unless it says that there is no entity."""
    queue = pair.queue()
    backlog.park(queue, *(encoded("x", session=f"s{number}") for number in range(4)))
    with Peer(**trouble) as peer:
        summary = backlog.drain(primary=_like(peer.namespace, pair.name), budget=20.0)
    assert (summary.held, summary.dead_lettered, summary.delivered) == (4, 0, 0)
    assert said in summary.held_for[0].reason
    assert ("not let in" in (summary.error or "")) == is_locked_out
    assert backlog.drain().delivered == 4
    assert dead_letters(backlog) == []


def test_without_a_token_for_what_is_not_there(pair: Pair, backlog: Backlog) -> None:
    """That there is no such entity may be said where a token is put for it: its messages are dead-lettered."""
    backlog.park("q", encoded("x"), encoded("y"))
    with Peer(grant=404) as peer:
        summary = backlog.drain(primary=_like(peer.namespace, pair.name), budget=20.0)
    assert (summary.dead_lettered, summary.held) == (2, 0)


@pytest.mark.parametrize(
    ("state", "doubted"), [(Delivery.RELEASED, 0), (Delivery.MODIFIED, 0), (None, 3)], ids=["released", "modified", "-"]
)
def test_an_outcome_that_is_neither_yes_nor_no(pair: Pair, backlog: Backlog, state: Any, doubted: int) -> None:
    """Released or modified: not taken, so held. Settled without a word: nobody knows, so in doubt."""

    def settle(peer: Peer, delivery: Any, payload: bytes) -> None:
        peer.settle(delivery, state)

    backlog.park("q", *(encoded("x", id=f"m{number}") for number in range(3)))
    with Peer(settle) as peer:
        summary = backlog.drain(primary=_like(peer.namespace, pair.name), budget=2.0)
    assert (summary.held, summary.delivered, summary.dead_lettered) == (3, 0, 0)
    assert len({row["message_id"] for row in backlog.journal.of("in doubt")}) == doubted
    assert backlog.depth() == 3


def _like(namespace: Namespace, name: str) -> Namespace:
    return Namespace(namespace.host, credential=namespace.credential, name=name, use_tls=False)


# --- time ------------------------------------------------------------------------------------------------------------


def test_a_token_is_renewed_before_it_ends(
    pair: Pair, backlog: Backlog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A drain that lasts longer than its tokens goes on; localbus closes links whose token has ended."""
    monkeypatch.setattr(tokens, "LIFETIME_SECONDS", 14.0)
    queue = pair.queue()
    park_many(backlog, queue, numbered(150))
    made: list[Token] = []
    signed = tokens._signed

    def counted(*arguments: Any) -> Token:
        token = signed(*arguments)
        made.append(token._replace(ends_at=token.ends_at - 8))  # it has more time than it knows: machines are busy
        return made[-1]

    monkeypatch.setattr(tokens, "_signed", counted)
    summary = backlog.drain(max_rate=10.0, budget=60.0)
    assert (summary.delivered, summary.in_doubt, summary.held, summary.error) == (150, 0, 0, None)
    assert summary.seconds > 14.0, "the first tokens were good to the end: this shows nothing"
    assert len(made) <= 12, "renewed when it is needed, not all the time"
    assert caplog.records == []


def test_a_token_ends_when_it_says() -> None:
    """The service goes by the whole seconds in the token, so renewal does, too."""
    namespace = Namespace("contoso.servicebus.windows.net", credential=AzureNamedKeyCredential("name", "a2V5"))
    token = tokens.token_for(namespace, "q")
    assert f"&se={token.ends_at:.0f}&" in token.text
    assert token.ends_at == int(token.ends_at)


async def test_localbus_ends_links_whose_token_has_ended(bus: LocalBus) -> None:
    """So that the test above shows something."""
    heard = Heard()
    text = sas_token(f"sb://127.0.0.1:{bus.port}/q", DEFAULT_KEY_NAME, key_of(bus.connection_string), time.time() + 8)
    namespace = _namespace(bus.port)
    object.__setattr__(namespace, "credential", AzureSasCredential(text))
    async with connected(namespace) as made:
        await made.authorize("q", timeout=30.0)
        await made.sender("q", heard, timeout=30.0)
        await until(lambda: heard.closed)
    assert heard.closed[0].condition == "amqp:unauthorized-access"


async def test_a_token_that_has_ended_by_our_clock_is_not_put_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A clock that runs ahead of the service's makes no storm of tokens."""
    asked: list[str] = []

    def ended(namespace: Namespace, path: str, *, event_hubs: bool = False) -> Token:
        asked.append(path)
        return Token("text", "jwt", time.time() - 100)

    monkeypatch.setattr(authority, "token_for", ended)
    with Peer() as peer:
        async with connected(peer.namespace) as made:
            await made.authorize("q", timeout=30.0)
            await until(lambda: len(asked) >= 2)
            assert len(asked) <= 3


async def test_a_renewal_that_fails_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With a warning that names the entity and no secret; the connection goes on."""
    monkeypatch.setattr(authority, "_AGAIN_SECONDS", 0.05)
    asked: list[str] = []

    def fails_at_first(namespace: Namespace, path: str, *, event_hubs: bool = False) -> Token:
        asked.append(path)
        if len(asked) == 2:
            raise RuntimeError("hunter2")
        return Token("text", "jwt", time.time() + (0.5 if len(asked) == 1 else 100))

    monkeypatch.setattr(authority, "token_for", fails_at_first)
    with Peer() as peer:
        async with connected(peer.namespace) as made:
            await made.authorize("q", timeout=30.0)
            await until(lambda: len(asked) == 3)
            assert made.lost is None
    assert "the token for q could not be renewed" in caplog.text
    assert "hunter2" not in caplog.text


async def test_a_connection_of_which_nothing_is_heard_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half open: the host is frozen, and its links are told within the time that a silence may last."""
    monkeypatch.setattr(connection, "IDLE_SECONDS", 5.0)
    heard = Heard()
    with LocalBus("frozen") as frozen:
        create(frozen, "q")
        made = await Connection.open(Namespace.from_connection_string(frozen.connection_string, name="n"), timeout=30.0)
        await made.authorize("q", timeout=30.0)
        await made.sender("q", heard, timeout=30.0)
        frozen.pause()
        await until(lambda: heard.closed)
        frozen.resume()
        assert isinstance(heard.closed[0], ConnectionLost)
        assert made.lost is not None
        await made.close()


async def test_an_idle_connection_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent and nothing received: both sides say so often enough that neither takes the other for gone."""
    monkeypatch.setattr(connection, "IDLE_SECONDS", 5.0)
    heard = Heard()
    with Peer(idle=5.0) as peer:
        async with connected(peer.namespace) as made:
            sender = await made.sender("q", heard, timeout=30.0)
            await asyncio.sleep(6.5)  # longer than a silence
            assert (made.lost, heard.closed, peer.connections) == (None, [], 1)
            sender.send(encoded("still here"), "it")
            await until(lambda: heard.outcomes)


async def test_what_is_asked_after_the_end_is_refused_at_once(bus: LocalBus) -> None:
    """A lost connection raises why, wherever it is used."""
    made = await Connection.open(Namespace.from_connection_string(bus.connection_string, name="n"), timeout=30.0)
    await made.close()
    await made.close()
    for ask in (made.sender("q", Heard()), made.authorize("q")):
        with pytest.raises(ConnectionLost):
            await ask


# --- nothing is left behind ------------------------------------------------------------------------------------------


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_fifty_drains_leave_nothing_behind(pair: Pair, backlog: Backlog) -> None:
    """Neither sockets nor threads, whether there was something to drain, nothing, or nobody to reach."""
    queue = pair.queue()
    backlog.make()
    for _ in range(3):
        backlog.drain()
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))  # nobody else can listen there meanwhile
        nobody = _like(_namespace(unheard.getsockname()[1]), pair.name)
        gc.collect()
        files, threads = _open_files(), threading.active_count()
        for number in range(50):
            if number % 5 == 0:
                backlog.park(queue, *numbered(3))
            if number % 10 == 1:
                assert backlog.drain(primary=nobody, retry_interval=0.001).error is not None
            else:
                assert backlog.drain().error is None
        gc.collect()
        wait_until(lambda: _open_files() <= files and threading.active_count() <= threads)
    assert len(arrivals(backlog, queue)) == 30


def test_a_question_that_cannot_be_answered_does_not_end_a_drain(
    pair: Pair, backlog: Backlog, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever says when to stop may fail to say so: the drain goes on, within its budget, and the log says it."""
    queue = pair.queue()
    backlog.park(queue, *numbered(5))

    def stop() -> bool:
        raise OSError("the stop file is far away")

    heard = Remembering(lambda rows: wait_until(lambda: "far away" in caplog.text))
    assert backlog.drain(stop=stop, journal=heard).delivered == 5
    assert "the stop file is far away" in caplog.text


def test_a_backlog_that_does_not_say_whether_it_is_empty_is_not_called_empty(
    pair: Pair, backlog: Backlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that is silent when asked has not said that nothing is there."""
    monkeypatch.setattr(owed, "LONGEST_LOCK", 0.5)  # what it may have sent is waited for
    monkeypatch.setattr(completion, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(passes, "_FAREWELL_SECONDS", 0.2)
    with Peer() as peer:
        summary = backlog.drain(secondary=peer.namespace, budget=60.0)
    assert not summary.empty
    assert "did not say whether it is empty" in (summary.error or "")


def test_a_service_that_settles_by_itself(pair: Pair, backlog: Backlog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message whose lock the service ends without being asked arrives, and is in doubt: nobody confirms the rest."""
    monkeypatch.setattr(completion, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(passes, "_FAREWELL_SECONDS", 0.2)
    queue = pair.queue()
    parked = [park(each, queue, "id") for each in numbered(5)]
    pair.primary.faults.latency(0.1, queue)
    with Peer(gives=parked) as peer:
        summary = backlog.drain(secondary=peer.namespace, answer_timeout=5.0, budget=1.5)
    assert (summary.delivered, summary.in_doubt, summary.empty) == (0, 5, False), summary
    assert len(arrivals(backlog, queue)) == 5
