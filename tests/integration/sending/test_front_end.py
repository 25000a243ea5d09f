"""A front end that speaks no AMQP in place of the service: an outage."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus import (
    Namespace,
)
from tests.support.pairing import Pair, state_of


@contextmanager
def answering(text: bytes) -> Iterator[int]:
    """A port where something else than Service Bus answers, such as the front end of a service that is down."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(100)
            self.request.sendall(text)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "text",
    [b"HTTP/1.1 503 Service Unavailable\r\n\r\n", b"AMQP\x00\x00\x09\x01", b""],
    ids=["http", "amqp 0.9", "none"],
)
def test_a_front_end_that_speaks_no_amqp_is_an_outage(pair: Pair, text: bytes) -> None:
    """No message has to do with it: sends are parked."""
    with answering(text) as port:
        text_of = f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
        primary = Namespace.from_connection_string(text_of, name=pair.name)
        bus = pair.pairing(primary=primary)
        bus.get_queue_sender("orders").send_messages(ServiceBusMessage("parked"))
        assert state_of(bus, "orders") == "failed over"
    assert pair.parked_bodies() == ["parked"]
