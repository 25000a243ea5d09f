"""The command-line arguments of `pairbus localbus`, and their validation."""

from __future__ import annotations

import argparse
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path

from .auth import DEFAULT_KEY_NAME, RIGHTS, Key

HOST = "127.0.0.1"
#: Signals that stop localbus; SIGHUP comes when its terminal is closed.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class UsageError(Exception):
    """localbus cannot start with these options; the text says what would be right."""


@dataclass(frozen=True)
class Options:
    """The validated options of a server."""

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
    """Add the arguments of `pairbus localbus` to a parser."""
    parser.add_argument("--name", default="contoso", help="the namespace's name (default: contoso)")
    parser.add_argument("--host", default=HOST, help=f"must be {HOST}: localbus serves this machine only")
    parser.add_argument("--port", type=int, default=0, help="the port; 0, the default, takes a free port")
    parser.add_argument("--store", type=Path, metavar="FILE", help="keep entities and messages in this SQLite file")
    parser.add_argument(
        "--key-name", action="append", default=[], metavar="NAME",
        help=f"a key's name, once per --key (default: {DEFAULT_KEY_NAME}); NAME:Send,Listen limits its rights",
    )  # fmt: skip
    parser.add_argument(
        "--key", action="append", default=[], metavar="KEY",
        help="the key (default: a random one); @FILE or env:NAME keeps it off the command line",
    )  # fmt: skip
    parser.add_argument("--entities", type=Path, metavar="FILE", help="create the entities listed in this TOML file")
    parser.add_argument("--ready-file", type=Path, metavar="FILE", help="write the ready line to this file too")
    parser.add_argument("--tls-folder", type=Path, metavar="DIR", help="keep the certificates in this folder")
    parser.add_argument("--accept-any-jwt", action="store_true", help="accept any Entra (JWT) token")
    parser.add_argument("--until-eof", action="store_true", help="stop when standard input ends")


def read_options(args: argparse.Namespace) -> Options:
    """Return the validated options; raise `UsageError` for the first mistake."""
    if args.host != HOST:
        raise UsageError(
            f"--host {args.host} is refused: localbus is made for tests and must not be reachable from other machines; "
            f"it listens on {HOST} only"
        )
    if not 0 <= args.port <= 65535:
        raise UsageError(f"--port {args.port} is not a port; use 0 to 65535 (0: any free port)")
    if not re.fullmatch(r"[A-Za-z0-9-]{1,50}", args.name):
        raise UsageError(f"--name {args.name!r} is not a namespace name: use up to 50 letters, digits and '-'")
    if args.store is not None and args.store.name == ":memory:":
        raise UsageError("--store :memory: is not a file; without --store everything is in memory")
    _check_file("--store", args.store)
    _check_file("--ready-file", args.ready_file)
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


def _check_file(option: str, path: Path | None) -> None:
    if path is None:
        return
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"{option} {path}: the folder {folder} does not exist")
    if path.is_dir():
        raise UsageError(f"{option} {path} is a folder; name a file")


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
        raise UsageError("two --key-name have the same name; give each key its own")
    return tuple(keys)


def _secret(text: str) -> str:
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
            raise UsageError(f"--key {text}: {reason}") from None
    elif text.startswith("env:"):
        name, text = text[4:], os.environ.get(text[4:], "")
        if not text:
            raise UsageError(f"--key env:{name}: the environment variable {name} is not set")
    if not text or any(c in text for c in ";\n\r"):
        raise UsageError("--key must not be empty or contain ';' or line breaks")
    return text
