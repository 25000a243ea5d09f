"""The settings of entities: the service's limits at their edges."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pairbus.localbus.bus_errors import INVALID_FIELD, BusError
from pairbus.localbus.settings import (
    FOREVER,
    HubSettings,
    QueueSettings,
    RuleSettings,
    TopicSettings,
    check_path,
    check_subscription_name,
)

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    "changes",
    [
        {"lock_duration": SECOND},
        {"lock_duration": 5 * MINUTE},
        {"max_delivery_count": 1},
        {"max_delivery_count": 2147483647},
        {"default_message_time_to_live": SECOND},
        {"default_message_time_to_live": FOREVER},
        {"auto_delete_on_idle": 5 * MINUTE},
        {"duplicate_detection_history_time_window": SECOND},
        {"duplicate_detection_history_time_window": timedelta(days=7)},
        {"max_size_in_megabytes": 1},
        {"max_size_in_megabytes": 81920},
        {"max_message_size_in_kilobytes": 102_400},
        {"user_metadata": "x" * 1024},
        {"status": "ReceiveDisabled"},
    ],
    ids=str,
)
def test_values_at_the_limits_are_accepted(changes: dict[str, Any]) -> None:
    """A changed copy has the value."""
    changed = QueueSettings("q").changed(**changes)
    assert {name: getattr(changed, name) for name in changes} == changes


@pytest.mark.parametrize(
    "changes",
    [
        {"lock_duration": SECOND * 0.999},
        {"lock_duration": 5 * MINUTE + SECOND},
        {"max_delivery_count": 0},
        {"max_delivery_count": 2147483648},
        {"default_message_time_to_live": SECOND * 0.999},
        {"auto_delete_on_idle": 5 * MINUTE - SECOND},
        {"duplicate_detection_history_time_window": timedelta(days=7, seconds=1)},
        {"max_size_in_megabytes": 0},
        {"max_size_in_megabytes": 81921},
        {"max_message_size_in_kilobytes": 0},
        {"max_message_size_in_kilobytes": 102_401},
        {"user_metadata": "x" * 1025},
        {"status": "Asleep"},
        {"enable_express": True, "requires_duplicate_detection": True},
    ],
    ids=str,
)
def test_values_beyond_the_limits_are_refused(changes: dict[str, Any]) -> None:
    """A new entity is refused, and so is a changed copy; topics have the same limits where they have the setting."""
    kinds: list[type[Any]] = [QueueSettings]
    if not {"lock_duration", "max_delivery_count"} & set(changes):
        kinds.append(TopicSettings)
    for kind in kinds:
        with pytest.raises(BusError) as refused:
            kind("e", **changes)
        assert refused.value.condition == INVALID_FIELD
        with pytest.raises(BusError):
            kind("e").changed(**changes)


@pytest.mark.parametrize("path", ["q", "a/b/c", "x" * 260, "A-b_c.d~e1", "a$b"])
def test_paths_of_the_service_are_accepted(path: str) -> None:
    """Letters, digits and `-._~/$` are allowed, up to 260 of them."""
    assert check_path(path) == path


@pytest.mark.parametrize("path", ["", "x" * 261, "/a", "a/", ".a", "a.", "a//b", "a b", "a?b", "$a", "a/$b"])
def test_other_paths_are_refused(path: str) -> None:
    """A path needs a length, and no slash or dot at its ends, no empty part, no `$` at the start of one."""
    with pytest.raises(BusError, match="the entity path"):
        check_path(path)


def test_names_of_subscriptions_rules_and_hubs_have_limits() -> None:
    """Names of 50 characters are accepted, longer ones refused; a hub has 1 to 1024 partitions."""
    check_subscription_name("s" * 50)
    RuleSettings("r" * 50)
    HubSettings("h", 1)
    HubSettings("h", 1024)
    for refused in (
        lambda: check_subscription_name("s" * 51),
        lambda: check_subscription_name("a/b"),
        lambda: RuleSettings("r" * 51),
        lambda: RuleSettings(""),
        lambda: RuleSettings("a#b"),
        lambda: HubSettings("h", 0),
        lambda: HubSettings("h", 1025),
    ):
        with pytest.raises(BusError):
            refused()


def test_authorization_rules_are_not_shown() -> None:
    """The repr of settings does not contain the keys."""
    rules = ({"key_name": "k", "primary_key": "c2VjcmV0"},)
    assert "c2VjcmV0" not in repr(QueueSettings("q", authorization_rules=rules))
    assert "c2VjcmV0" not in repr(TopicSettings("t", authorization_rules=rules))
