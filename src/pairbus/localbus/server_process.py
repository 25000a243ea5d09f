"""A localbus process: binding the port, loading the store, announcing the ready line, serving and stopping."""

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
from .options import HOST, STOP_SIGNALS, Options, UsageError
from .server import Server
from .tls import ForeignCertificate, server_context

FAILED = 1
_FREE_PORTS = range(20000, 32768)
_OPEN_FILES = 10240
#: The keys of the ready line, and its maximum size.
_READY_KEYS = ("name", "host", "port", "connection_string", "ca_file")
_READY_BYTES = 16 * 1024


def serve(options: Options) -> int:
    """Serve until a signal stops the process; return the exit code, or raise `UsageError` if the start fails."""
    try:
        return asyncio.run(_serve(options))
    except (StoreError, EntitiesFileError) as error:
        raise UsageError(str(error)) from None
    except sqlite3.Error as error:
        print(f"pairbus localbus: the store {options.store} cannot be written ({error})", file=sys.stderr)
        return FAILED


def bind(port: int) -> socket.socket:
    """Return a listening socket; raise `UsageError` if the port cannot be used. Port 0 takes a free one."""
    if port:
        try:
            return _listen(port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise UsageError(f"port {port} is in use; choose another, or 0 for any free one") from None
            raise UsageError(f"port {port} cannot be used: {error.strerror}") from None
    # Ephemeral ports are avoided: a client's connection could take the port while localbus restarts, and a client
    # that connects to an unused port of that range can even connect to itself.
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
    return (
        f"Endpoint=sb://{HOST}:{port};SharedAccessKeyName={key.name};SharedAccessKey={key.secret};"
        "UseDevelopmentEmulator=true;"
    )


def _allow_connections() -> None:
    """Raise the limit of open files: a shell's 256 or 1024 are not enough for a thousand clients."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    with contextlib.suppress(ValueError, OSError):
        if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(options: Options) -> int:
    # Messages live long and are not part of reference cycles, so frequent full collections of so many objects would
    # find nothing. Connections do form cycles: the server runs a collection after many of them have ended.
    gc.set_threshold(10_000, 20, 1_000_000)
    # First of all, so that a program that waits for the file does not find that of a killed process.
    _remove_ready_file(options)
    _allow_connections()
    sock = bind(options.port)
    port = sock.getsockname()[1]
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(sock.close)
        broker = _load(options, cleanup)  # before the certificates, so that a refused store leaves no files behind
        folder = _tls_folder(options, cleanup)
        try:
            tls, ca_file = server_context(folder, options.name)
        except ForeignCertificate as error:
            raise UsageError(f"{error}: name another --tls-folder, or remove ca.pem and server.pem") from None
        except OSError as error:
            raise UsageError(f"the certificates cannot be written to {folder}: {error.strerror}") from None
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
    """Return an event that the stop signals set; until now they interrupted the start."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            loop.add_signal_handler(number, stop.set)
    return stop


def _tls_folder(options: Options, cleanup: contextlib.ExitStack) -> Path:
    """Return the folder of the certificates: the given one, one beside the store, or a temporary one."""
    if options.tls_folder is not None:
        return options.tls_folder
    if options.store is not None:
        return options.store.absolute().parent / (options.store.name + ".tls")
    temporary = Path(tempfile.mkdtemp(prefix="localbus-"))
    cleanup.callback(shutil.rmtree, temporary, ignore_errors=True)
    return temporary


def _load(options: Options, cleanup: contextlib.ExitStack) -> Broker:
    if options.store is None:
        return Broker(options.name)
    store = SqliteStore(options.store)
    # The server commits and closes the store. If the start fails, collected changes must not be written.
    cleanup.callback(store.abandon)
    try:
        return Broker(options.name, store)
    except (sqlite3.Error, LookupError, ValueError, TypeError) as error:
        raise StoreError(f"the store {options.store} is damaged ({error}); name another file") from None


def _read_until_eof(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Set `stop` at the end of standard input, on a thread: the event loop can wait for a pipe but not for a file."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    with contextlib.suppress(RuntimeError):  # the loop is closed already
        loop.call_soon_threadsafe(stop.set)


def _remove_ready_file(options: Options) -> None:
    """Remove the ready file of an earlier process; raise `UsageError` if the file is something else."""
    path = options.ready_file
    if path is None:
        return
    if path.exists() and not path.is_file():
        raise UsageError(f"--ready-file {path} exists and is not a regular file; name another")
    try:
        if not _is_ready_file(path):
            raise UsageError(f"--ready-file {path} contains something other than a ready line; name another")
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"--ready-file {path}: {error.strerror}") from None


def _is_ready_file(path: Path) -> bool:
    """Return True if a file does not exist, is empty or contains a ready line."""
    try:
        with path.open("rb") as file:
            content = file.read(_READY_BYTES + 1)
    except FileNotFoundError:
        return True
    try:
        found = json.loads(content[:_READY_BYTES]) if content.strip() else dict.fromkeys(_READY_KEYS)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and tuple(found) == _READY_KEYS


def _announce(options: Options, port: int, ca_file: Path, cleanup: contextlib.ExitStack) -> None:
    values = options.name, HOST, port, connection_string(port, options.keys[0]), str(ca_file.absolute())
    line = json.dumps(dict(zip(_READY_KEYS, values, strict=True)))
    if options.ready_file is not None:
        # Renamed when it is complete, because readers poll for it.
        part = options.ready_file.with_name(options.ready_file.name + ".part")
        cleanup.callback(options.ready_file.unlink, missing_ok=True)
        try:
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as out:
                out.write(line + "\n")  # it contains the key, hence mode 0600
            part.replace(options.ready_file)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise UsageError(f"--ready-file {options.ready_file}: {error.strerror}") from None
    _print(line)


def _print(line: str) -> None:
    """Print the ready line; raise `UsageError` if it cannot be written, since the server could not be found."""
    try:
        if sys.stdout is None:  # it was closed before Python started
            raise OSError(errno.EBADF, "it is closed")
        print(line, flush=True)
    except OSError as error:
        with contextlib.suppress(OSError, AttributeError):
            # The line is still in the buffer: let Python's exit write it to /dev/null.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise UsageError(f"the ready line cannot be written to standard output: {error.strerror}") from None
