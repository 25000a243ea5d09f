"""The life of a localbus process: from the port it binds to the ready line, and from there to an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import json
import os
import random
import resource
import shutil
import signal
import socket
import sqlite3
import sys
import tempfile
import threading
from pathlib import Path

from .amqp.connection import AmqpConnection
from .auth import Authorizer, Key
from .broker.broker import Broker
from .broker.store import SqliteStore, StoreError
from .entities_file import EntitiesFileError, load_entities
from .listener import BACKLOG, Listener
from .options import HOST, STOPPING, Options, UsageError
from .server import Server
from .tls import ForeignCertificate, server_context

FAILED = 1
_FREE_PORTS = range(20000, 32768)
_OPEN_FILES = 10240
#: What the ready line holds, and no such line is longer.
_READY_KEYS = ("name", "host", "port", "connection_string", "ca_file")
_READY_BYTES = 16 * 1024


def serve(options: Options) -> int:
    """Serve until a signal says to stop; the exit code. UsageError if it cannot be started like this."""
    try:
        return asyncio.run(_serve(options))
    except (StoreError, EntitiesFileError) as error:
        raise UsageError(str(error)) from None
    except sqlite3.Error as error:
        print(f"pairbus localbus: the store {options.store} cannot be written ({error})", file=sys.stderr)
        return FAILED


def bind(port: int) -> socket.socket:
    """The listening socket; a port in use is said plainly."""
    if port:
        try:
            return _listen(port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise UsageError(f"port {port} is in use; choose another, or 0 for any free one") from None
            raise UsageError(f"port {port} cannot be used: {error.strerror}") from None
    # Not one of the ports that the system gives to clients: one of them could take it while localbus restarts,
    # and a client that dials a dead port of that range can even meet itself.
    for candidate in random.sample(_FREE_PORTS, 50):
        with contextlib.suppress(OSError):
            return _listen(candidate)
    return _listen(0)


def _listen(port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((HOST, port))
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def connection_string(port: int, key: Key) -> str:
    """One string that fits the data clients and the administration client."""
    return (
        f"Endpoint=sb://{HOST}:{port};SharedAccessKeyName={key.name};SharedAccessKey={key.secret};"
        "UseDevelopmentEmulator=true;"
    )


def _allow_connections() -> None:
    """Use as many file descriptors as we may: shells give 256 or 1024, which a thousand clients would use up."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    with contextlib.suppress(ValueError, OSError):
        if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(options: Options) -> int:
    # Messages are many, live long and are part of no cycle: Python's collector need not look through all of them again
    # and again. What does make cycles is connections: the server has it look when many of them have gone.
    gc.set_threshold(10_000, 20, 1_000_000)
    # First of all: whoever waits for it must not find the one of a process that was killed.
    _forget_ready_file(options)
    _allow_connections()
    sock = bind(options.port)
    port = sock.getsockname()[1]
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(sock.close)
        broker = _load(options, cleanup)  # before the certificates: a store that is refused leaves nothing behind
        folder = _tls_folder(options, cleanup)
        try:
            tls, ca_file = server_context(folder, options.name)
        except ForeignCertificate as error:
            raise UsageError(f"{error}: name another --tls-folder, or remove ca.pem and server.pem") from None
        except OSError as error:
            raise UsageError(f"the certificates cannot be kept in {folder}: {error.strerror}") from None
        hosts = frozenset(("127.0.0.1", "localhost", "::1", f"{options.name}.servicebus.windows.net".lower()))
        authorizer = Authorizer(
            list(options.keys), hosts=hosts, port=port, accept_any_jwt=options.accept_any_jwt, entities=broker
        )
        if options.entities is not None:
            load_entities(options.entities, broker)
        broker.store.commit()
        server = Server(broker, authorizer)
        listener = Listener(sock, tls, lambda: AmqpConnection(server), server.http_protocol)
        try:
            stop = _stop_event()
            _announce(options, port, ca_file, cleanup)
            server.failed.add_done_callback(lambda _: stop.set())
            if options.until_eof:
                loop = asyncio.get_running_loop()
                threading.Thread(target=_read_until_eof, args=(loop, stop), daemon=True).start()
            await stop.wait()
        finally:
            await listener.close()
        if not server.failed.done():
            await server.stop()
        if server.failed.done():
            print(f"pairbus localbus: {server.failed.exception()}", file=sys.stderr)
            return FAILED
    return 0


def _stop_event() -> asyncio.Event:
    """Set by any signal that stops the process: what was interrupted until now is from here on ended in order."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOPPING:
        if signal.getsignal(number) != signal.SIG_IGN:
            loop.add_signal_handler(number, stop.set)
    return stop


def _tls_folder(options: Options, cleanup: contextlib.ExitStack) -> Path:
    """Where the certificates are kept: beside the store, or for as long as the process lives."""
    if options.tls_folder is not None:
        return options.tls_folder
    if options.store is not None:
        return options.store.absolute().parent / (options.store.name + ".tls")
    temporary = Path(tempfile.mkdtemp(prefix="localbus-"))
    cleanup.callback(shutil.rmtree, temporary, ignore_errors=True)
    return temporary


def _load(options: Options, cleanup: contextlib.ExitStack) -> Broker:
    """The broker with what its store holds."""
    if options.store is None:
        return Broker(options.name)
    store = SqliteStore(options.store)
    # The server closes it in good order. If it does not come to that, nothing half-done is written.
    cleanup.callback(store.abandon)
    try:
        return Broker(options.name, store)
    except (sqlite3.Error, LookupError, ValueError, TypeError) as error:
        raise StoreError(f"the store {options.store} is damaged ({error}); name another file") from None


def _read_until_eof(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Stop when the program that holds the other end of our input is gone: nobody else would.

    A thread, because the loop cannot wait for what may be a file as well as a pipe.
    """
    while os.read(sys.stdin.fileno(), 1024):
        pass
    with contextlib.suppress(RuntimeError):  # the loop has ended by itself
        loop.call_soon_threadsafe(stop.set)


def _forget_ready_file(options: Options) -> None:
    path = options.ready_file
    if path is None:
        return
    if path.exists() and not path.is_file():
        raise UsageError(f"--ready-file {path} is there and is no file; name another")
    try:
        if not _is_ready_file(path):
            raise UsageError(f"--ready-file {path} holds something else than a ready line; name another")
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"--ready-file {path}: {error.strerror}") from None


def _is_ready_file(path: Path) -> bool:
    """Whether a file holds nothing but what a localbus has left there, or nothing at all."""
    try:
        with path.open("rb") as file:
            left = file.read(_READY_BYTES + 1)
    except FileNotFoundError:
        return True
    try:
        found = json.loads(left[:_READY_BYTES]) if left.strip() else dict.fromkeys(_READY_KEYS)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and tuple(found) == _READY_KEYS


def _announce(options: Options, port: int, ca_file: Path, cleanup: contextlib.ExitStack) -> None:
    told = options.name, HOST, port, connection_string(port, options.keys[0]), str(ca_file.absolute())
    line = json.dumps(dict(zip(_READY_KEYS, told, strict=True)))
    if options.ready_file is not None:
        # Whole or not there at all: a reader polls for it.
        part = options.ready_file.with_name(options.ready_file.name + ".part")
        cleanup.callback(options.ready_file.unlink, missing_ok=True)
        try:
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as out:
                out.write(line + "\n")  # it holds the key
            part.replace(options.ready_file)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise UsageError(f"--ready-file {options.ready_file}: {error.strerror}") from None
    _print(line)


def _print(line: str) -> None:
    """The ready line on standard output; nobody could find a server whose line is lost."""
    try:
        if sys.stdout is None:  # Python's way of saying that it was closed
            raise OSError(errno.EBADF, "it is closed")
        print(line, flush=True)
    except OSError as error:
        with contextlib.suppress(OSError, AttributeError):
            # What could not be written is still in the buffer: let Python's exit write it to nowhere.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise UsageError(f"the ready line cannot be written to standard output: {error.strerror}") from None
