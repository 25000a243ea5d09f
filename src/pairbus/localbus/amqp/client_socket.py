"""One client's socket: its share of the loop, added latency in both directions, and backpressure."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pairbus.localbus.faults.latency_pipe import LatencyPipe

from .fairness import PIECE_BYTES, SHARE_SECONDS, yield_to_others

if TYPE_CHECKING:
    from .connection import AmqpConnection

#: Above this many buffered bytes towards the client, nothing more is written.
_MAX_OUTPUT_BYTES = 4 * 1024 * 1024
#: Above this many bytes that a latency fault delays on their way here, nothing more is read.
_MAX_DELAYED_INPUT_BYTES = 16 * 1024 * 1024
#: Time that a client has to read the last bytes before the socket is aborted.
_LINGER_SECONDS = 5.0


class ClientSocket:
    """The socket of an AMQP connection; `writable` is False while too much output is buffered."""

    def __init__(self, connection: AmqpConnection) -> None:
        self._connection = connection
        self._server = connection.server
        self._transport: asyncio.Transport | None = None
        self._inbound_delay, self._outbound_delay = LatencyPipe(self._server.loop), LatencyPipe(self._server.loop)
        #: Received bytes that wait for the client's next share.
        self._unprocessed = b""
        self._input_limited = False
        self._transport_full = False
        self._linger: asyncio.TimerHandle | None = None
        self.writable = True

    def open(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=_MAX_OUTPUT_BYTES)

    def lost(self) -> None:
        self._inbound_delay.discard()
        self._outbound_delay.discard()
        if self._linger is not None:
            self._linger.cancel()

    def abort(self) -> None:
        """Close the socket at once; buffered output is lost."""
        if self._transport is not None:
            self._transport.abort()

    def receive(self, data: bytes) -> None:
        """Process received bytes, after the latency of a fault if there is one."""
        self._inbound_delay.send(self._server.faults.connection_latency, len(data), lambda: self._arrive(data))
        if self._inbound_delay.size > _MAX_DELAYED_INPUT_BYTES:
            self._input_limited = True
            self._update_reading()

    def process_rest(self) -> None:
        """Process everything received, without waiting for latency or a share: no more will come."""
        self._inbound_delay.flush()
        data, self._unprocessed = self._unprocessed, b""
        if data and not self._connection.closing:
            self._connection.process(data)

    def _arrive(self, data: bytes) -> None:
        connection = self._connection
        if self._input_limited and self._inbound_delay.size <= _MAX_DELAYED_INPUT_BYTES:
            self._input_limited = False
            self._update_reading()
        if not connection.alive or connection.closing:
            return
        shared = self._server.active_clients.record(connection)
        if self._unprocessed:
            self._unprocessed += data
        elif shared and len(data) > PIECE_BYTES:
            self._unprocessed = data
            self._process_share()
        else:
            connection.served_in_shares = False
            connection.process(data)

    def _process_share(self) -> None:
        """Process received bytes for one share, then let the other clients have theirs."""
        connection = self._connection
        if not connection.alive:
            return
        data, at = self._unprocessed, 0
        connection.served_in_shares = True
        with self._server.group_commit():
            until = self._server.loop.time() + SHARE_SECONDS
            while at < len(data) and not connection.closing:
                connection.process(data[at : at + PIECE_BYTES])
                at += PIECE_BYTES
                if self._server.loop.time() >= until:
                    break
        self._unprocessed = b"" if connection.closing else data[at:]
        if self._unprocessed:
            yield_to_others(self._server, self._process_share)
        self._update_reading()

    def _update_reading(self) -> None:
        """Read from the socket unless the client does not read, has bytes waiting, or has too many delayed."""
        if self._transport is None or self._transport.is_closing():
            return
        if self.writable and not self._unprocessed and self._inbound_delay.size <= _MAX_DELAYED_INPUT_BYTES:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def write(self, data: bytes) -> None:
        """Write bytes, after the latency of a fault if there is one."""
        latency = self._server.faults.connection_latency
        if not latency and not self._outbound_delay.size:
            self._put(data)
            return
        self._outbound_delay.send(latency, len(data), lambda: self._put(data))
        if self._outbound_delay.size > _MAX_OUTPUT_BYTES:
            self._set_unwritable()

    def _put(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)
        self._update_writable()

    def pause(self) -> None:
        """Stop writing: the transport's buffer is full."""
        self._transport_full = True
        self._set_unwritable()

    def resume(self) -> None:
        """Write again: the transport's buffer has room."""
        self._transport_full = False
        self._update_writable()

    def _set_unwritable(self) -> None:
        self.writable = False
        self._update_reading()

    def _update_writable(self) -> None:
        if self.writable or self._transport_full or self._outbound_delay.size > _MAX_OUTPUT_BYTES:
            return
        self.writable = True
        self._update_reading()
        self._connection.on_writable()

    def end_output(self) -> None:
        """Write nothing more; abort the socket if the client does not read the rest in time."""
        self._outbound_delay.send(self._server.faults.connection_latency, 0, self._write_eof)

    def _write_eof(self) -> None:
        transport = self._transport
        if transport is None:
            return
        try:
            # Closing the socket while the client still writes would reset it, and the last bytes would be lost.
            transport.write_eof() if transport.can_write_eof() else transport.close()
        except OSError:
            transport.abort()  # the client has closed the socket first
        self._linger = self._server.loop.call_later(_LINGER_SECONDS, self.abort)
