"""Patches of the connections that a sender of either SDK makes, and calls on them that the SDKs do not offer."""

from __future__ import annotations

import contextlib
import socket
from functools import partial
from typing import Any

from azure.servicebus import ServiceBusSender

from .tried_versions import private_names_of

with private_names_of("azure-servicebus"):
    from azure.servicebus._pyamqp.cbs import CBSAuthenticator
    from azure.servicebus._pyamqp.constants import LinkState

    _PATCHED = ServiceBusSender._create_handler, CBSAuthenticator._on_execute_operation_complete

#: Seconds for which an idle connection is listened to: the SDK's own default.
_LISTEN_SECONDS = 0.2


def patch_connection(sender: Any) -> None:
    """Patch a sender's connections to keep the status of a refused token and to close their sockets."""
    create = sender._create_handler

    def create_handler(auth: Any) -> None:
        create(auth)
        handler = sender._handler
        begin, end = handler.open, handler.close

        def open_handler(connection: Any = None) -> None:
            try:
                begin(connection=connection)
            except BaseException:
                with contextlib.suppress(AttributeError, OSError, ValueError):
                    handler._connection._transport.close()  # what has not come to a session the SDK leaves open
                raise
            authenticator = handler._cbs_authenticator
            if authenticator is not None:
                authenticator._on_execute_operation_complete = partial(_keep_token_status, authenticator)

        def close_handler() -> None:
            connection = handler._connection
            try:
                end()
            finally:
                with contextlib.suppress(AttributeError, OSError):
                    connection._transport.sock.close()  # None if the SDK has done so; without TLS's closing alert

        handler.open, handler.close = open_handler, close_handler

    sender._create_handler = create_handler


def _keep_token_status(
    authenticator: Any, result: Any, status: Any, description: Any, *others: Any, **named: Any
) -> None:
    """Note the status of a refused token, without which a missing entity looks like an outage of the service."""
    type(authenticator)._on_execute_operation_complete(authenticator, result, status, description, *others, **named)
    if authenticator._token_status_code is None:
        authenticator._token_status_code = status
        authenticator._token_status_description = description


def is_running(sender: Any) -> bool:
    """Return True if a send would use the open link; if the SDK has closed it, a send would open another, unbounded."""
    return bool(sender._running)


def socket_of(sender: Any) -> Any:
    """Return the socket of a sender's connection; raise AttributeError if it has no connection."""
    return sender._handler._connection._transport.sock


def keep_alive(sender: Any) -> None:
    """Send an idle connection's heartbeat and process what has arrived; raise if the connection or link is dead."""
    handler = sender._handler
    sock = socket_of(sender)
    # Even with wait=False the SDK waits as long as the socket's own time-out, which the caller may have set.
    socket_timeout = sock.gettimeout()
    sock.settimeout(_LISTEN_SECONDS)
    try:
        handler._connection.listen(wait=False)
    finally:
        with contextlib.suppress(OSError):  # closed by what has arrived
            sock.settimeout(socket_timeout)
    if handler._link.get_state().value != LinkState.ATTACHED.value:  # azure-eventhub has an enumeration of its own
        raise ConnectionError("the link is detached")


def abort(sender: Any) -> None:
    """Cut a sender's connection from another thread: a call that waits on it ends with an error."""
    with contextlib.suppress(AttributeError, OSError):
        sock = socket_of(sender)
        if sock is not None:
            # SSLSocket.shutdown() would drop TLS while another thread uses it.
            socket.socket.shutdown(sock, socket.SHUT_RDWR)
