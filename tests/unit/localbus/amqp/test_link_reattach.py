"""A link that is detached and attached again under the same name in one read of the server."""

from __future__ import annotations

import pytest

from tests.support import amqp_frames as amqp
from tests.support.fuzz_frames import FuzzServer


def session_receiver(handle: int) -> bytes:
    """Return an attach for the session `s`, named after the session as Java's SDK does."""
    wanted = {amqp.Symbol("com.microsoft:session-filter"): "s"}
    source = amqp.described(0x28, "sessions", None, None, None, None, None, None, wanted)
    target = amqp.described(0x29, "here")
    return amqp.performative(amqp.ATTACH, "s", amqp.UInt(handle), True, None, None, amqp.Raw(source), amqp.Raw(target))


@pytest.mark.parametrize("handle", [5, 6], ids=["the same handle", "another handle"])
async def test_detach_and_attach_in_one_read(handle: int) -> None:
    """The first link's detach frees its session; the second link is a new one, which gets the session."""
    fuzz_server = FuzzServer()
    detach = amqp.performative(amqp.DETACH, amqp.UInt(5), True)
    start = [*amqp.authorized("sb://localhost/", "token"), session_receiver(5)]
    transport = await fuzz_server.feed([*start, detach + session_receiver(handle)])
    frames = [raw for raw in amqp.split_frames(bytes(transport.written)) if raw[:4] != b"AMQP" and raw[5] == 0]
    answers = [(code, fields) for code, _, fields, _ in map(amqp.read_performative, frames)]
    attached = [fields[1] for code, fields in answers if code == amqp.ATTACH and fields[0] == "s"]
    assert len(attached) == 2
    assert [fields[0] for code, fields in answers if code == amqp.DETACH] == attached[:1]
    assert fuzz_server.error_log.messages == []
    await fuzz_server.close()
