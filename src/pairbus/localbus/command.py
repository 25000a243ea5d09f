"""`pairbus localbus`: the arguments, the process's life from ready to stopped, and clear words for what is wrong."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import gc
import json
import logging
import os
import random
import re
import resource
import shutil
import signal
import socket
import sqlite3
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from .auth import DEFAULT_KEY_NAME, RIGHTS, Authorizer, Key
from .broker import Broker
from .connection import AmqpConnection
from .entities_file import EntitiesFileError, load_entities
from .listener import BACKLOG, Listener
from .server import Server
from .store import SqliteStore, StoreError
from .tls import server_context

HOST = "127.0.0.1"
USAGE_ERROR = 2
FAILED = 1
_FREE_PORTS = range(20000, 32768)
_OPEN_FILES = 10240


class UsageError(Exception):
    """localbus cannot be started like this; the text says what would be right."""


@dataclass(frozen=True)
class Options:
    """What a server is started with."""

    name: str
    port: int
    keys: tuple[Key, ...]
    store: Path | None = None
    entities: Path | None = None
    ready_file: Path | None = None
    tls_folder: Path | None = None
    accept_any_jwt: bool = False
    until_eof: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", default="contoso", help="the namespace's name (default: contoso)")
    parser.add_argument("--host", default=HOST, help=f"must be {HOST}: localbus serves this machine only")
    parser.add_argument("--port", type=int, default=0, help="the port; 0, the default, takes a free one")
    parser.add_argument("--store", type=Path, metavar="FILE", help="keep everything in this SQLite file")
    parser.add_argument(
        "--key-name", action="append", default=[], metavar="NAME",
        help=f"a key's name, once per --key (default: {DEFAULT_KEY_NAME}); NAME:Send,Listen limits its rights",
    )  # fmt: skip
    parser.add_argument(
        "--key", action="append", default=[], metavar="KEY",
        help="the key, as it is (default: one made at random); @FILE or env:NAME keeps it off the command line",
    )  # fmt: skip
    parser.add_argument("--entities", type=Path, metavar="FILE", help="create the entities of this TOML file")
    parser.add_argument("--ready-file", type=Path, metavar="FILE", help="write the ready line there as well")
    parser.add_argument("--tls-folder", type=Path, metavar="DIR", help="keep the CA and certificate there")
    parser.add_argument("--accept-any-jwt", action="store_true", help="accept any Entra (JWT) token")
    parser.add_argument("--until-eof", action="store_true", help="stop when standard input ends")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C; the process's exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        options = read_options(args)
        return asyncio.run(_serve(options))
    except (UsageError, StoreError, EntitiesFileError) as error:
        print(f"pairbus localbus: {error}", file=sys.stderr)
        return USAGE_ERROR
    except sqlite3.Error as error:
        print(f"pairbus localbus: the store {args.store} cannot be written ({error})", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return 0


def read_options(args: argparse.Namespace) -> Options:
    """The arguments, checked."""
    if args.host != HOST:
        raise UsageError(
            f"--host {args.host} is refused: localbus checks no more than a test needs and must not be reached "
            f"from other machines; it listens on {HOST} only"
        )
    if not 0 <= args.port <= 65535:
        raise UsageError(f"--port {args.port} is no port; 0 to 65535 (0: any free one)")
    if not re.fullmatch(r"[A-Za-z0-9-]{1,50}", args.name):
        raise UsageError(f"--name {args.name!r} is no namespace name: letters, digits and '-', 50 at most")
    if args.store is not None and not args.store.absolute().parent.is_dir():
        raise UsageError(f"--store {args.store}: the folder {args.store.absolute().parent} does not exist")
    if args.ready_file is not None and not args.ready_file.absolute().parent.is_dir():
        raise UsageError(
            f"--ready-file {args.ready_file}: the folder {args.ready_file.absolute().parent} does not exist"
        )
    return Options(
        name=args.name,
        port=args.port,
        keys=_keys(args.key_name, args.key),
        store=args.store,
        entities=args.entities,
        ready_file=args.ready_file,
        tls_folder=args.tls_folder,
        accept_any_jwt=args.accept_any_jwt,
        until_eof=args.until_eof,
    )


def _keys(names: list[str], secrets: list[str]) -> tuple[Key, ...]:
    if len(names) > 1 and len(secrets) not in (0, len(names)):
        raise UsageError(f"{len(names)} --key-name but {len(secrets)} --key: give one key for each name, or none")
    if len(secrets) > max(len(names), 1):
        raise UsageError(f"{len(secrets)} --key but {len(names)} --key-name: give each key a name")
    keys = []
    for index, spelled in enumerate(names or [DEFAULT_KEY_NAME]):
        name, limited, rights = spelled.partition(":")
        wanted = [right.strip() for right in rights.split(",")] if limited else list(RIGHTS)
        wrong = [right for right in wanted if right not in RIGHTS]
        if wrong or not re.fullmatch(r"[\w.-]{1,256}", name, re.ASCII):
            raise UsageError(f"--key-name {spelled!r}: NAME or NAME:RIGHT,… with rights of {', '.join(RIGHTS)}")
        secret = _secret(secrets[index]) if index < len(secrets) else Key.random(name).secret
        keys.append(Key(name, secret, frozenset(wanted)))
    if len({key.name for key in keys}) != len(keys):
        raise UsageError("two keys have the same name")
    return tuple(keys)


def _secret(text: str) -> str:
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "no text"
            raise UsageError(f"--key {text}: {reason}") from None
    elif text.startswith("env:"):
        name, text = text[4:], os.environ.get(text[4:], "")
        if not text:
            raise UsageError(f"--key env:{name}: the environment has no {name}")
    if not text or any(c in text for c in ";\n\r"):
        raise UsageError("a key must not be empty, nor hold ';' or line ends")
    return text


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
    loop = asyncio.get_running_loop()
    _allow_connections()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    sock = bind(options.port)
    port = sock.getsockname()[1]
    temporary = None
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(sock.close)
        folder = options.tls_folder
        if folder is None and options.store is not None:
            folder = options.store.absolute().parent / (options.store.name + ".tls")
        if folder is None:
            temporary = Path(tempfile.mkdtemp(prefix="localbus-"))
            folder = temporary
            cleanup.callback(shutil.rmtree, temporary, ignore_errors=True)
        try:
            tls, ca_file = server_context(folder, options.name)
        except OSError as error:
            raise UsageError(f"the certificates cannot be kept in {folder}: {error.strerror}") from None
        broker = _load(options, cleanup)
        hosts = frozenset(("127.0.0.1", "localhost", "::1", f"{options.name}.servicebus.windows.net".lower()))
        authorizer = Authorizer(
            list(options.keys), hosts=hosts, port=port, accept_any_jwt=options.accept_any_jwt, entities=broker
        )
        if options.entities is not None:
            load_entities(options.entities, broker)
        broker.store.commit()
        server = Server(broker, authorizer)
        listener = Listener(sock, tls, lambda: AmqpConnection(server), server.http_protocol)
        _announce(options, port, ca_file, cleanup)
        server.failed.add_done_callback(lambda _: stop.set())
        if options.until_eof:
            threading.Thread(target=_read_until_eof, args=(loop, stop), daemon=True).start()
        await stop.wait()
        await listener.close()
        if not server.failed.done():
            await server.stop()
        if server.failed.done():
            print(f"pairbus localbus: {server.failed.exception()}", file=sys.stderr)
            return FAILED
    return 0


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


def _announce(options: Options, port: int, ca_file: Path, cleanup: contextlib.ExitStack) -> None:
    line = json.dumps(
        {
            "name": options.name,
            "host": HOST,
            "port": port,
            "connection_string": connection_string(port, options.keys[0]),
            "ca_file": str(ca_file.absolute()),
        }
    )
    if options.ready_file is not None:
        # Whole or not there at all: a reader polls for it.
        part = options.ready_file.with_name(options.ready_file.name + ".part")
        try:
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as out:
                out.write(line + "\n")  # it holds the key
            part.replace(options.ready_file)
        except OSError as error:
            raise UsageError(f"--ready-file {options.ready_file}: {error.strerror}") from None
        cleanup.callback(options.ready_file.unlink, missing_ok=True)
    print(line, flush=True)
