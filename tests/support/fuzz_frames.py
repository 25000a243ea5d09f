"""Fuzzing of localbus with mutated AMQP sessions: a server in this process, with transports in memory.

`FuzzServer` is the server, `mutate` changes real sessions (their structure or their bytes), and `run_input` feeds one
and checks the server. `python -m tests.support.fuzz_frames --seconds 600` is the long campaign on one core; `make fuzz`
runs a part of it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import random
import struct
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from pairbus.domain.amqp.codec import AmqpDecodeError, Symbol, UInt, ULong, encode, skip
from pairbus.localbus.amqp.connection import AmqpConnection
from pairbus.localbus.auth import RIGHTS, Authorizer, Grant, Key
from pairbus.localbus.broker.broker import Broker
from pairbus.localbus.bus_errors import BusError
from pairbus.localbus.server import Server
from pairbus.localbus.settings import HubSettings, QueueSettings, RuleSettings, SqlExpression, TopicSettings
from tests.support import amqp_frames as amqp

SESSIONS = Path(__file__).parent.parent / "data" / "sessions"


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.time = 1_800_000_000.0

    def __call__(self) -> float:
        return self.time


class MemoryTransport(asyncio.Transport):
    """A transport that keeps the server's output, and whether it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self.closed

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class LenientAuthorizer(Authorizer):
    """An authorizer that checks tokens and grants everything: recorded tokens have expired."""

    def grant(self, token: str, audience: str, now: float, *args: Any, **more: Any) -> Grant:
        try:
            return super().grant(token, audience, now, *args, **more)
        except BusError:
            return Grant("", frozenset(RIGHTS), float("inf"))


class ErrorLog(logging.Handler):
    """Collects what is logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        self.messages.append(text)


class FuzzServer:
    """One server, and a method that runs a client."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.broker = Broker("contoso", clock=self.clock)
        authorizer = LenientAuthorizer(
            [Key("RootManageSharedAccessKey", "SAS_KEY_VALUE")], hosts=frozenset(("127.0.0.1", "localhost"))
        )
        self.server = Server(self.broker, authorizer)
        self.error_log = ErrorLog()
        logging.getLogger("pairbus").addHandler(self.error_log)
        logging.getLogger("asyncio").addHandler(self.error_log)
        asyncio.get_running_loop().set_exception_handler(self._unhandled)
        brief = timedelta(seconds=5)
        self.broker.create_queue(QueueSettings("orders", lock_duration=brief, max_delivery_count=3))
        self.broker.create_queue(QueueSettings("sessions", lock_duration=brief, requires_session=True))
        self.broker.create_queue(
            QueueSettings(
                "brief",
                default_message_time_to_live=brief,
                dead_lettering_on_message_expiration=True,
                requires_duplicate_detection=True,
            )
        )
        self.broker.create_topic(TopicSettings("news"))
        self.broker.create_queue(QueueSettings("onward", forward_to="news"))
        rule = RuleSettings(
            "r",
            SqlExpression("a > 1 OR sys.Label LIKE '%x%' OR EXISTS(b)"),
            SqlExpression("SET c = a + 1; SET sys.Label = 'new'; REMOVE b"),
        )
        self.broker.create_subscription("news", QueueSettings("all"), None)
        self.broker.create_subscription("news", QueueSettings("some"), rule)
        self.broker.create_hub(HubSettings("hub"))

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        text = str(context.get("message"))
        if error is not None:
            text += "\n" + logging.Formatter().formatException((type(error), error, error.__traceback__))
        self.error_log.messages.append(text)

    async def feed(self, pieces: list[bytes], *, wait: float = 0.0) -> MemoryTransport:
        """Run one client: its bytes, piece by piece, then the end of its input."""
        connection, transport = AmqpConnection(self.server), MemoryTransport()
        connection.connection_made(transport)
        for piece in pieces:
            connection.data_received(piece)
            await self.turn()
            if transport.closed:
                break
        if wait:
            self.clock.time += wait
            self.server.schedule()
            await self.turn()
        connection.eof_received()
        await self.turn()
        connection.connection_lost(None)
        await self.turn()
        return transport

    async def turn(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    async def close(self) -> None:
        logging.getLogger("pairbus").removeHandler(self.error_log)
        logging.getLogger("asyncio").removeHandler(self.error_log)
        await self.server.stop(0.0)


# --- inputs ---------------------------------------------------------------------------------------------------


def handmade() -> dict[str, bytes]:
    """Return sessions with frames that the SDK does not send: every kind of frame, on every kind of entity."""
    start = b"".join(amqp.authorized("sb://localhost/", "token"))
    text = amqp.message(b"x" * 40, a=UInt(5), b="y")
    batch = b"".join(b"\x00\x53\x75" + encode(text) for _ in range(3))
    in_session = (
        amqp.described(0x73, "m", None, None, "x", None, None, None, None, None, None, "s") + b"\x00\x53\x77\x41"
    )
    return {
        "queue": start
        + amqp.attach("out", 2, "orders")
        + amqp.attach("in", 3, "orders", receiver=True)
        + amqp.transfer(2, 1, text)
        + amqp.transfer(2, 2, text, more=True)
        + amqp.transfer(2, None, text)
        + amqp.transfer(2, 3, text, settled=True)
        + amqp.transfer(2, 4, text, more=True)
        + amqp.transfer(2, 4, b"", aborted=True)
        + amqp.transfer(2, 5, batch, format=0x80013700)
        + amqp.flow(3, 100)
        + amqp.disposition(1)
        + amqp.disposition(2, 3, 0x26)
        + amqp.disposition(4, None, 0x25)
        + amqp.disposition(5, None, 0x27)
        + amqp.performative(amqp.DETACH, UInt(3), True)
        + amqp.performative(amqp.DETACH, UInt(2), False)
        + amqp.performative(amqp.END)
        + amqp.performative(amqp.CLOSE),
        "sessions": start
        + amqp.attach("out", 2, "sessions")
        + amqp.transfer(2, 1, in_session)
        + amqp.attach("dead", 4, "orders/$DeadLetterQueue", receiver=True)
        + amqp.flow(4, 0xFFFFFFFF)
        + amqp.performative(
            amqp.ATTACH,
            "in",
            UInt(3),
            True,
            None,
            None,
            amqp.Raw(
                amqp.described(
                    0x28,
                    "sessions",
                    None,
                    None,
                    None,
                    None,
                    None,
                    None,
                    {Symbol("com.microsoft:session-filter"): None},
                )
            ),
            amqp.Raw(amqp.described(0x29, "x")),
        )
        + amqp.flow(3, 10)
        + amqp.disposition(1)
        + amqp.performative(amqp.DETACH, UInt(3), True),
        "topic": start
        + amqp.attach("out", 2, "news")
        + amqp.attach("in", 3, "news/Subscriptions/some", receiver=True, settled=True)
        + amqp.attach("in2", 4, "news/subscriptions/all", receiver=True)
        + amqp.attach("out2", 5, "onward")
        + amqp.attach("out3", 6, "brief")
        + amqp.flow(3, 10)
        + amqp.flow(4, 10)
        + amqp.transfer(2, 1, text)
        + amqp.transfer(5, 7, text)
        + amqp.transfer(6, 9, text)
        + amqp.disposition(1),
        "hub": start
        + amqp.attach("out", 2, "hub")
        + amqp.attach("one", 3, "hub/Partitions/1")
        + amqp.attach("in", 4, "hub/ConsumerGroups/$default/Partitions/1", receiver=True)
        + amqp.flow(4, 100)
        + amqp.transfer(3, 1, batch, format=0x80013700)
        + amqp.transfer(2, 2, text),
        "management": start
        + amqp.attach("m-out", 2, "orders/$management")
        + amqp.attach("m-in", 3, "orders/$management", receiver=True, reply="m")
        + amqp.flow(3, 100)
        + b"".join(amqp.transfer(2, 1 + i, raw) for i, raw in enumerate(_requests(text))),
    }


def _requests(text: bytes) -> Iterator[bytes]:
    bodies: dict[str, Any] = {
        "peek-message": {"from-sequence-number": ULong(0), "message-count": 5},
        "renew-lock": {"lock-tokens": []},
        "schedule-message": {"messages": [{"message-id": "m", "message": text}]},
        "cancel-scheduled-message": {"sequence-numbers": []},
        "receive-by-sequence-number": {"sequence-numbers": [], "receiver-settle-mode": UInt(1)},
        "update-disposition": {"disposition-status": "completed", "lock-tokens": []},
        "get-session-state": {"session-id": "s"},
        "set-session-state": {"session-id": "s", "session-state": b"state"},
        "renew-session-lock": {"session-id": "s"},
        "get-message-sessions": {"skip": 0, "top": 10},
        "enumerate-rules": {"skip": 0, "top": 10},
        "add-rule": {"rule-name": "x", "rule-description": {"sql-filter": {"expression": "1=1"}}},
        "remove-rule": {"rule-name": "x"},
    }
    for name, body in bodies.items():
        properties = {"operation": f"com.microsoft:{name}", "type": "entity-mgmt"}
        yield (
            amqp.described(0x73, "1", None, None, None, "m")
            + b"\x00\x53\x74"
            + encode(properties)
            + b"\x00\x53\x77"
            + encode(body)
        )


def seeds() -> dict[str, bytes]:
    """Return recorded sessions of the SDK, and the handmade ones."""
    recorded = {path.stem: path.read_bytes() for path in sorted(SESSIONS.glob("*.amqp"))}
    return {**recorded, **handmade()}


_ODD = (
    b"\x40", b"\x41", b"\x42", b"\x43", b"\x44", b"\x45", b"\x50\xff", b"\x52\xff", b"\x53\xff", b"\x56\x02",
    b"\x70\xff\xff\xff\xff", b"\x70\x7f\xff\xff\xff", b"\x70\x80\x00\x00\x00", b"\x80" + b"\xff" * 8,
    b"\x83" + b"\x7f" + b"\xff" * 7, b"\x98" + b"\x00" * 16, b"\xa0\x00", b"\xa1\x00", b"\xa1\x02\xff\xfe",
    b"\xa3\x01\x80", b"\xa1\x01\x00", b"\xb1\x00\x00\x00\x00", b"\xb1\xff\xff\xff\xff", b"\xc0\x01\x00",
    b"\xc1\x01\x00", b"\xc1\x03\x02\x40\x40", b"\xd0\x00\x00\x00\x04\x00\x00\x00\x00", b"\xe0\x02\x05\x40",
    b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40", b"\x00\x53\x24\x45", b"\x00\x53\x25\x45", b"\x00\x53\x27\x45",
    b"\x00\xa3\x01x\x40", b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x24\x45", b"\x00\x00\x00\x40\x40\x40",
)  # fmt: skip


def _value_spans(body: bytes, at: int, end: int, depth: int = 0) -> list[tuple[int, int]]:
    """Return the spans of a value and of the values within it."""
    spans: list[tuple[int, int]] = []
    try:
        after = skip(body, at)
    except (AmqpDecodeError, RecursionError):
        return spans
    if after > end:
        return spans
    spans.append((at, after))
    if depth > 6:
        return spans
    code = body[at]
    if code == 0:
        middle = skip(body, at + 1)
        spans += _value_spans(body, at + 1, after, depth + 1) + _value_spans(body, middle, after, depth + 1)
    elif code in (0xC0, 0xC1, 0xD0, 0xD1):
        at += 3 if code < 0xD0 else 9
        while at < after and len(spans) < 400:
            inner = _value_spans(body, at, after, depth + 1)
            if not inner:
                break
            spans += inner
            at = inner[0][1]
    return spans


def _resize(body: bytes, at: int, old_end: int, new: bytes) -> bytes:
    """Replace a value, and correct the sizes of the lists and maps around it."""
    changed = bytearray(body)
    delta = len(new) - (old_end - at)
    for start, after in _value_spans(body, 0, len(body)):
        if start < at and after >= old_end:
            code = body[start]
            if code in (0xC0, 0xC1):
                changed[start + 1] = (changed[start + 1] + delta) & 0xFF
            elif code in (0xD0, 0xD1):
                size = (struct.unpack_from(">I", body, start + 1)[0] + delta) & 0xFFFFFFFF
                struct.pack_into(">I", changed, start + 1, size)
    changed[at:old_end] = new
    return bytes(changed)


def mutate(rng: random.Random, pool: list[list[bytes]]) -> list[bytes]:
    """Return a session with some frames changed, moved, repeated, removed or taken from another session."""
    frames = list(rng.choice(pool))
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        if not frames:
            break
        index = rng.randrange(len(frames))
        kind = rng.random()
        if kind < 0.45:
            frames[index] = _change_value(rng, frames[index])
        elif kind < 0.60:
            frames[index] = _change_bytes(rng, frames[index])
        elif kind < 0.68:
            del frames[index]
        elif kind < 0.78:
            frames.insert(index, frames[rng.randrange(len(frames))])
        elif kind < 0.86:
            other = rng.randrange(len(frames))
            frames[index], frames[other] = frames[other], frames[index]
        elif kind < 0.94:
            borrowed = rng.choice(rng.choice(pool))
            frames.insert(rng.randrange(index, len(frames) + 1), borrowed)
        elif kind < 0.97:
            frames[index] = _change_channel(rng, frames[index])
        else:
            frames[index] = rng.randbytes(rng.randrange(1, 64))
    return frames


def _is_frame(raw: bytes) -> bool:
    return len(raw) > 8 and raw[:4] != b"AMQP" and raw[4] >= 2 and raw[4] * 4 < len(raw)


def _with_size(raw: bytes, body: bytes) -> bytes:
    offset = raw[4] * 4
    return struct.pack(">I", offset + len(body)) + raw[4:offset] + body


def _change_value(rng: random.Random, raw: bytes) -> bytes:
    if not _is_frame(raw):
        return _change_bytes(rng, raw)
    body = raw[raw[4] * 4 :]
    spans = _value_spans(body, 0, len(body))
    if not spans:
        return _change_bytes(rng, raw)
    at, end = rng.choice(spans)
    kind = rng.random()
    if kind < 0.5:
        new = rng.choice(_ODD)
    elif kind < 0.65:
        a, b = rng.choice(spans)
        new = body[a:b]
    elif kind < 0.75:
        new = encode(UInt(rng.choice((0, 1, 2, 3, 4, 5, 255, 256, 65_535, 2**31 - 1, 2**31, 2**32 - 1))))
    elif kind < 0.82:
        new = encode(rng.choice(("", "$cbs", "orders", "news", "orders/$management", "a" * 300, "é\0", "out")))
    elif kind < 0.90:
        new = amqp.nested(rng.choice((3, 15, 17, 40, 500)), rng.choice((0, 0xD0, 0xD1, 0xF0)))
    elif kind < 0.95:
        new = b""
    else:
        new = encode(bytes(rng.randrange(0, 700)))
    body = _resize(body, at, end, new) if rng.random() < 0.9 else body[:at] + new + body[end:]
    return _with_size(raw, body)


def _change_bytes(rng: random.Random, raw: bytes) -> bytes:
    changed = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        if not changed:
            break
        at = rng.randrange(len(changed))
        kind = rng.random()
        if kind < 0.5:
            changed[at] = rng.choice((0, 1, 0x40, 0x41, 0x45, 0x7F, 0x80, 0xC0, 0xD0, 0xFF, rng.randrange(256)))
        elif kind < 0.7:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind < 0.85:
            del changed[at : at + rng.randrange(1, 5)]
        else:
            changed[at:at] = rng.randbytes(rng.randrange(1, 5))
    if rng.random() < 0.8 and len(changed) >= 8 and changed[:4] != b"AMQP":
        struct.pack_into(">I", changed, 0, len(changed))  # so that the change gets past the framing
    return bytes(changed)


def _change_channel(rng: random.Random, raw: bytes) -> bytes:
    if not _is_frame(raw):
        return raw
    return raw[:6] + struct.pack(">H", rng.choice((0, 1, 2, 255, 256, 65_535))) + raw[8:]


def pieces(rng: random.Random, frames: list[bytes]) -> list[bytes]:
    """Cut bytes into pieces as a network might."""
    kind = rng.random()
    if kind < 0.05:
        return [b"".join(frames)]
    if kind < 0.4:
        return frames
    if kind < 0.8:  # some frames together, as a client that has much to say writes them
        grouped, at = frames[:8], 8
        while at < len(frames):
            size = rng.randrange(1, 12)
            grouped.append(b"".join(frames[at : at + size]))
            at += size
        return grouped
    data = b"".join(frames)
    cuts = sorted({rng.randrange(1, len(data)) for _ in range(rng.randrange(10, 30))} if len(data) > 1 else ())
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


# --- runs -----------------------------------------------------------------------------------------------------


class FuzzFailure(AssertionError):
    """An input that the server does not handle as it must."""


async def run_inputs(seed: int, count: int, *, per_server: int = 200, seconds: float = float("inf")) -> int:
    """Feed inputs to servers in this process; return their number. FuzzFailure says how to repeat one."""
    pool = [list(amqp.split_frames(data)) for data in seeds().values()]
    until = time.monotonic() + seconds
    done = 0
    while done < count and time.monotonic() < until:
        fuzz_server = FuzzServer()
        for number in range(done, min(done + per_server, count)):
            await run_input(fuzz_server, seed, number, pool)
        done = min(done + per_server, count)
        await check_alive(fuzz_server, f"seed {seed}, up to input {done}")
        await fuzz_server.close()
        gc.collect()
    return done


async def run_input(fuzz_server: FuzzServer, seed: int, number: int, pool: list[list[bytes]]) -> None:
    rng = random.Random(f"{seed}/{number}")
    chosen = pieces(rng, mutate(rng, pool))
    name = f"seed {seed}, input {number} ({b''.join(chosen).hex()[:4000]})"
    started = time.thread_time()
    transport = await fuzz_server.feed(chosen, wait=rng.choice((0.0, 0.0, 6.0, 61.0)))
    took = time.thread_time() - started
    if took > 2.0:
        raise FuzzFailure(f"{name} took {took:.1f} s")
    if len(transport.written) > 8_000_000:
        raise FuzzFailure(f"{name} was answered with {len(transport.written)} bytes")
    check_output(bytes(transport.written), name)
    if fuzz_server.server.failed.done():
        raise FuzzFailure(f"{name} ended the server: {fuzz_server.server.failed.exception()!r}")
    if fuzz_server.error_log.messages:
        raise FuzzFailure(f"{name}: {fuzz_server.error_log.messages[0]}")
    if fuzz_server.server.connections:
        raise FuzzFailure(f"{name} left a connection behind")


def check_output(written: bytes, name: str) -> None:
    """Assert that the server's output is frames."""
    for raw in amqp.split_frames(written):
        if raw[:4] == b"AMQP":
            continue
        if len(raw) < 8 or struct.unpack_from(">I", raw)[0] != len(raw):
            raise FuzzFailure(f"{name} was answered with no frame: {raw[:40].hex()}")
        if len(raw) > 8:
            skip(raw, raw[4] * 4)  # not decoded: it may echo what the client wrote


async def check_alive(fuzz_server: FuzzServer, name: str) -> None:
    """Assert that another client can send and receive a message."""
    start = amqp.authorized("sb://localhost/", "token")
    fuzz_server.broker.create_queue(QueueSettings("fresh"))
    use = (
        amqp.attach("out", 2, "fresh")
        + amqp.attach("in", 3, "fresh", receiver=True)
        + amqp.flow(3, 10)
        + amqp.transfer(2, 1, amqp.message(b"still here"))
    )
    transport = await fuzz_server.feed([*start, use])
    if b"still here" not in transport.written:
        raise FuzzFailure(f"after {name} another client got nothing: {bytes(transport.written[-200:]).hex()}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--count", type=int, default=10**9)
    parser.add_argument("--only", type=int, help="feed this one input of the seed")
    arguments = parser.parse_args()
    if arguments.only is not None:

        async def one() -> None:
            pool = [list(amqp.split_frames(data)) for data in seeds().values()]
            await run_input(FuzzServer(), arguments.seed, arguments.only, pool)

        asyncio.run(one())
        return 0
    started = time.monotonic()
    done = asyncio.run(run_inputs(arguments.seed, arguments.count, seconds=arguments.seconds))
    took = time.monotonic() - started
    print(f"{done} inputs in {took:.0f} s ({done / took:.0f}/s), seed {arguments.seed}: nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
