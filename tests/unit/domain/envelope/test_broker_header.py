"""A head that was learned says of a message what reading the message field by field says, whatever the message is."""

from __future__ import annotations

import random

import pytest

from pairbus.domain.amqp.codec import Symbol, Timestamp, encode
from pairbus.domain.envelope import EnvelopeError, Restored, park, restore
from pairbus.domain.envelope.broker_header import BrokerHeaderCache, Facts
from pairbus.localbus.entities.message import Message, read_message
from tests.support.envelope_messages import ID, NOW, damaged, model
from tests.support.envelope_runs import message

TOKEN = b"\x07" * 16


def delivered(parked: bytes, number: int, at: float = 1000.5, until: float = 2000.25, count: int = 0) -> bytes:
    """The parked message as localbus delivers it, for the first time or again."""
    draft = read_message(parked)
    made = Message(number, number, at, draft)
    made.delivery_count = count
    return made.delivered(draft.payload, TOKEN, until)


def read(raw: bytes, cache: BrokerHeaderCache) -> Restored | str:
    try:
        return restore(raw, NOW, cache)
    except EnvelopeError as error:
        return str(error)


def test_the_numbers_of_a_known_head_are_read_from_each_message() -> None:
    cache = BrokerHeaderCache()
    parked = park(message(), "orders", ID)
    first = delivered(parked, 1)
    assert cache.read(first) is None
    restore(first, NOW, cache)
    other = delivered(parked, 2**40, 3000.001, 4000.5)
    assert cache.read(other) == (Facts(2**40, 3_000_001, 4_000_500, 0), other.index(b"\x00\x53\x73"))
    assert restore(other, NOW, cache) == restore(other, NOW, BrokerHeaderCache())


def test_a_delivery_count_is_part_of_the_head() -> None:
    cache = BrokerHeaderCache()
    parked = park(message(), "orders", ID)
    counts = [0, 1, 2, 255, 256, 70_000] * 2
    assert [restore(delivered(parked, 5, count=count), NOW, cache).facts.delivery_count for count in counts] == counts


@pytest.mark.parametrize("annotation", ["x-opt-partition-key", "x-mine", "x-opt-scheduled-enqueue-time"])
def test_an_annotation_of_the_sender_is_never_taken_for_the_brokers(annotation: str) -> None:
    cache = BrokerHeaderCache()
    plain = park(message(), "orders", ID)
    restore(delivered(plain, 1), NOW, cache)
    mine = message(annotations=encode({Symbol(annotation): Timestamp(NOW) if "time" in annotation else "k"}))
    for _ in range(2):  # it is not learned either
        back = restore(delivered(park(mine, "orders", ID), 2), NOW, cache)
        assert back.message == mine
        assert back.has_partition_key is (annotation == "x-opt-partition-key")
    assert restore(delivered(plain, 3), NOW, cache).message == message()


def test_a_partition_key_in_the_body_is_no_partition_key() -> None:
    parked = park(message(application=encode({"about": "x-opt-partition-key"})), "orders", ID)
    assert not restore(delivered(parked, 1), NOW, BrokerHeaderCache()).has_partition_key


@pytest.mark.parametrize("seed", range(6))
def test_any_message_is_read_the_same_with_and_without_a_known_head(seed: int) -> None:
    """Also one that was damaged on the way, in its head above all."""
    rng = random.Random(seed)
    cache, used = BrokerHeaderCache(), 0
    for _ in range(300):
        parked = park(model(rng).encoded(), "orders", ID)
        raw = delivered(parked, rng.randrange(2**50), rng.random() * 1e9, rng.random() * 1e9, rng.choice((0, 0, 1)))
        for each in (raw, damaged(rng, raw), damaged(rng, raw[:150]) + raw[150:]):
            used += cache.read(each) is not None
            assert read(each, cache) == read(each, BrokerHeaderCache())
    assert used > 100


def test_more_heads_than_are_worth_it_are_not_kept() -> None:
    cache = BrokerHeaderCache()
    parked = park(message(), "orders", ID)
    for count in range(1, 400):
        raw = delivered(parked, count, count=count)
        assert restore(raw, NOW, cache).facts == Facts(count, 1_000_500, 2_000_250, count)
    assert len(cache) <= 64
