"""Backlog queues: their names, how they are made, where one differs, and the laws of the rotation."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus.management import EntityStatus, QueueProperties, ServiceBusAdministrationClient
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.domain.backlog import FOREVER, PROPERTIES, Rotation, differences, namespace_name, queue_path, unusable
from pairbus.localbus import LocalBus

# --- names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("contoso.servicebus.windows.net", "contoso"),
        ("CONTOSO.ServiceBus.Windows.NET", "contoso"),
        ("contoso.servicebus.windows.net.", "contoso"),
        ("contoso.servicebus.windows.net:5671", "contoso"),
        ("contoso.servicebus.windows.net.:5671", "contoso"),
        (" contoso.servicebus.windows.net ", "contoso"),
        ("contoso-eu-2.servicebus.chinacloudapi.cn", "contoso-eu-2"),
        ("contoso", "contoso"),
        ("contoso:5671", "contoso"),
        ("localhost-7.example", "localhost-7"),
        ("10.servicebus.windows.net", "10"),
    ],
)
def test_the_namespace_is_the_first_label_of_its_host(host: str, name: str) -> None:
    """Lower-cased, whatever port or dot follows it."""
    assert namespace_name(host) == name


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:5671",
        "127.0.0.1.",
        "127.0.0.1.:5671",
        "10.0.0.4:443",
        "::1",
        "fe80::1",
        "2001:db8::1",
        "2001:DB8::A:1",
        "[::1]",
        "[::1]:5671",
        "[2001:db8::1]:5671",
        "localhost",
        "LOCALHOST",
        "localhost.",
        "localhost:5671",
        "localhost.localdomain",
        "",
        ".",
        ":5671",
    ],
)
def test_an_address_or_localhost_names_no_namespace(host: str) -> None:
    """Nothing is made up where the host says no name."""
    assert namespace_name(host) is None


@settings(deadline=None)
@given(st.ip_addresses(), st.none() | st.integers(1, 65535))
def test_no_address_names_a_namespace(address: Any, port: int | None) -> None:
    """Every IPv4 and IPv6 address, bare, in brackets and with a port."""
    text = str(address)
    forms = {text} if port is None else {f"{text}:{port}"} if address.version == 4 else set()
    if address.version == 6:
        forms = {text, f"[{text}]"} if port is None else {f"[{text}]:{port}"}
    assert {namespace_name(form) for form in forms} == {None}


def test_the_path_of_a_backlog_queue() -> None:
    """`<primary namespace>/x-servicebus-transfer/<index>`, with no leading zeros."""
    name = namespace_name("contoso.servicebus.windows.net")
    assert name is not None
    assert queue_path(name, 0) == "contoso/x-servicebus-transfer/0"
    assert queue_path(name, 42) == "contoso/x-servicebus-transfer/42"


# --- properties --------------------------------------------------------------------------------------------------

#: The longest durations as the administration client may say them: a timedelta knows microseconds, the service 100 ns.
NEVER = [
    FOREVER,
    timedelta(days=10675199, hours=2, minutes=48, seconds=5, microseconds=477581),
    timedelta(days=10675199, hours=2, minutes=48, seconds=5, microseconds=477580),
    timedelta.max,
]


def test_the_seven_properties() -> None:
    """Exactly those of the original, by the administration client's names."""
    assert dict(PROPERTIES) == {
        "max_size_in_megabytes": 5120,
        "max_delivery_count": 2147483647,
        "default_message_time_to_live": "P10675199DT2H48M5.4775807S",
        "auto_delete_on_idle": "P10675199DT2H48M5.4775807S",
        "lock_duration": timedelta(minutes=1),
        "dead_lettering_on_message_expiration": True,
        "enable_batched_operations": True,
    }


def test_nobody_can_change_the_properties() -> None:
    """They are read-only: one pairing cannot spoil the next."""
    with pytest.raises(TypeError):
        PROPERTIES["max_size_in_megabytes"] = 1024


@pytest.mark.parametrize("never", NEVER, ids=str)
def test_a_queue_as_pairbus_makes_them_differs_in_nothing(never: Any) -> None:
    """Every form of "for ever" that the administration client knows is the service's maximum."""
    found = {**PROPERTIES, "default_message_time_to_live": never, "auto_delete_on_idle": never}
    assert differences(found) == {}


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("max_size_in_megabytes", 1024),
        ("max_size_in_megabytes", 81920),
        ("max_delivery_count", 10),
        ("default_message_time_to_live", timedelta(days=14)),
        ("default_message_time_to_live", timedelta(days=10675198, hours=23)),
        ("default_message_time_to_live", "P14D"),
        ("auto_delete_on_idle", timedelta(minutes=5)),
        ("lock_duration", timedelta(seconds=30)),
        ("lock_duration", timedelta(minutes=5)),
        ("dead_lettering_on_message_expiration", False),
        ("enable_batched_operations", False),
        *((name, None) for name in PROPERTIES),
    ],
)
def test_each_property_that_differs_is_told(name: str, other: Any) -> None:
    """By its name, with what it is and what pairbus would have made it; no other property is named."""
    assert differences({**PROPERTIES, name: other}) == {name: (other, PROPERTIES[name])}


@settings(deadline=None)
@given(st.sets(st.sampled_from(sorted(PROPERTIES))))
def test_differences_are_told_property_by_property(missing: set[str]) -> None:
    """However many there are, each is there once; a property without a value is a difference."""
    found = {name: value for name, value in PROPERTIES.items() if name not in missing}
    assert differences(found) == {name: (None, PROPERTIES[name]) for name in missing}


def test_other_properties_are_no_difference() -> None:
    """Other properties keep the service's default; one that makes a queue unusable is no difference."""
    assert differences({**PROPERTIES, "enable_partitioning": True, "user_metadata": "ours"}) == {}
    assert differences({**PROPERTIES, "requires_session": True, "status": "Active"}) == {}


@pytest.mark.parametrize("status", ["Disabled", "SendDisabled", "ReceiveDisabled", EntityStatus.DISABLED])
def test_a_queue_that_is_not_active_differs(status: str) -> None:
    """An operator who disabled it may enable it again: it is a difference, and the queue is used."""
    assert differences({**PROPERTIES, "status": status}) == {"status": (status, "Active")}
    assert unusable({**PROPERTIES, "status": status}) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("requires_duplicate_detection", True), ("requires_session", True), ("forward_to", "sb://x/elsewhere")],
)
def test_what_would_lose_parked_messages_makes_a_queue_unusable(name: str, value: Any) -> None:
    """The reason names the property, its value and what would be right; without it nothing is wrong."""
    why = unusable({**PROPERTIES, name: value})
    assert why is not None
    assert f"its {name} is {value!r} and must " in why
    for harmless in (None, False, ""):
        assert unusable({**PROPERTIES, name: harmless}) is None
    assert unusable(PROPERTIES) is None


def described(queue: QueueProperties) -> dict[str, Any]:
    return {each: getattr(queue, each) for each in PROPERTIES}


@pytest.fixture(scope="module")
def made() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """A backlog queue and a plain one, in a real namespace: as the create and as a later look tell them."""
    path = queue_path("contoso", 0)
    with (
        LocalBus() as bus,
        ServiceBusAdministrationClient.from_connection_string(
            bus.connection_string, connection_verify=bus.ca_file
        ) as client,
    ):
        told = {path: client.create_queue(path, **PROPERTIES), "plain": client.create_queue("plain")}
        return {name: (described(queue), described(client.get_queue(name))) for name, queue in told.items()}


def test_what_the_administration_client_tells_of_a_made_queue_differs_in_nothing(made: dict[str, Any]) -> None:
    """The real SDK against a real namespace: a queue made with the seven properties is found to have them."""
    created, looked = made["contoso/x-servicebus-transfer/0"]
    assert differences(created) == {}
    assert differences(looked) == {}


def test_what_the_administration_client_tells_of_a_plain_queue_differs(made: dict[str, Any]) -> None:
    """The service's defaults are three properties away; its "for ever" is ours."""
    expected = {
        "max_size_in_megabytes": (1024, 5120),
        "max_delivery_count": (10, 2147483647),
        "dead_lettering_on_message_expiration": (False, True),
    }
    assert [differences(told) for told in made["plain"]] == [expected, expected]


# --- rotation ----------------------------------------------------------------------------------------------------

AWAY = 60.0
QUEUES = [queue_path("contoso", index) for index in range(10)]


@st.composite
def stories(draw: st.DrawFn) -> tuple[int, int, list[tuple[str, int, int]]]:
    """Draw a number of queues, a seed, and the senders' events: (kind, queue, seconds later)."""
    count = draw(st.integers(1, 5))
    deed = st.tuples(st.sampled_from(["leave", "took", "pick"]), st.integers(0, count - 1), st.integers(0, 40))
    return count, draw(st.integers(0, 2**16)), draw(st.lists(deed, max_size=30))


@settings(deadline=None)
@given(stories())
def test_the_rotation_keeps_the_books(story: tuple[int, int, list[tuple[str, int, int]]]) -> None:
    """Against books kept by hand: a queue is out from its refusal for as long as agreed, for everybody, unless it
    takes a send before; a pick is the current queue while that is in, else one that is, else none."""
    count, seed, deeds = story
    queues = QUEUES[:count]
    rotation = Rotation(queues, AWAY, random.Random(seed).choice)
    back_at: dict[str, float] = {}
    refused: set[str] = set()
    now = 0.0
    for what, index, pause in deeds:
        now += pause
        queue = queues[index]
        inside = [each for each in queues if back_at.get(each, now) <= now]
        if what == "leave":
            assert rotation.leave(queue, now, f"refused at {now}") is (queue in inside)
            back_at[queue] = now + AWAY
            refused.add(queue)
        elif what == "took":
            assert rotation.took(queue) is (queue in refused)
            back_at.pop(queue, None)
            refused.discard(queue)
        else:
            picked = rotation.pick(queue, now)
            if queue in inside:
                assert picked == queue
            else:
                assert picked in inside if inside else picked is None
        for each in queues:
            absence = rotation.absence(each, now)
            assert (absence is None) is (back_at.get(each, now) <= now)
            assert absence is None or absence.until == back_at[each]
        assert set(rotation.reasons()) == refused


@settings(deadline=None)
@given(st.integers(1, 10), st.integers(0, 2**16), st.lists(st.integers(0, 10**6), max_size=10))
def test_a_sender_stays_with_its_queue_while_it_is_in(count: int, seed: int, times: list[int]) -> None:
    """Sticky: nothing but its leaving takes a sender away from its queue, time least of all."""
    rotation = Rotation(QUEUES[:count], AWAY, random.Random(seed).choice)
    mine = rotation.pick(None, 0.0)
    assert mine in QUEUES[:count]
    for now in sorted(times):
        assert rotation.pick(mine, now) == mine
        for other in set(QUEUES[:count]) - {mine}:
            rotation.leave(other, now, "full")
        assert rotation.pick(mine, now) == mine


@settings(deadline=None)
@given(
    st.integers(1, 6),
    st.sets(st.integers(0, 5)),
    st.sets(st.integers(0, 5)),
    st.none() | st.integers(0, 5),
    st.integers(0, 2**16),
)
def test_what_was_tried_is_not_picked(
    count: int, away: set[int], tried: set[int], current: int | None, seed: int
) -> None:
    """`without` goes before everything, the current queue included; also as an iterator that can be read once."""
    queues = QUEUES[:count]
    rotation = Rotation(queues, AWAY, random.Random(seed).choice)
    for index in away:
        if index < count:
            rotation.leave(queues[index], 0.0, "full")
    left = [queue for index, queue in enumerate(queues) if index not in away | tried]
    mine = None if current is None or current >= count else queues[current]
    without = [QUEUES[index] for index in tried]
    for given_as in (without, set(without), iter(without), (each for each in without)):
        picked = rotation.pick(mine, 1.0, given_as)
        if mine in left:
            assert picked == mine
        else:
            assert picked in left if left else picked is None


def test_senders_spread_over_all_queues() -> None:
    """10,000 senders that do not know each other: each of ten queues gets a tenth of them, give or take a tenth."""
    rotation = Rotation(QUEUES, AWAY, random.Random(2026).choice)
    picks = Counter(rotation.pick(None, 0.0) for _ in range(10_000))
    assert set(picks) == set(QUEUES)
    assert all(900 <= count <= 1100 for count in picks.values())


def test_by_itself_a_rotation_picks_at_random() -> None:
    """Without a chooser of the caller's the standard one is used: 200 picks of ten queues are not all the same."""
    rotation = Rotation(QUEUES, AWAY)
    assert len({rotation.pick(None, 0.0) for _ in range(200)}) > 1


def test_a_program_that_seeds_the_generator_does_not_choose_the_queue() -> None:
    """`random.seed(42)` in all clients: they spread over the queues all the same."""
    rotation = Rotation(QUEUES, AWAY)
    before, picks = random.getstate(), set()
    try:
        for _ in range(200):
            random.seed(42)
            picks.add(rotation.pick(None, 0.0))
    finally:
        random.setstate(before)
    assert len(picks) > 1


def test_the_senders_of_a_queue_that_left_spread_again() -> None:
    """They do not all go on to the next one, which would be the next to break."""
    rotation = Rotation(QUEUES, AWAY, random.Random(2026).choice)
    rotation.leave(QUEUES[3], 0.0, "full")
    picks = Counter(rotation.pick(QUEUES[3], 1.0) for _ in range(9_000))
    assert set(picks) == {*QUEUES} - {QUEUES[3]}
    assert all(900 <= count <= 1100 for count in picks.values())


def test_the_chooser_sees_what_is_left_in_order() -> None:
    """It is called only if there is a choice, and only with queues that are in the rotation."""
    asked: list[Sequence[str]] = []

    def first(queues: Sequence[str]) -> str:
        asked.append(list(queues))
        return queues[0]

    rotation = Rotation(QUEUES[:3], AWAY, first)
    assert rotation.pick(QUEUES[1], 0.0) == QUEUES[1]
    assert asked == []
    rotation.leave(QUEUES[1], 0.0, "full")
    assert rotation.pick(QUEUES[1], 0.0) == QUEUES[0]
    assert asked == [[QUEUES[0], QUEUES[2]]]


def test_a_queue_leaves_for_all_senders() -> None:
    """One sender's refusal moves all others; only the first `leave` returns True."""
    rotation = Rotation(QUEUES[:2], AWAY)
    assert rotation.leave(QUEUES[0], 100.0, "quota") is True
    assert rotation.leave(QUEUES[0], 101.0, "quota") is False
    assert {rotation.pick(current, 102.0) for current in (QUEUES[0], QUEUES[1], None)} == {QUEUES[1]}


def test_a_queue_comes_back_after_the_agreed_time() -> None:
    """Not a moment before, and then it is as good as any other: its old sender may stay with it."""
    rotation = Rotation(QUEUES[:1], AWAY)
    rotation.leave(QUEUES[0], 100.0, "quota")
    assert rotation.pick(QUEUES[0], 159.999) is None
    absence = rotation.absence(QUEUES[0], 159.999)
    assert absence is not None
    assert (absence.until, absence.why) == (160.0, "quota")
    assert rotation.pick(QUEUES[0], 160.0) == QUEUES[0]
    assert rotation.absence(QUEUES[0], 160.0) is None


def test_none_left_is_none() -> None:
    """When all queues have left there is none to pick, and each has its reason."""
    rotation = Rotation(QUEUES[:2], AWAY)
    rotation.leave(QUEUES[0], 0.0, "quota")
    rotation.leave(QUEUES[1], 1.0, "disabled")
    assert rotation.pick(None, 2.0) is None
    assert rotation.pick(QUEUES[0], 2.0) is None
    assert rotation.reasons() == {QUEUES[0]: "quota", QUEUES[1]: "disabled"}


def test_what_a_queue_said_is_known_until_it_takes_a_send() -> None:
    """A queue that is tried again and has not yet proved well still has its reason; one that took a send has none."""
    rotation = Rotation(QUEUES[:2], AWAY)
    rotation.leave(QUEUES[0], 0.0, "quota")
    assert rotation.pick(QUEUES[0], AWAY) == QUEUES[0]
    assert rotation.reasons() == {QUEUES[0]: "quota"}
    assert rotation.took(QUEUES[0]) is True
    assert rotation.took(QUEUES[0]) is False
    assert rotation.reasons() == {}


def test_a_queue_that_refuses_again_is_away_again() -> None:
    """Each refusal counts from its own time and gives its own reason."""
    rotation = Rotation(QUEUES[:1], AWAY)
    rotation.leave(QUEUES[0], 0.0, "quota")
    assert rotation.leave(QUEUES[0], AWAY, "disabled") is True
    absence = rotation.absence(QUEUES[0], AWAY)
    assert absence is not None
    assert (absence.until, absence.why) == (2 * AWAY, "disabled")


def test_a_rotation_needs_a_queue() -> None:
    """An empty set of backlog queues is refused where it would be used, too."""
    with pytest.raises(ValueError, match="at least one queue"):
        Rotation([], AWAY)


def test_the_queues_of_a_rotation_are_its_own() -> None:
    """The caller's list may change afterwards."""
    mine = QUEUES[:2]
    rotation = Rotation(mine, AWAY)
    mine.clear()
    assert rotation.queues == tuple(QUEUES[:2])
