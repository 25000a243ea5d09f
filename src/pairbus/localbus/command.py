"""`pairbus localbus`: the arguments, the process's life from ready to stopped, and clear words for what is wrong."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import json
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .auth import DEFAULT_KEY_NAME, RIGHTS, Authorizer, Key
from .broker import Broker
from .connection import AmqpConnection
from .entities_file import EntitiesFileError, load_entities
from .listener import Listener
from .server import Server
from .store import SqliteStore, StoreError
from .tls import server_context

HOST = "127.0.0.1"
USAGE_ERROR = 2


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


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C; the process's exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        options = read_options(args)
        return asyncio.run(_serve(options))
    except (UsageError, StoreError, EntitiesFileError) as error:
        print(f"pairbus localbus: {error}", file=sys.stderr)
        return USAGE_ERROR
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
    if not args.name or not all(c.isalnum() or c == "-" for c in args.name) or len(args.name) > 50:
        raise UsageError(f"--name {args.name!r} is no namespace name: letters, digits and '-', 50 at most")
    if args.store is not None and not args.store.absolute().parent.is_dir():
        raise UsageError(f"--store {args.store}: the folder {args.store.absolute().parent} does not exist")
    return Options(
        name=args.name,
        port=args.port,
        keys=_keys(args.key_name, args.key),
        store=args.store,
        entities=args.entities,
        ready_file=args.ready_file,
        tls_folder=args.tls_folder,
        accept_any_jwt=args.accept_any_jwt,
    )


def _keys(names: list[str], secrets: list[str]) -> tuple[Key, ...]:
    if len(names) > 1 and len(secrets) not in (0, len(names)):
        raise UsageError(f"{len(names)} --key-name but {len(secrets)} --key: give one key for each name, or none")
    if len(secrets) > max(len(names), 1):
        raise UsageError(f"{len(secrets)} --key but {len(names)} --key-name: give each key a name")
    keys = []
    for index, spelled in enumerate(names or [DEFAULT_KEY_NAME]):
        name, _, rights = spelled.partition(":")
        wanted = [right.strip() for right in rights.split(",") if right.strip()] or list(RIGHTS)
        wrong = [right for right in wanted if right not in RIGHTS]
        if wrong or not name:
            raise UsageError(f"--key-name {spelled!r}: NAME or NAME:RIGHT,… with rights of {', '.join(RIGHTS)}")
        random = Key.random(name)
        secret = _secret(secrets[index]) if index < len(secrets) else random.secret
        keys.append(Key(name, secret, frozenset(wanted)))
    if len({key.name for key in keys}) != len(keys):
        raise UsageError("two keys have the same name")
    return tuple(keys)


def _secret(text: str) -> str:
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise UsageError(f"--key {text}: {error.strerror}") from None
    elif text.startswith("env:"):
        name, text = text[4:], os.environ.get(text[4:], "")
        if not text:
            raise UsageError(f"--key env:{name}: the environment has no {name}")
    if not text or any(c in text for c in ";\n\r"):
        raise UsageError("a key must not be empty, nor hold ';' or line ends")
    return text


def bind(port: int) -> socket.socket:
    """The listening socket; a port in use is said plainly."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((HOST, port))
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(f"port {port} is in use; choose another, or 0 for any free one") from None
        raise UsageError(f"port {port} cannot be used: {error.strerror}") from None
    return sock


def connection_string(port: int, key: Key) -> str:
    """One string that fits the data clients and the administration client."""
    return (
        f"Endpoint=sb://{HOST}:{port};SharedAccessKeyName={key.name};SharedAccessKey={key.secret};"
        "UseDevelopmentEmulator=true;"
    )


async def _serve(options: Options) -> int:
    loop = asyncio.get_running_loop()
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
        store = None if options.store is None else SqliteStore(options.store)
        if store is not None:
            cleanup.callback(store.close)
        broker = Broker(options.name, store)
        hosts = frozenset(("127.0.0.1", "localhost", "::1", f"{options.name}.servicebus.windows.net".lower()))
        authorizer = Authorizer(list(options.keys), hosts=hosts, port=port, accept_any_jwt=options.accept_any_jwt)
        if options.entities is not None:
            load_entities(options.entities, broker)
        broker.store.commit()
        server = Server(broker, authorizer)
        listener = Listener(sock, tls, lambda: AmqpConnection(server), server.http_protocol)
        _announce(options, port, ca_file)
        server.failed.add_done_callback(lambda _: stop.set())
        await stop.wait()
        await listener.close()
        if server.failed.done():
            print(f"pairbus localbus: {server.failed.exception()}", file=sys.stderr)
            return 1
        await server.stop()
    return 0


def _announce(options: Options, port: int, ca_file: Path) -> None:
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
        part.write_text(line + "\n", encoding="utf-8")
        part.replace(options.ready_file)
    print(line, flush=True)
