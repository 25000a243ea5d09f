"""TLS handshakes of the SDKs' connections: verified, bounded, and without a socket that is left."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from pairbus.sending.sdk import handshake
from pairbus.sending.sdk.handshake import BoundedHandshake
from tests.support.pairing import SLACK, Pair


@pytest.fixture
def dialled(pair: Pair) -> Iterator[socket.socket]:
    """A connection to the primary that has not said anything yet."""
    with socket.create_connection((pair.primary.host, pair.primary.port)) as sock:
        yield sock


def test_a_peer_that_the_authority_has_signed_is_trusted(pair: Pair, dialled: socket.socket) -> None:
    """The SDK's socket is closed, and the new one waits without a limit, as the SDK expects."""
    with BoundedHandshake(pair.primary.ca_file).wrap_socket(dialled, server_hostname="127.0.0.1") as wrapped:
        assert dialled.fileno() == -1
        assert wrapped.gettimeout() is None
        assert wrapped.version()


def test_a_peer_of_another_authority_is_refused(dialled: socket.socket) -> None:
    """Without a file the usual authorities count, and none of them has signed localbus's certificate."""
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        BoundedHandshake().wrap_socket(dialled, server_hostname="127.0.0.1")


def test_a_certificate_for_another_host_is_refused(pair: Pair, dialled: socket.socket) -> None:
    """The host that was dialled must be in the certificate."""
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        BoundedHandshake(pair.primary.ca_file).wrap_socket(dialled, server_hostname="contoso.example")


def test_a_peer_without_tls_is_refused() -> None:
    """An error of the socket, and the duplicate is closed: the peer sees the end once the SDK has closed its own."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sock:
        peer, _ = server.accept()
        peer.sendall(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")
        with pytest.raises(OSError, match="SSL"):
            BoundedHandshake().wrap_socket(sock, server_hostname="127.0.0.1")
        sock.close()
        with peer, contextlib.suppress(ConnectionResetError):
            peer.settimeout(SLACK)  # no end in that time is a TimeoutError
            while peer.recv(4096):
                pass


def test_a_silent_peer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the time for a handshake, and the SDK's own socket is left for it to close."""
    monkeypatch.setattr(handshake, "HANDSHAKE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sock:
        with pytest.raises(TimeoutError):
            BoundedHandshake().wrap_socket(sock, server_hostname="127.0.0.1")
        assert sock.fileno() != -1


def test_an_authority_that_was_removed_from_the_file_is_not_trusted(
    pair: Pair, dialled: socket.socket, tmp_path: Path
) -> None:
    """The file counts as it is at each handshake: what an earlier one has read is forgotten."""
    file = tmp_path / "ca.pem"
    file.write_bytes(Path(pair.primary.ca_file).read_bytes())
    context = BoundedHandshake(file)
    context.wrap_socket(dialled, server_hostname="127.0.0.1").close()
    file.write_bytes(Path(pair.secondary.ca_file).read_bytes())
    with (
        socket.create_connection((pair.primary.host, pair.primary.port)) as sock,
        pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"),
    ):
        context.wrap_socket(sock, server_hostname="127.0.0.1")
