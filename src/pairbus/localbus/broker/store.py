"""The stores of messages and entities: memory only, or a SQLite file that survives a kill.

Changes are written in one transaction for each turn of the event loop. Payloads beyond a fixed budget are only on disk.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pairbus.localbus.entities.hubs import Event
from pairbus.localbus.entities.message import Draft, Message

CACHE_BYTES = 32 * 1024 * 1024

_SCHEMA = """
CREATE TABLE IF NOT EXISTS about (key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS entities (id INTEGER PRIMARY KEY, kind TEXT, path TEXT, settings TEXT, created REAL,
    updated REAL);
CREATE TABLE IF NOT EXISTS sequences (queue INTEGER PRIMARY KEY, next INTEGER);
CREATE TABLE IF NOT EXISTS messages (id INTEGER PRIMARY KEY, queue INTEGER, sequence INTEGER,
    enqueue_sequence INTEGER, enqueued REAL, expires REAL, scheduled REAL, life REAL, session TEXT, size INTEGER,
    source TEXT, hops INTEGER, state INTEGER, delivery_count INTEGER, payload BLOB);
CREATE TABLE IF NOT EXISTS states (id INTEGER PRIMARY KEY, state INTEGER, delivery_count INTEGER);
CREATE TABLE IF NOT EXISTS sessions (queue INTEGER, session TEXT, state BLOB, PRIMARY KEY (queue, session));
CREATE TABLE IF NOT EXISTS history (queue INTEGER, message_id TEXT, at REAL, PRIMARY KEY (queue, message_id));
CREATE TABLE IF NOT EXISTS events (hub INTEGER, partition TEXT, sequence INTEGER, offset INTEGER, enqueued REAL,
    payload BLOB, PRIMARY KEY (hub, partition, sequence));
"""
SCHEMA_VERSION = 2


class EntityRow(NamedTuple):
    """A row of the entities table: `settings` is JSON text, see `settings_json`."""

    id: int
    kind: str
    path: str
    settings: str
    created: float
    updated: float


class StoreError(Exception):
    """A store cannot be used; the text says why, and what to do."""


class MemoryStore:
    """A store that writes nothing: the broker's objects in memory are the only copy."""

    def put(self, queue: int, next_sequence: int, message: Message) -> None: ...
    def set_next_sequence(self, queue: int, next_sequence: int) -> None: ...
    def set_state(self, message: Message, delivery_count: int) -> None: ...
    def delete(self, message: Message) -> None: ...
    def set_session(self, queue: int, session: str, state: bytes | None) -> None: ...
    def add_to_history(self, queue: int, message_id: str, at: float) -> None: ...
    def prune_history(self, queue: int, at: float) -> None: ...
    def put_entity(self, row: EntityRow) -> None: ...
    def delete_entity(self, id: int, queues: Iterable[int]) -> None: ...
    def put_event(self, hub: int, partition: str, event: Event) -> None: ...
    def commit(self) -> None: ...
    def close(self) -> None: ...

    def payloads(self, messages: Sequence[Message]) -> list[bytes]:
        return [m.payload for m in messages if m.payload is not None]


class SqliteStore:
    """A SQLite file in WAL mode, locked by this process."""

    def __init__(self, path: Path, *, cache_bytes: int = CACHE_BYTES) -> None:
        self._db = _connect(path)
        try:
            # A message has about a kilobyte: larger pages waste less space (measured: 25 % less CPU).
            self._db.execute("PRAGMA page_size=8192")
            # Large enough that pages read for a delivery are still cached when it is settled.
            self._db.execute("PRAGMA cache_size=-16000")
            self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode=WAL")
            # A commit is in the file when it returns, so it survives a kill of this process; a crash of the machine
            # can lose the last commits.
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute("PRAGMA wal_autocheckpoint=1000")
            # One transaction, because the schema row is the mark of a localbus store.
            self._db.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA.split(";"):
                self._db.execute(statement)
            self._check_version(path)
            self._db.execute("COMMIT")
            self._highest = int(self._db.execute("SELECT COALESCE(MAX(id), 0) FROM messages").fetchone()[0])
        except (sqlite3.Error, StoreError) as error:
            self._db.close()
            raise _unusable(path, error) from None
        self._budget = cache_bytes
        self._cached: dict[int, int] = {}
        self._cached_bytes = 0
        self._new: dict[int, tuple[int, Message]] = {}
        self._states: dict[int, tuple[int, int]] = {}
        self._deleted: list[tuple[int]] = []
        self._sequences: dict[int, int] = {}
        self._other: list[tuple[str, tuple[Any, ...]]] = []
        self._failed = False
        self._closed = False

    def _check_version(self, path: Path) -> None:
        self._db.execute("INSERT OR IGNORE INTO about VALUES ('schema', ?)", (str(SCHEMA_VERSION),))
        found = self._db.execute("SELECT value FROM about WHERE key = 'schema'").fetchone()[0]
        if found != str(SCHEMA_VERSION):
            raise StoreError(
                f"{path} was written by another version of localbus (schema {found}, this one reads "
                f"{SCHEMA_VERSION}); name another file"
            )

    def put(self, queue: int, next_sequence: int, message: Message) -> None:
        self._new[message.id] = (queue, message)
        self._sequences[queue] = next_sequence

    def set_next_sequence(self, queue: int, next_sequence: int) -> None:
        self._sequences[queue] = next_sequence

    def set_state(self, message: Message, delivery_count: int) -> None:
        self._states[message.id] = (message.state, delivery_count)

    def delete(self, message: Message) -> None:
        id = message.id
        self._states.pop(id, None)
        size = self._cached.pop(id, None)
        if size is not None:
            self._cached_bytes -= size
        self._new.pop(id, None)
        if id <= self._highest:  # a higher id was never written
            self._deleted.append((id,))

    def set_session(self, queue: int, session: str, state: bytes | None) -> None:
        if state is None:
            self._other.append(("DELETE FROM sessions WHERE queue = ? AND session = ?", (queue, session)))
        else:
            self._other.append(("INSERT OR REPLACE INTO sessions VALUES (?, ?, ?)", (queue, session, state)))

    def add_to_history(self, queue: int, message_id: str, at: float) -> None:
        self._other.append(("INSERT OR REPLACE INTO history VALUES (?, ?, ?)", (queue, message_id, at)))

    def prune_history(self, queue: int, at: float) -> None:
        """Delete the ids of the duplicate history that were recorded before a time."""
        self._other.append(("DELETE FROM history WHERE queue = ? AND at < ?", (queue, at)))

    def put_entity(self, row: EntityRow) -> None:
        self._other.append(("INSERT OR REPLACE INTO entities VALUES (?, ?, ?, ?, ?, ?)", tuple(row)))

    def delete_entity(self, id: int, queues: Iterable[int]) -> None:
        self._other.append(("DELETE FROM entities WHERE id = ?", (id,)))
        self._other.append(("DELETE FROM events WHERE hub = ?", (id,)))
        for queue in queues:
            for table in ("sequences", "sessions", "history"):
                self._other.append((f"DELETE FROM {table} WHERE queue = ?", (queue,)))
            self._sequences.pop(queue, None)

    def put_event(self, hub: int, partition: str, event: Event) -> None:
        row = (hub, partition, event.sequence, event.offset, event.enqueued_at, event.payload)
        self._other.append(("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", row))

    def commit(self) -> None:
        """Write all collected changes in one transaction; after a failure further calls raise `StoreError`."""
        if not (self._new or self._states or self._deleted or self._other or self._sequences):
            return
        if self._failed:
            raise StoreError("an earlier write to the store failed; nothing more is written to it")
        try:
            self._write()
        except BaseException:
            self._failed = True
            raise
        self._trim_cache()
        self._highest = max(self._highest, max(self._new, default=0))
        self._new, self._states, self._deleted, self._other = {}, {}, [], []
        self._sequences = {}

    def _write(self) -> None:
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        if self._new:
            db.executemany("INSERT OR REPLACE INTO messages VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)", self._rows())
        if self._sequences:
            db.executemany("INSERT OR REPLACE INTO sequences VALUES (?, ?)", list(self._sequences.items()))
        if self._states:
            rows = [(id, state, count) for id, (state, count) in self._states.items()]
            db.executemany("INSERT OR REPLACE INTO states VALUES (?, ?, ?)", rows)
        if self._deleted:
            spans = _spans(self._deleted)
            db.executemany("DELETE FROM messages WHERE id BETWEEN ? AND ?", spans)
            db.executemany("DELETE FROM states WHERE id BETWEEN ? AND ?", spans)
        for statement, values in self._other:
            db.execute(statement, values)
        db.execute("COMMIT")

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        for id, (queue, m) in self._new.items():
            yield (
                id, queue, m.sequence, m.enqueue_sequence, m.enqueued_at,
                None if m.expires_at == float("inf") else m.expires_at,
                m.scheduled_at, m.time_to_live, m.session_id, m.size, m.source, m.hops, m.state,
                m.delivery_count, m.payload,
            )  # fmt: skip

    def _trim_cache(self) -> None:
        """Keep the payloads just written in memory as far as the budget allows; drop the others."""
        for id, (_, message) in self._new.items():
            payload = message.payload
            if payload is None:
                continue
            self._cached_bytes -= self._cached.pop(id, 0)
            if self._cached_bytes + len(payload) <= self._budget:
                self._cached[id] = len(payload)
                self._cached_bytes += len(payload)
            else:
                message.payload = None

    def payloads(self, messages: Sequence[Message]) -> list[bytes]:
        missing = [m.id for m in messages if m.payload is None]
        found: dict[int, bytes] = {}
        if len(missing) > 1 and missing[-1] - missing[0] == len(missing) - 1:
            # Consecutive ids, as a queue read in order has them: one range scan instead of many lookups.
            between = "SELECT id, payload FROM messages WHERE id BETWEEN ? AND ?"
            found.update(self._db.execute(between, (missing[0], missing[-1])))
            missing = [id for id in missing if id not in found]  # dead letters need not be in order of their ids
        for start in range(0, len(missing), 500):
            ids = missing[start : start + 500]
            marks = ",".join("?" * len(ids))
            found.update(self._db.execute(f"SELECT id, payload FROM messages WHERE id IN ({marks})", ids))
        return [found[m.id] if m.payload is None else m.payload for m in messages]

    def entities(self) -> list[EntityRow]:
        return [EntityRow(*row) for row in self._db.execute("SELECT * FROM entities ORDER BY id")]

    def sequences(self) -> dict[int, int]:
        return dict(self._db.execute("SELECT queue, next FROM sequences"))

    def messages(self) -> Iterator[tuple[int, Message]]:
        """Yield all messages with their queue ids, by queue and sequence number, without payloads."""
        rows = self._db.execute(
            "SELECT m.id, queue, sequence, enqueue_sequence, enqueued, expires, scheduled, life, session, size, "
            "source, hops, COALESCE(s.state, m.state), COALESCE(s.delivery_count, m.delivery_count) "
            "FROM messages m LEFT JOIN states s ON s.id = m.id ORDER BY queue, sequence"
        )
        for row in rows:
            id, queue, sequence, first, enqueued, expires, scheduled, life, session, size, source, hops = row[:12]
            draft = Draft(b"", size, session_id=session, time_to_live=life, scheduled_at=scheduled)
            message = Message(id, sequence, enqueued, draft)
            message.enqueue_sequence = first
            message.expires_at = float("inf") if expires is None else expires
            message.source = source
            message.hops = hops
            message.state, message.delivery_count = row[12:]
            message.payload = None
            yield queue, message

    def sessions(self) -> Iterator[tuple[int, str, bytes]]:
        yield from self._db.execute("SELECT queue, session, state FROM sessions")

    def history(self) -> Iterator[tuple[int, str, float]]:
        yield from self._db.execute("SELECT queue, message_id, at FROM history ORDER BY at")

    def events(self) -> Iterator[tuple[int, str, Event]]:
        for hub, partition, *event in self._db.execute("SELECT * FROM events ORDER BY hub, partition, sequence"):
            yield hub, partition, Event(*event)

    def about(self, key: str, default: str) -> str:
        """Return a value of the about table; store the default if there is none yet."""
        self._db.execute("INSERT OR IGNORE INTO about VALUES (?, ?)", (key, default))
        return str(self._db.execute("SELECT value FROM about WHERE key = ?", (key,)).fetchone()[0])

    def close(self) -> None:
        """Commit the collected changes and close the file; do nothing if it is closed already."""
        if self._closed:
            return
        try:
            if not self._failed:
                self.commit()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the file without committing the collected changes."""
        self._closed = True
        self._db.close()


#: The stores that a broker can persist its changes through.
Store = MemoryStore | SqliteStore


def _connect(path: Path) -> sqlite3.Connection:
    """Open a new file or a localbus store; raise `StoreError` for another program's, before any write to it."""
    try:
        db = sqlite3.connect(path, isolation_level=None, timeout=0.5)
    except sqlite3.Error as error:
        raise _unusable(path, error) from None
    try:
        tables = {str(row[0]) for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        ours = "about" in tables and db.execute("SELECT 1 FROM about WHERE key = 'schema'").fetchone()
        if tables and not ours:
            raise StoreError(f"{path} is another program's database, not a localbus store; name another file")
    except (sqlite3.Error, StoreError) as error:
        db.close()
        raise _unusable(path, error) from None
    return db


def _unusable(path: Path, error: sqlite3.Error | StoreError) -> StoreError:
    if isinstance(error, StoreError):
        return error
    if not isinstance(error, sqlite3.OperationalError):
        return StoreError(f"{path} is not a localbus store ({error}); name another file")
    hint = "is another localbus using it?" if "locked" in str(error) else "is the folder there and writable?"
    return StoreError(f"the store {path} cannot be opened ({error}); {hint}")


def _spans(ids: Iterable[tuple[int]]) -> list[tuple[int, int]]:
    """Return runs of consecutive ids as (first, last), so that a queue read in order is deleted in few statements."""
    spans: list[tuple[int, int]] = []
    for (id,) in sorted(ids):
        if spans and id == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], id)
        else:
            spans.append((id, id))
    return spans
