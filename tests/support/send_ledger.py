"""A ledger of sends: what each call said, and in the end whether that is true of both namespaces.

The law that `check` proves, message by message:

- one whose send returned, or that an error left out of its `messages`, is in the primary or in one backlog queue;
- one that an error names in its `messages` is nowhere;
- none is there twice, and none is there that was never sent;
- each is what the caller gave, in every field and type; a parked one after `restore`.

An answer may get lost when a process is killed, frozen or cut off while a send is under way: `answers_lost` marks such
times. A message of a send that overlapped one may be there twice, or be there although its error names it.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import OperationTimeoutError
from proton import int32

from pairbus import PairedNamespaceClosedError, PairedSender
from pairbus.domain import envelope
from pairbus.domain.amqp import sections as amqp
from pairbus.domain.amqp.codec import decode
from pairbus.domain.amqp.sections import split
from pairbus.domain.amqp.types import Array, Described
from pairbus.localbus import LocalBus
from pairbus.sending.sdk.encoding import encoded_members, members
from tests.support.pairing import Pair, entity_of_sender
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

#: The application property that says which message this is.
KEY = "ledger"
_PEEKED = 200


@dataclass
class Entry:
    """One message that was given to a send."""

    key: str
    entity: str
    original: bytes
    began: float
    ended: float = 0.0
    #: None while the send is under way.
    accepted: bool | None = None
    error: BaseException | None = None


@dataclass(frozen=True)
class Found:
    """One message in one of the namespaces: where, and the bytes that it would be received as."""

    place: str
    payload: bytes


@dataclass
class Ledger:
    """The record of every message of one test."""

    pair: Pair
    entries: dict[str, Entry] = field(default_factory=dict)
    _keys: Iterator[int] = field(default_factory=itertools.count)
    _lost: list[list[float]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # --- messages ------------------------------------------------------------------------------------------

    def key(self) -> str:
        with self._lock:
            return f"m{next(self._keys)}"

    def message(self, body: Any = None, **settings: Any) -> ServiceBusMessage:
        """A new message; its properties vary from one to the next."""
        key = self.key()
        settings["application_properties"] = {
            KEY: key,
            "whole": len(key),
            "text": f"é {key}",
            **settings.get("application_properties", {}),
        }
        settings.setdefault("message_id", f"id-{key}")
        settings.setdefault("subject", key)
        return ServiceBusMessage(key.encode() if body is None else body, **settings)

    def messages(self, count: int, body: Any = None, **settings: Any) -> list[ServiceBusMessage]:
        return [self.message(body, **settings) for _ in range(count)]

    # --- sends ---------------------------------------------------------------------------------------------

    def send(self, sender: PairedSender, message: Any, **options: Any) -> BaseException | None:
        """Send, and note what that said; the error, if there was one."""
        given = message
        if isinstance(message, Iterator):  # seen here, and still an iterator for the sender
            message = list(message)
            given = iter(message)
        made = [Entry(key_of(raw), sender.entity_name, raw, time.monotonic()) for raw in encoded_members(message)]
        with self._lock:
            for entry in made:
                assert entry.key not in self.entries, f"{entry.key} is sent twice"
                self.entries[entry.key] = entry
        error: Exception | None = None
        try:
            sender.send_messages(given, **options)
        except Exception as raised:
            error = raised
        ended = time.monotonic()
        given_keys = {entry.key for entry in made}
        refused = set() if error is None else _named(error, given_keys)
        for entry in made:
            entry.error = error
            entry.ended = ended
            entry.accepted = entry.key not in refused
        return error

    def must_send(self, sender: PairedSender, message: Any, **options: Any) -> None:
        """A send that must return."""
        error = self.send(sender, message, **options)
        assert error is None, repr(error)

    def fail_over(self, sender: PairedSender) -> None:
        """The primary entity is failed over from now on, and one message is parked."""
        entity_of_sender(sender).failed(OperationTimeoutError(message="a failure that counts"), time.monotonic())
        self.must_send(sender, self.message())
        assert entity_of_sender(sender).health.state.value == "failed over"

    @contextmanager
    def answers_lost(self) -> Iterator[None]:
        """While this lasts an answer may get lost on its way: sends under way meanwhile may end up twice."""
        span = [time.monotonic(), float("inf")]
        self._lost.append(span)
        try:
            yield
        finally:
            span[1] = time.monotonic()

    def _excused(self, entry: Entry) -> bool:
        # One that has lasted as long as the shortest time-out may have waited in vain for an answer that came later.
        return entry.ended - entry.began >= 1.0 or any(
            begin <= entry.ended and entry.began <= end for begin, end in self._lost
        )

    # --- what is there -------------------------------------------------------------------------------------

    def found(self) -> dict[str, list[Found]]:
        """Everything in the primary's entities and all backlog queues, by key."""
        places: dict[str, list[Found]] = defaultdict(list)
        entities = sorted({entry.entity for entry in self.entries.values()})
        existing = _existing(self.pair, self.pair.primary)
        for bus, paths in (
            (self.pair.primary, [path for path in entities if path in existing]),
            (self.pair.secondary, self.pair.backlog()),
        ):
            with RawClient(bus) as raw:
                for path in paths:
                    for payload in _peek(raw, path):
                        places[key_of(payload)].append(Found(path, payload))
                    assert not _peek(raw, f"{path}/$DeadLetterQueue"), f"dead letters in {path}"
        return places

    def where(self) -> Counter[str]:
        """Return place -> number of messages there."""
        return Counter(each.place for found in self.found().values() for each in found)

    def check(self, *, but: int | None = None) -> dict[str, list[Found]]:
        """Prove the law; what was found. `but`: at most so many messages may be there twice."""
        self.pair.heal()
        # What lies in a process's socket is taken in before it answers a new connection, or soon after.
        found: dict[str, list[Found]]
        (found,) = wait_until(self._settled, 10, "the namespaces do not come to rest")
        wrong: list[str] = []
        doubled = 0
        for key, entry in self.entries.items():
            places = [each.place for each in found.get(key, [])]
            excused = self._excused(entry)
            assert entry.accepted is not None, f"{key}: its send has not ended"
            if entry.accepted and not places:
                wrong.append(f"{key} is LOST: its send {'raised without it' if entry.error else 'returned'}")
            if entry.accepted and len(places) > 1:
                doubled += 1
                if not excused:
                    wrong.append(f"{key} is there {len(places)} times, in {places}, and no answer was lost")
            if not entry.accepted and places and not excused:
                wrong.append(f"{key} is in {places}, but the error names it: {entry.error!r}")
            wrong += [
                f"{key} in {each.place} {why}" for each in found.get(key, []) for why in self._changes(entry, each)
            ]
        wrong += [f"{key} was never sent" for key in found if key not in self.entries]
        assert not wrong, f"{len(wrong)} of {len(self.entries)}:\n" + "\n".join(wrong[:20])
        assert but is None or doubled <= but, f"{doubled} messages are there more than once"
        return found

    def _settled(self) -> tuple[dict[str, list[Found]]] | None:
        """Return the messages that are there, once they do not change any more."""
        before = self.found()
        time.sleep(0.05)
        after = self.found()
        return (after,) if sum(map(len, before.values())) == sum(map(len, after.values())) else None

    def _changes(self, entry: Entry, found: Found) -> list[str]:
        payload = found.payload
        if found.place != entry.entity:
            restored = envelope.restore(payload, int(time.time() * 1000))
            if restored.path != entry.entity:
                return [f"is for {restored.path}, not {entry.entity}"]
            if restored.message_id is None:
                return ["has no message id"]
            payload = restored.message
        return differences(entry.original, payload)


def _named(error: Exception, given: set[str]) -> set[str]:
    """The keys of the messages that an error names."""
    if isinstance(error, PairedNamespaceClosedError) and not hasattr(error, "messages"):
        return given
    named = members(error.messages)  # type: ignore[attr-defined]
    keys = {key_of(raw) for raw in encoded_members(named)}
    assert keys, f"an error without messages: {error!r}"
    assert len(keys) == len(named), "an error names a message twice"
    assert keys <= given, f"an error names messages that this call did not get: {keys - given}"
    return keys


# --- comparing -------------------------------------------------------------------------------------------------


def differences(original: bytes, found: bytes) -> list[str]:
    """Return the differences from the sent message: every field, value and type, apart from what a broker owns, the
    id of a message that had none, and the times that are set anew with a time to live."""
    sent, got = _parts(original), _parts(found)
    if not _field(sent, amqp.PROPERTIES, amqp.MESSAGE_ID):
        _forget(sent, amqp.MESSAGE_ID)
        _forget(got, amqp.MESSAGE_ID)
    if _field(sent, amqp.HEADER, 2) is not None:
        for index in (amqp.ABSOLUTE_EXPIRY_TIME, amqp.CREATION_TIME):
            _forget(sent, index)
            _forget(got, index)
    return [
        f"differs in section 0x{code:02x}: {sent.get(code)!r} became {got.get(code)!r}"
        for code in sorted({*sent, *got})
        if _typed(_meaning(sent, code)) != _typed(_meaning(got, code))
    ]


def _parts(message: bytes) -> dict[int, Any]:
    """The sections, decoded; bodies as lists of them."""
    parts: dict[int, Any] = {}
    for each in split(message):
        value = decode(message, each.value)[0]
        if each.code in (amqp.DATA, amqp.SEQUENCE):
            parts.setdefault(each.code, []).append(value)
        else:
            parts[each.code] = value
    return parts


def _meaning(parts: dict[int, Any], code: int) -> Any:
    value = parts.get(code)
    if code == amqp.HEADER:  # of which durable, priority and time to live are the sender's
        value = (list(value or []) + 3 * [None])[:3]
        return [bool(value[0]), 4 if value[1] is None else int(value[1]), value[2]]
    if code == amqp.PROPERTIES:
        value = list(value or [])
        while value and value[-1] is None:
            value.pop()
    if code in (amqp.MESSAGE_ANNOTATIONS, amqp.DELIVERY_ANNOTATIONS):
        value = {key: each for key, each in (value or {}).items() if str(key) not in envelope.BROKER_OWNED}
    return value or None


def _typed(value: Any) -> Any:
    """A value with the types of all its parts, so that 1 is not 1.0, true, or a symbol a string."""
    if isinstance(value, dict):
        return {(type(key), key): _typed(each) for key, each in value.items()}
    if isinstance(value, Array):
        return Array, value.code, [_typed(each) for each in value]
    if isinstance(value, list):
        return [_typed(each) for each in value]
    if isinstance(value, Described):
        return Described, _typed(value.descriptor), _typed(value.value)
    return type(value), value


def _field(parts: dict[int, Any], code: int, index: int) -> Any:
    values = parts.get(code) or []
    return values[index] if index < len(values) else None


def _forget(parts: dict[int, Any], index: int) -> None:
    values = list(parts.get(amqp.PROPERTIES) or [])
    if index < len(values):
        values[index] = None
    parts[amqp.PROPERTIES] = values


def key_of(raw: bytes) -> str:
    for each in split(raw):
        if each.code == amqp.APPLICATION_PROPERTIES:
            key = decode(raw, each.value)[0].get(KEY)
            if isinstance(key, str):
                return key
    return f"unknown {raw[:200]!r}"


class Stream:
    """Sends without end on a thread of its own, in all three forms by turns: one message, a list, a batch."""

    def __init__(self, ledger: Ledger, sender: PairedSender, **options: Any) -> None:
        self.ledger = ledger
        self.sender = sender
        self.returned = 0
        self.errors: list[BaseException] = []
        self._options = options
        self._ending = threading.Event()
        self._trouble: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="stream")

    def __enter__(self) -> Stream:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._ending.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "a send has not ended"
        if self._trouble is not None and error is None:
            raise self._trouble

    def _run(self) -> None:
        try:
            for form in itertools.cycle(("one", "list", "batch")):
                error = self.ledger.send(self.sender, self._next(form), **self._options)
                if error is None:
                    self.returned += 1
                else:
                    self.errors.append(error)
                if self._ending.wait(0.01):
                    return
        except BaseException as trouble:  # shown by the test's thread
            self._trouble = trouble

    def _next(self, form: str) -> Any:
        if form == "one":
            return self.ledger.message()
        several = self.ledger.messages(3)
        if form == "list":
            return several
        batch = self.sender.create_message_batch()
        for each in several:
            batch.add_message(each)
        return batch

    def goes_on(self, sends: int = 4) -> None:
        """Wait until so many more sends have returned."""
        wanted = self.returned + sends
        wait_until(lambda: self._trouble or self.returned >= wanted, 30, lambda: f"only {self.returned}, {self.errors}")

    def fails(self, sends: int = 2) -> None:
        """Wait until so many more sends have failed."""
        wanted = len(self.errors) + sends
        wait_until(lambda: self._trouble or len(self.errors) >= wanted, 30, lambda: f"only {self.errors}")


# --- reading ---------------------------------------------------------------------------------------------------


def peek(bus: LocalBus, path: str) -> list[bytes]:
    """All messages of a queue or subscription, scheduled ones too, as bytes; they stay where they are."""
    with RawClient(bus) as raw:
        return _peek(raw, path)


def _peek(raw: RawClient, path: str) -> list[bytes]:
    found: list[bytes] = []
    start = 1
    raw.put_token(path)
    while True:
        status, body, condition = raw.request(
            path, "com.microsoft:peek-message", {"from-sequence-number": start, "message-count": int32(_PEEKED)}
        )
        if status == 204:
            return found
        assert status == 200, (status, condition)
        payloads = [bytes(each["message"]) for each in body["messages"]]
        found += payloads
        start = max(map(_sequence_number, payloads)) + 1


def _sequence_number(payload: bytes) -> int:
    for each in split(payload):
        if each.code == amqp.MESSAGE_ANNOTATIONS:
            return int(decode(payload, each.value)[0]["x-opt-sequence-number"])
    raise AssertionError("a peeked message has no sequence number")


def _existing(pair: Pair, bus: LocalBus) -> set[str]:
    with pair.admin(bus) as admin:
        return {queue.name for queue in admin.list_queues()}
