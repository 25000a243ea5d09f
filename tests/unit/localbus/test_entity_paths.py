"""Paths of entities: those of the management API, and those that faults apply to."""

from __future__ import annotations

import pytest

from pairbus.localbus.addresses import EntityPath, parse_address
from pairbus.localbus.faults.faults import covers


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("orders", EntityPath("orders")),
        ("/a/b/", EntityPath("a/b")),
        ("news/Subscriptions", EntityPath("news", listing="Subscriptions")),
        ("a/b/subscriptions/mail", EntityPath("a/b", "mail")),
        ("news/Subscriptions/mail/rules", EntityPath("news", "mail", listing="Rules")),
        ("a/news/SUBSCRIPTIONS/mail/Rules/r", EntityPath("a/news", "mail", "r")),
        ("subscriptions", EntityPath("subscriptions")),
        ("subscriptions/mail", EntityPath("subscriptions/mail")),
        ("rules/a/b", EntityPath("rules/a/b")),
    ],
)
def test_management_paths(path: str, expected: EntityPath) -> None:
    """A path is parsed from its end, in any case, and a name may contain slashes."""
    assert EntityPath.of(path) == expected


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("orders", "orders"),
        ("orders/$management", "orders"),
        ("orders/$DeadLetterQueue", "orders/$DeadLetterQueue"),
        ("news/Subscriptions/mail/$Transfer/$DeadLetterQueue", "news/Subscriptions/mail/$Transfer/$DeadLetterQueue"),
        ("hub/ConsumerGroups/g/Partitions/1", "hub"),
    ],
)
def test_paths_of_faults(address: str, expected: str) -> None:
    """A sub-queue has its own path, a partition that of its hub."""
    assert parse_address(address).full_path == expected


@pytest.mark.parametrize(
    ("path", "own"),
    [
        ("news", True),
        ("NEWS", True),
        ("news/$management", True),
        ("news/Subscriptions/mail", True),
        ("news/Subscriptions/mail/$DeadLetterQueue", True),
        ("news/Subscriptions/mail/$Transfer/$DeadLetterQueue/$management", True),
        ("news/$DeadLetterQueue", True),
        ("newspaper", False),
        ("new", False),
        ("news/archive", False),
        ("old/news", False),
        ("news/Subscriptions", False),
    ],
)
def test_a_fault_covers_the_parts_of_its_entity(path: str, own: bool) -> None:
    """It covers subscriptions, sub-queues and `$management`, but no other entity whose name begins the same."""
    assert covers("news", path) is own
