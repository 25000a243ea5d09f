"""Mutated AMQP sessions: localbus answers in frames, logs no error, and serves other clients."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from pairbus.domain.amqp.codec import Described, Symbol, UInt, ULong
from pairbus.localbus import LocalBus
from tests.support import amqp_frames as amqp
from tests.support.amqp_frames import Peer
from tests.support.fuzz_frames import FuzzServer, check_alive, mutate, pieces, run_inputs, seeds


@pytest.mark.parametrize("name", seeds())
async def test_the_unmutated_sessions_are_valid(name: str) -> None:
    """Each seed gets a reply and logs no error, and the next client is served."""
    fuzz_server = FuzzServer()
    transport = await fuzz_server.feed(list(amqp.split_frames(seeds()[name])))
    codes = [
        amqp.read_performative(raw)[0]
        for raw in amqp.split_frames(bytes(transport.written))
        if raw[:4] != b"AMQP" and len(raw) > 8 and raw[5] == 0
    ]
    assert {amqp.OPEN, amqp.BEGIN, amqp.ATTACH, amqp.TRANSFER} <= set(codes)
    assert fuzz_server.error_log.messages == []
    await check_alive(fuzz_server, name)
    await fuzz_server.close()


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_fixed_set_of_mutations_does_no_harm(seed: int) -> None:
    """The part of the fuzzing that runs with every `make test`."""
    assert await run_inputs(seed, 600) == 600


@pytest.mark.parametrize("frames", [
    [amqp.transfer(2, 1, b"x"), amqp.performative(amqp.TRANSFER, UInt(2), ULong(2**63), b"t")],
    [amqp.performative(amqp.FLOW, *[UInt(0)] * 4, UInt(2), UInt(2**31), UInt(5)),
     amqp.transfer(2, 1, b"x")],
    [amqp.transfer(1, 1, b"on a link that the client receives on")],
    [amqp.performative(amqp.ATTACH, "s", UInt(3), True, None, None, amqp.Raw(amqp.described(
        0x28, "sessions", None, None, None, None, None, None,
        {Symbol("com.microsoft:session-filter"): Described(None, None)})))],
    [amqp.transfer(2, 1, amqp.described(0x73, "m") + b"\x00\x53\x74\xc1\x03\x02\xa1\x09" + b"\x00\x53\x77\x40")],
    [amqp.transfer(2, 1, b"\x00\x53\x72\xc1\x03\x02\x45\x40" + amqp.message())],
    [amqp.transfer(2, 1, amqp.described(0x70, None, None, ULong(2**64 - 1)) + amqp.message())],
], ids=["id beyond 32 bits", "absurd delivery-count", "transfer on a receiver", "odd session filter",
        "broken application properties", "a list as an annotation's key", "an endless time to live"])  # fmt: skip
@pytest.mark.parametrize("entity", ["orders", "news", "sessions", "hub"])
async def test_inputs_found_earlier_do_no_harm(entity: str, frames: list[bytes]) -> None:
    """Each of these inputs once broke a connection, a turn of the loop, or the server."""
    fuzz_server = FuzzServer()
    start = [*amqp.authorized("sb://localhost/", "token"), amqp.attach("out", 2, entity)]
    await fuzz_server.feed([*start, *frames], wait=61.0)
    assert fuzz_server.error_log.messages == []
    assert not fuzz_server.server.failed.done()
    await check_alive(fuzz_server, entity)
    await fuzz_server.close()


@pytest.mark.campaign
@pytest.mark.parametrize("part", range(12))
async def test_the_long_campaign_in_process(part: int) -> None:
    """120,000 inputs, a different set in each run."""
    seed = int(time.time()) + part
    assert await run_inputs(seed, 10_000) == 10_000, f"seed {seed}"


@pytest.mark.campaign
def test_the_long_campaign_on_a_process(tmp_path: Path) -> None:
    """Mutated sessions over real sockets: the process lives, uses limited memory and logs no error."""
    entities = tmp_path / "entities.toml"
    entities.write_text('[[queues]]\nname = "orders"\n\n[[queues]]\nname = "sessions"\nrequires_session = true\n')
    pool = [list(amqp.split_frames(data)) for data in seeds().values()]
    seed = int(time.time())
    with LocalBus(entities=entities, accept_any_jwt=True) as bus:
        for number in range(5_000):
            rng = random.Random(f"{seed}/{number}")
            with Peer(bus.port) as peer:
                for piece in pieces(rng, mutate(rng, pool)):
                    if not peer.send(piece):
                        break
                    if rng.random() < 0.2:
                        time.sleep(0.001)
            assert bus._running().poll() is None, f"seed {seed}, input {number} killed the process"
        status = Path(f"/proc/{bus.pid}/status").read_text()
        resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
        assert resident < 400_000
