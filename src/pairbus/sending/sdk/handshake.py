"""TLS handshakes that end: bounded in time, and cut together with their connection."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Any

import certifi  # the authorities that the SDKs trust by default; azure-servicebus imports it, too

#: Seconds after which a peer that has not finished the handshake is given up. Callers with less time abort before.
HANDSHAKE_SECONDS = 60.0


class BoundedHandshake:
    """A TLS context for an SDK's option `ssl_context`, with a bounded handshake.

    TLS runs on a duplicate of the socket: the SDK's own is empty after `wrap_socket` and could not be cut meanwhile.
    """

    def __init__(self, ca_file: Path | str | None = None) -> None:
        self._ca_file = certifi.where() if ca_file is None else str(ca_file)

    def wrap_socket(self, sock: socket.socket, *, server_hostname: str | None = None, **options: Any) -> ssl.SSLSocket:
        """Shake hands within `HANDSHAKE_SECONDS`, on a duplicate of the socket, which is closed afterwards."""
        # A new context each time: the file may have been renewed, and an authority that it lacks now is not trusted.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self._ca_file)
        duplicate = sock.dup()
        try:
            wrapped = context.wrap_socket(
                duplicate, server_hostname=server_hostname, do_handshake_on_connect=False, **options
            )
        except BaseException:
            duplicate.close()
            raise
        try:
            wrapped.settimeout(HANDSHAKE_SECONDS)
            wrapped.do_handshake()
            wrapped.settimeout(None)  # as the SDK has left it
        except BaseException:
            wrapped.close()
            raise
        sock.close()
        return wrapped
