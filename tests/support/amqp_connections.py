"""Connections to localbus and to scripted peers, for tests of raw AMQP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from azure.core.credentials import AzureNamedKeyCredential

from pairbus import Namespace
from pairbus.syphon.amqp.connection import Connection
from pairbus.syphon.amqp.link import LinkError
from tests.support.scripted_peer import KEY


class LinkEvents:
    """The callbacks of a sender, recorded."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[Any, int, LinkError | None]] = []
        self.closed: list[LinkError] = []

    def on_outcome(self, context: Any, state: int, error: LinkError | None) -> None:
        self.outcomes.append((context, state, error))

    def on_credit(self) -> None: ...

    def on_closed(self, error: LinkError) -> None:
        self.closed.append(error)


@asynccontextmanager
async def connected(namespace: Namespace, **options: Any) -> AsyncIterator[Connection]:
    """Open a connection, and close it at the end."""
    connection = await Connection.open(namespace, timeout=30.0, **options)
    try:
        yield connection
    finally:
        await connection.close()


def plain_namespace(port: int, **options: Any) -> Namespace:
    """Return a namespace on this machine, without TLS and with a key that only a scripted peer accepts."""
    credential = AzureNamedKeyCredential("key", KEY)
    return Namespace(f"127.0.0.1:{port}", credential=credential, name="n", **{"use_tls": False, **options})
