"""Pins of the SDK's private names: a release of the SDK that changes one of them fails here first."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch, ServiceBusSender
from azure.servicebus._pyamqp import sender as wire
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from pairbus.domain import envelope
from pairbus.domain.amqp import sections
from pairbus.domain.conditions import Meaning
from pairbus.localbus import LocalBus
from pairbus.runtime.administration import administration_client
from pairbus.runtime.redaction import describe_error
from pairbus.sending.parcel import Parcel
from pairbus.sending.sdk import batches, clients, clone_error, connection_patches, encoding
from pairbus.sending.sdk.classification import amqp_condition, meaning_of, status_of
from tests.support.amqp_messages import CORPUS
from tests.support.message_forms import SINGLE, annotated, full, picture
from tests.support.pairing import SLACK, Pair
from tests.support.process_fixtures import key_of, sas_token, with_key
from tests.support.waiting import wait_until

EMULATOR = ";UseDevelopmentEmulator=true"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The payloads that the SDK puts on the wire, as its own link writes them."""
    found: list[bytes] = []

    def record(output: bytearray, payload: Any) -> Any:
        result = encode_payload(output, payload)
        found.append(bytes(output))
        return result

    monkeypatch.setattr(wire, "encode_payload", record)
    return found


@pytest.fixture(scope="module")
def plain(both: tuple[LocalBus, LocalBus]) -> Iterator[tuple[Pair, str, ServiceBusSender]]:
    """A queue, and the SDK's own sender to it, with an open link."""
    pair = Pair(*both)
    pair.heal()
    queue = pair.queue()
    with pair.plain_client(pair.primary) as client, client.get_queue_sender(queue) as sender:
        yield pair, queue, sender


# --- encoding --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", SINGLE)
def test_encoded_is_what_the_sdk_puts_on_the_wire(
    plain: tuple[Pair, str, ServiceBusSender], sent: list[bytes], form: str
) -> None:
    """Byte for byte, for every form in which a single message can be given."""
    _, _, sender = plain
    message = SINGLE[form]()
    before = encoding.encoded(message)
    sender.send_messages(message)
    after = encoding.encoded_members(message)[0]
    assert len(sent) == 1
    assert sent[0] in (before, after)  # a time to live writes the time of day, in seconds


@pytest.mark.parametrize("form", SINGLE)
def test_a_batch_holds_what_encoded_gives(form: str) -> None:
    """The SDK's batch keeps encoded messages where we read them, and they are the ones that `encoded` makes."""
    batch = ServiceBusMessageBatch(max_size_in_bytes=100_000)
    message = SINGLE[form]()
    before = encoding.encoded(message)
    batch.add_message(message)
    after = encoding.encoded(message)
    assert encoding.encoded_members(batch)[0] in (before, after)
    assert len(encoding.members(batch)) == len(batch) == 1


def test_encoding_several_keeps_their_order() -> None:
    """Lists, generators and batches give the messages in the order in which they were given."""
    several = [ServiceBusMessage(str(number)) for number in range(5)]
    expected = [encoding.encoded(each) for each in several]
    batch = ServiceBusMessageBatch(max_size_in_bytes=100_000)
    for each in several:
        batch.add_message(each)
    assert encoding.encoded_members(several) == encoding.encoded_members(batch) == expected
    assert encoding.encoded_members(iter(several)) == expected
    assert encoding.members(several) == several


def test_raw_messages_are_delivered_byte_for_byte(pair: Pair, sent: list[bytes]) -> None:
    """Also what the SDK itself could neither decode nor write again (from other SDKs): each reaches a receiver as a
    message, from its properties on as it was; header and annotations are the broker's to write."""
    queue = pair.queue()
    given = [envelope.park(raw, "orders", name) for name, raw, number in CORPUS if number == 0]
    given.append(encoding.encoded(ServiceBusMessage(b"x" * 70_000, message_id="large")))
    client = clients.service_bus_client(pair.primary_namespace())
    with client, clients.sender_to(client, queue) as sender:
        sender.send_messages(batches.raw_batch(given), timeout=5)
        sender.send_messages(batches.raw_batch(given[:1]), timeout=5)
    assert all(raw in sent[-2] for raw in given)  # the first is the token
    found = pair.payloads(pair.primary, queue, len(given) + 1)
    expected = Counter(map(bare, given)) + Counter([bare(given[0])])
    assert Counter(map(bare, found)) == expected


def bare(message: bytes) -> bytes:
    """A message from its properties on."""
    return b"".join(
        message[part.start : part.end] for part in sections.split(message) if part.code >= sections.PROPERTIES
    )


def test_a_raw_sender_sends_and_fails_as_the_sdks_own(pair: Pair) -> None:
    """Encoded messages arrive as they are, and errors are the SDK's, in time."""
    queue = pair.queue()
    client = clients.service_bus_client(pair.primary_namespace())
    given = [encoding.encoded(ServiceBusMessage(body)) for body in ("1", "2")]
    with client, clients.sender_to(client, queue) as sender:
        sender.send_messages(batches.raw_batch(given), timeout=5)
        assert pair.bodies(queue) == ["1", "2"]
        for condition, kind in (
            ("com.microsoft:server-busy", ServiceBusServerBusyError),
            ("amqp:resource-limit-exceeded", ServiceBusQuotaExceededError),
        ):
            pair.primary.faults.reject(condition, queue, count=1)
            with pytest.raises(kind) as raised:
                sender.send_messages(batches.raw_batch(given), timeout=5)
            assert amqp_condition(raised.value) == condition
            assert connection_patches.is_running(sender)
        pair.primary.faults.lost_accept(queue, count=1)
        begun = time.monotonic()
        with pytest.raises(OperationTimeoutError):
            sender.send_messages(batches.raw_batch(given), timeout=1)
        assert time.monotonic() - begun < 1 + SLACK
    assert not connection_patches.is_running(sender)


@pytest.mark.parametrize("form", SINGLE)
def test_a_message_goes_out_as_the_sdk_would_send_it(
    plain: tuple[Pair, str, ServiceBusSender], sent: list[bytes], form: str
) -> None:
    """A sender of ours puts the same bytes on the wire as the SDK's own."""
    pair, queue, sender = plain
    message = SINGLE[form]()
    with clients.service_bus_client(pair.primary_namespace()) as client, clients.sender_to(client, queue) as ours:
        sent.clear()  # the token
        before = encoding.encoded(message)
        ours.send_messages(message, timeout=5)
        sender.send_messages(message)
    after = encoding.encoded(message)
    ours_raw, theirs_raw = sent[:2]
    assert ours_raw == theirs_raw or {ours_raw, theirs_raw} <= {before, after}  # a time of day, in seconds


def test_what_the_sdk_does_not_send_is_refused_as_it_refuses_it(pair: Pair) -> None:
    """Errors of a single message are of the SDK's classes, in time; on a closed sender, too."""
    queue = pair.queue()
    with clients.service_bus_client(pair.primary_namespace()) as client:
        sender = clients.sender_to(client, queue)
        with sender:
            sender.send_messages(ServiceBusMessage("0"), timeout=5)  # opened by the SDK
            for condition, kind in (
                ("com.microsoft:server-busy", ServiceBusServerBusyError),
                ("amqp:resource-limit-exceeded", ServiceBusQuotaExceededError),
            ):
                pair.primary.faults.reject(condition, queue, count=1)
                with pytest.raises(kind) as raised:
                    sender.send_messages(ServiceBusMessage("refused"), timeout=5)
                assert amqp_condition(raised.value) == condition
                assert connection_patches.is_running(sender)
            unencodable = ServiceBusMessage("x", message_id="m")
            unencodable._raw_amqp_message.properties.group_sequence = "no number"
            with pytest.raises(ServiceBusError, match="Handler failed"):
                sender.send_messages(unencodable, timeout=5)
            sender.send_messages(ServiceBusMessage("1"), timeout=5)
            pair.primary.faults.lost_accept(queue, count=1)
            begun = time.monotonic()
            with pytest.raises(OperationTimeoutError):
                sender.send_messages(ServiceBusMessage("unanswered"), timeout=1)
            assert time.monotonic() - begun < 1 + SLACK
        with pytest.raises(ValueError, match="shutdown"):
            sender.send_messages(ServiceBusMessage("2"), timeout=5)
    assert pair.bodies(queue) == ["0", "1", "unanswered"]


def test_what_a_credential_cannot_import_is_no_outage(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK raises it as it is; also where a token is renewed while a link is open."""
    with (
        clients.service_bus_client(pair.primary_namespace()) as client,
        clients.sender_to(client, pair.queue()) as sender,
    ):

        def renew(*args: Any, **named: Any) -> None:
            raise ImportError("no module named credentials")

        monkeypatch.setattr(sender._handler, "send_message", renew)
        with pytest.raises(ImportError, match="no module named credentials"):
            sender.send_messages(ServiceBusMessage("x"), timeout=5)


def test_a_raw_batch_is_not_refused_for_its_size() -> None:
    """The limit is reckoned by pairbus: what it hands over is sent."""
    batch = batches.raw_batch([b"x" * 3_000_000])
    assert len(batch) == 1
    assert encoding.encoded_members(batch) == [b"x" * 3_000_000]


ENVELOPES: dict[str, Callable[[int], Any]] = {
    "message": lambda number: ServiceBusMessage("a", message_id=f"m{number}", session_id="s", partition_key="s"),
    "dictionary": lambda number: {"body": "a", "message_id": f"m{number}", "session_id": "s", "partition_key": "s"},
    "annotated": lambda number: AmqpAnnotatedMessage(
        data_body=b"a",
        properties=AmqpMessageProperties(message_id=f"m{number}", group_id="s"),
        annotations={b"x-opt-partition-key": "s"},  # type: ignore[dict-item]  # the SDK takes bytes
    ),
    "no session": lambda number: {"body": "a", "message_id": f"m{number}"},
    "bytes": lambda number: AmqpAnnotatedMessage(data_body=b"a", properties=AmqpMessageProperties(message_id=b"m")),
    "nothing": lambda number: AmqpAnnotatedMessage(data_body=b"a"),
}


@pytest.mark.parametrize("done", [0, 1])
@pytest.mark.parametrize("form", ENVELOPES)
def test_what_a_failback_finds_unparked_has_the_sdks_envelope(form: str, done: int) -> None:
    """The batch's own id, session and partition key are those of its first message, as the SDK makes it, whatever the
    form of the messages."""
    given = [ENVELOPES[form](number) for number in range(3)]
    theirs = ServiceBusMessageBatch()
    for each in given[done:]:
        theirs.add_message(each)
    parcel = Parcel("orders", [encoding.unshared(each) for each in given])
    parcel.done = done
    assert parcel.rest == given[done:]
    ours = parcel.unparked()
    assert (ours._message[2], ours._message[3]) == (theirs._message[2], theirs._message[3])
    if form == "message":
        assert ours._message[3].message_id == f"m{done}"
        assert ours._message[2] == {b"x-opt-partition-key": "s"}


def test_overheads_are_never_less_than_the_sdk_reckons() -> None:
    """A chunk that fits by our count fits by the SDK's."""
    for size in (0, 1, 100, 254, 255, 256, 1000, 70_000):
        batch = ServiceBusMessageBatch(max_size_in_bytes=10_000_000)
        lengths = 0
        for _ in range(5):
            message = ServiceBusMessage(b"x" * size, message_id="m" * 128)
            batch.add_message(message)
            lengths += len(encoding.encoded(message)) + batches.MESSAGE_OVERHEAD
        assert batch.size_in_bytes <= lengths + batches.BATCH_OVERHEAD


def test_an_empty_batch_refuses_as_the_sdks_does() -> None:
    """The batch that a caller fills while the primary is down has a limit too."""
    batch = batches.empty_batch(100)
    assert batch.max_size_in_bytes == 100
    with pytest.raises(ServiceBusError):
        batch.add_message(ServiceBusMessage(b"x" * 200))


# --- the caller's objects --------------------------------------------------------------------------------------------


def received(pair: Pair) -> Any:
    queue = pair.queue()
    with pair.plain_client(pair.primary) as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage(b"r", application_properties={"text": "x"}, message_id="m"))
        with client.get_queue_receiver(queue, receive_mode="receiveanddelete") as receiver:
            return receiver.receive_messages(1, max_wait_time=60)[0]


def test_sending_changes_nothing_of_the_callers(pair: Pair) -> None:
    """Every form, single, in a list, and in a batch; accepted by the primary, parked, refused, and only examined."""
    queue = pair.queue()
    bus = pair.pairing()
    sender = bus.get_queue_sender(queue).__enter__()
    forms = {name: make() for name, make in SINGLE.items()}
    forms["received"] = received(pair)
    forms["list"] = [full(), annotated(value_body="v")(), {"body": "x", "application_properties": {"raw": b"bytes"}}]
    batch = sender.create_message_batch()
    batch.add_message(full())
    forms["batch"] = batch
    before = {name: picture(each) for name, each in forms.items()}

    def assert_unchanged(when: str) -> None:
        for name, each in forms.items():
            assert picture(each) == before[name], f"{name} was changed when {when}"

    for name, each in forms.items():
        if name not in ("list", "batch"):
            sender.can_park(each)
    assert_unchanged("examined")
    for each in forms.values():
        sender.send_messages(each)
    assert_unchanged("sent")
    with pair.primary.faults.during("quota", queue):
        for each in forms.values():
            with pytest.raises(ServiceBusError):
                sender.send_messages(each)
    assert_unchanged("refused")
    pair.declare_down(bus, queue)
    for each in forms.values():
        sender.send_messages(each)
    assert_unchanged("parked")
    assert pair.parked() == len(forms) + 2


def test_the_sdk_would_have_changed_them(plain: tuple[Pair, str, ServiceBusSender]) -> None:
    """Why `unshared` is there: the SDK itself turns bytes in the caller's properties into text."""
    _, _, sender = plain
    message = full()
    before = picture(message)
    sender.send_messages(message)
    assert picture(message) != before


@pytest.mark.parametrize("form", SINGLE)
def test_unshared_is_equal_and_shares_no_properties(form: str) -> None:
    """The copy is the same message; it is made only where the SDK would write into it, and leads to the original."""
    message = SINGLE[form]()
    twin = encoding.unshared(message)
    given = message["application_properties"] if isinstance(message, dict) else message.application_properties
    assert twin.application_properties == given
    if any(isinstance(value, bytes) for value in (given or {}).values()):
        assert twin is not message
        assert twin.application_properties is not given
    else:
        assert twin is message
    assert encoding.members(twin)[0] is message
    assert encoding.members([twin, twin])[1] is message


def test_a_dictionary_keeps_the_id_that_it_was_given() -> None:
    """The SDK makes up another each time it reads one: a message that is tried and then parked has one id."""
    given = {"body": "x"}
    assert encoding.encoded(given) != encoding.encoded(given)
    twin = encoding.unshared(given)
    assert encoding.encoded(twin) == encoding.encoded(twin) == encoding.encoded(encoding.unshared(twin))
    assert encoding.members(twin)[0] is given
    assert encoding.unshared({"no": "body"}) == {"no": "body"}


# --- what is billed --------------------------------------------------------------------------------------------------

KB64 = 64 * 1024


@pytest.mark.parametrize(
    ("message", "operations"),
    [
        (ServiceBusMessage(""), 1),
        (ServiceBusMessage(None), 1),
        (ServiceBusMessage(b"x" * KB64), 1),
        (ServiceBusMessage(b"x" * (KB64 + 1)), 2),
        (AmqpAnnotatedMessage(data_body=[b"x" * KB64, b"x" * KB64, b"x"]), 3),
        ([ServiceBusMessage(b"x" * (KB64 + 1)), ServiceBusMessage("y")], 3),
        (AmqpAnnotatedMessage(value_body="x"), 1),
        (AmqpAnnotatedMessage(data_body=b"x" * (KB64 + 1)), 2),
        (encoding.unshared({"body": b"x" * (KB64 + 1)}), 2),
        ([], 0),
    ],
)
def test_what_a_send_is_billed(message: Any, operations: int) -> None:
    """One operation for each message and each further 64 KB of it."""
    assert encoding.billed(message) == operations


def test_a_batch_is_billed_by_its_messages() -> None:
    """Each of them by its size as encoded."""
    batch = ServiceBusMessageBatch(max_size_in_bytes=1_000_000)
    for size in (0, KB64 + 1, 10):
        batch.add_message(ServiceBusMessage(b"x" * size))
    assert encoding.billed(batch) == 4


def test_which_forms_are_many() -> None:
    """As the SDK tells a message from several."""
    many: tuple[Any, ...] = ([], (), iter([]), ServiceBusMessageBatch(), "text")
    assert [encoding.is_many(each) for each in many] == [True] * 5
    assert [encoding.is_many(make()) for make in SINGLE.values()] == [False] * len(SINGLE)


# --- connections -----------------------------------------------------------------------------------------------------


def test_a_connection_has_no_thread_of_its_own_and_can_be_tended(pair: Pair) -> None:
    """`keep_alive=None` is understood; `tend` hears of a detached link and of a connection that is gone."""
    queue = pair.queue()
    before = threading.active_count()
    client = clients.service_bus_client(pair.primary_namespace())
    with client, clients.sender_to(client, queue) as sender:
        assert threading.active_count() == before
        for _ in range(3):
            connection_patches.keep_alive(sender)
        sender.send_messages(ServiceBusMessage("x"), timeout=5)
        pair.primary.faults.unavailable(queue)

        def is_dead() -> bool:
            try:
                connection_patches.keep_alive(sender)
            except Exception:
                return True
            return False

        wait_until(is_dead)


def test_a_send_is_ended_from_outside(pair: Pair) -> None:
    """`shut` wakes whoever waits on the connection, and does nothing to a sender that was never opened."""
    queue = pair.queue()
    client = clients.service_bus_client(pair.primary_namespace())
    with client, clients.sender_to(client, queue) as sender:
        connection_patches.abort(clients.sender_to(client, queue))
        pair.primary.faults.black_hole(queue)
        caught: list[Exception] = []

        def send() -> None:
            try:
                sender.send_messages(ServiceBusMessage("x"), timeout=60)
            except Exception as error:
                caught.append(error)

        waiting = threading.Thread(target=send)
        waiting.start()
        wait_until(lambda: sender._handler._link._pending_deliveries, why="nothing was sent")
        connection_patches.abort(sender)
        waiting.join(10)
        assert not waiting.is_alive()
        assert isinstance(caught[0], ServiceBusError)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(("who", "status"), [("nobody", 404), ("wrong-key", 401)])
def test_why_a_token_was_refused_is_kept(pair: Pair, who: str, status: int, tls: bool) -> None:
    """The status is on the error, which the SDK by itself drops: a configuration fault, over TLS to a port too."""
    there = pair.primary.connection_string
    if who == "wrong-key":
        there = with_key(there, "RootManageSharedAccessKey", "d3Jvbmc=")
    if tls:
        there = there.replace("UseDevelopmentEmulator=true;", "")
    queue = "nobody" if who == "nobody" else pair.queue()
    client = clients.service_bus_client(pair.primary_namespace(there))
    with client, pytest.raises(ServiceBusError) as caught, clients.sender_to(client, queue):
        pass
    assert type(caught.value) is (ServiceBusConnectionError if tls else ServiceBusAuthenticationError)
    assert status_of(caught.value) == status
    assert meaning_of(caught.value) is Meaning.CONFIGURATION


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_every_kind_of_credential_is_taken_by_both_clients(pair: Pair, tls: bool) -> None:
    """A key and a signature; the administration client by itself would send a signature as a bearer token."""
    queue = pair.queue()
    there = pair.primary.tls_connection_string if tls else pair.primary.connection_string
    keyed = pair.primary_namespace(there)
    assert isinstance(keyed.credential, AzureNamedKeyCredential)
    uri = f"sb://127.0.0.1:{pair.primary.port}/"
    token = sas_token(uri, "RootManageSharedAccessKey", key_of(pair.primary.connection_string), time.time() + 600)
    signed = pair.primary_namespace(f"{there.split(';')[0]};SharedAccessSignature={token}" + ("" if tls else EMULATOR))
    assert isinstance(signed.credential, AzureSasCredential)
    for namespace in (keyed, signed):
        with administration_client(namespace, 5) as admin:
            assert admin.get_queue(queue).name == queue
        client = clients.service_bus_client(namespace)
        with client, clients.sender_to(client, queue) as sender:
            sender.send_messages(ServiceBusMessage("x"), timeout=5)
    assert pair.arrived(queue) == 2


# --- errors ----------------------------------------------------------------------------------------------------------


def test_an_error_is_raised_again_with_all_its_facts() -> None:
    """Class, text, condition, status and what is inside; it is another object, so tracebacks do not pile up."""
    inside = OSError("inside")
    for error in (
        ServiceBusError("text", condition=b"amqp:not-found", status_code=404, error=inside),
        OperationTimeoutError(message="late", error=inside),
        ServiceBusConnectionError(message="gone", condition="amqp:socket-error"),
    ):
        twin = clone_error.clone_error(error)
        assert twin is not error
        assert type(twin) is type(error)
        assert str(twin) == str(error)
        assert meaning_of(twin) is meaning_of(error)
        assert twin.inner_exception is error.inner_exception
    odd = UnicodeDecodeError("utf-8", b"", 0, 1, "?")
    twin = clone_error.clone_error(odd)
    assert (type(twin), str(twin)) == (type(odd), str(odd))
    assert twin is not odd


def test_no_secret_is_described() -> None:
    """Keys, signatures and tokens are masked, in one line of bounded length."""
    error = ServiceBusError(
        "SharedAccessSignature sr=x&sig=SECRET1%3D&se=1&skn=SECRET2;SharedAccessKey=SECRET3=;token=SECRET4\nline "
        + "x" * 999
    )
    found = describe_error(error)
    assert "SECRET" not in found
    assert "\n" not in found
    assert len(found) < 600
    assert found.startswith("ServiceBusError: ")
    assert describe_error(ValueError()) == "ValueError"
