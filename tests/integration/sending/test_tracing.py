"""With a tracer the caller's messages stay as they are, and parked ones carry their trace as sent ones do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage

from pairbus.domain import envelope
from pairbus.sending.sdk import encoding
from tests.support.message_forms import SINGLE, picture
from tests.support.pairing import Pair, come_back, on_parking
from tests.support.spans import Span, traced


@contextmanager
def tracing() -> Iterator[list[Span]]:
    """The spans that are made of messages, not of sends or of other calls."""
    made: list[Span] = []
    with traced() as spans:
        yield made
    made += [span for span in spans if span.name == "ServiceBus.message"]


def with_properties() -> ServiceBusMessage:
    return ServiceBusMessage("p", message_id="m", application_properties={"k": "v"})


FORMS: dict[str, Callable[[], Any]] = {**SINGLE, "properties": with_properties}
ALIASES = {name.encode() for name in envelope.ALIASES}


def trace(message: Any) -> Any:
    properties = message.application_properties or {}
    assert properties.get(b"Diagnostic-Id") == properties.get(b"traceparent")
    return properties.get(b"traceparent")


def test_a_tracer_changes_nothing_of_the_callers(pair: Pair) -> None:
    """Every form, single and in a list: examined, sent, and parked."""
    queue = pair.queue()
    bus = pair.pairing()
    sender = bus.get_queue_sender(queue)
    forms: dict[str, Any] = {name: make() for name, make in FORMS.items()}
    forms["list"] = [make() for make in FORMS.values()]
    before = {name: picture(each) for name, each in forms.items()}

    def assert_unchanged(when: str) -> None:
        for name, each in forms.items():
            assert picture(each) == before[name], f"{name} was changed when {when}"

    with tracing():
        for each in forms.values():
            sender.can_park(each)
        assert_unchanged("examined")
        for each in forms.values():
            sender.send_messages(each)
        assert_unchanged("sent")
        pair.declare_down(bus, queue)
        for each in forms.values():
            sender.send_messages(each)
        assert_unchanged("parked")


@pytest.mark.parametrize("form", sorted(set(FORMS) - {"full"}))  # that one is scheduled: nobody can take it
def test_a_parked_message_carries_its_trace(pair: Pair, form: str) -> None:
    """As one that was sent does: a span for the message, whose trace is in its properties, beside the caller's own."""
    queue = pair.queue()
    bus = pair.pairing()
    sender = bus.get_queue_sender(queue)
    with tracing() as direct:
        sender.send_messages(FORMS[form]())
    pair.declare_down(bus, queue)
    with tracing() as parked:
        sender.send_messages(FORMS[form]())
        assert [span.name for span in Span.made if span.name == "ServiceBus.send"] == ["ServiceBus.send"]
    assert [span.attributes for span in parked] == [span.attributes for span in direct]
    assert len(parked) == 1
    (sent,) = pair.take(pair.primary, queue)
    (found,) = pair.take_parked()
    assert trace(sent) == direct[0].to_header()["traceparent"].encode()
    assert trace(found) == parked[0].to_header()["traceparent"].encode()
    assert set(found.application_properties) - ALIASES == set(sent.application_properties)


def test_a_list_is_traced_message_by_message(pair: Pair) -> None:
    """Each parked message of a list has a trace of its own; a batch has those that it was filled with."""
    queue = pair.queue()
    bus = pair.pairing()
    sender = bus.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("first"))
    pair.declare_down(bus, queue)
    with tracing() as spans:
        batch = sender.create_message_batch()
        for _ in range(2):
            batch.add_message(ServiceBusMessage("b"))
        sender.send_messages([ServiceBusMessage("a"), with_properties(), AmqpAnnotatedMessage(data_body=b"c")])
        sender.send_messages(batch)
    assert {span.attributes["messaging.destination.name"] for span in spans} == {queue}
    traces = sorted(trace(each) for each in pair.take_parked())
    assert traces == sorted(span.to_header()["traceparent"].encode() for span in spans)
    assert len(set(traces)) == 5


def test_what_a_failback_finds_unparked_can_be_sent_with_a_tracer(pair: Pair) -> None:
    """A list of every form, of which a part is parked: the tracer does not stumble over the rest."""
    queue = pair.queue()
    bus = pair.pairing(backlog_queue_count=1)
    sender = bus.get_queue_sender(queue)
    sender.send_messages(ServiceBusMessage("first"))
    pair.declare_down(bus, queue)
    on_parking(bus, after=lambda path: come_back(bus, queue))
    large = "x" * 200_000
    with tracing():
        sender.send_messages([ServiceBusMessage(large), AmqpAnnotatedMessage(data_body=b"a"), {"body": large}])
    assert pair.parked() + pair.arrived(queue) == 4
    assert pair.parked() < 3


def test_without_a_tracer_no_copy_is_made() -> None:
    """Copies cost time, and are made only where they are needed."""
    message = with_properties()
    assert encoding.unshared(message) is message
    assert encoding.encoded(message, encoding.span_attributes("host", "queue")) == encoding.encoded(message)
