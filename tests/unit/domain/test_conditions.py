"""The table of AMQP conditions is complete, and its columns agree with each other."""

from __future__ import annotations

import pytest
from azure.servicebus._common import constants
from azure.servicebus._pyamqp.error import ErrorCondition

from pairbus.domain.conditions import (
    CONDITIONS,
    CREDENTIAL_CONDITIONS,
    ENTITY_CONDITIONS,
    MAX_UNKNOWN_DELIVERIES,
    MESSAGE_CONDITIONS,
    Meaning,
    Refusal,
    refusal_of,
)
from pairbus.localbus import bus_errors

OF_THE_SDK = {
    *(condition.value.decode() for condition in ErrorCondition),
    *(value.decode() for name, value in vars(constants).items() if name.startswith("ERROR_CODE_")),
}
#: Conditions that no sender gets from a destination: those of receivers, and those that the SDK makes up by itself.
UNKNOWN_TO_THE_SYPHON = {
    "com.microsoft:message-lock-lost", "com.microsoft:session-lock-lost",
    "amqp:unknown-error", "amqp:vendor-error", "amqp:client-error", "amqp:socket-error",
}  # fmt: skip


def test_every_condition_of_the_sdk_has_a_row() -> None:
    """AMQP's conditions as the SDK lists them, and the SDK's own codes."""
    assert len(OF_THE_SDK) >= 40
    assert set(CONDITIONS) >= OF_THE_SDK


def test_every_condition_of_localbus_has_a_row() -> None:
    """Except the condition with which a client dead-letters, which no service sends."""
    assert set(bus_errors.STATUS) - set(CONDITIONS) <= {bus_errors.DEAD_LETTER}


def test_a_condition_is_unknown_to_the_syphon_only_by_intent() -> None:
    """Every other row says whether the message waits."""
    unknown = {name for name, condition in CONDITIONS.items() if condition.for_message is Refusal.UNKNOWN}
    assert unknown == UNKNOWN_TO_THE_SYPHON


@pytest.mark.parametrize("condition", sorted(CONDITIONS))
def test_a_message_parked_for_a_condition_is_never_dead_lettered_for_it(condition: str) -> None:
    """A message waits for whatever the sender would park it for, and for a busy service."""
    row = CONDITIONS[condition]
    assert row.for_sender is Meaning.CONFIGURATION or row.for_message is not Refusal.DEAD_LETTER
    assert refusal_of(condition) is row.for_message


@pytest.mark.parametrize(
    ("condition", "meaning", "refusal"),
    [
        ("com.microsoft:server-busy", Meaning.BUSY, Refusal.HOLD),
        ("com.microsoft:timeout", Meaning.OUTAGE, Refusal.HOLD),
        ("amqp:internal-error", Meaning.OUTAGE, Refusal.HOLD),
        ("amqp:link:detach-forced", Meaning.OUTAGE, Refusal.HOLD),
        ("amqp:resource-limit-exceeded", Meaning.CONFIGURATION, Refusal.HOLD),
        ("amqp:resource-locked", Meaning.CONFIGURATION, Refusal.HOLD),
        ("amqp:unauthorized-access", Meaning.CONFIGURATION, Refusal.HOLD),
        ("com.microsoft:auth-failed", Meaning.CONFIGURATION, Refusal.HOLD),
        ("amqp:not-found", Meaning.CONFIGURATION, Refusal.DEAD_LETTER),
        ("com.microsoft:entity-disabled", Meaning.CONFIGURATION, Refusal.DEAD_LETTER),
        ("amqp:link:message-size-exceeded", Meaning.CONFIGURATION, Refusal.DEAD_LETTER),
        ("com.microsoft:message-not-found", Meaning.CONFIGURATION, Refusal.DEAD_LETTER),
    ],
)
def test_rows_of_the_contract(condition: str, meaning: Meaning, refusal: Refusal) -> None:
    """A full, busy or unreachable destination is waited for; one that is missing, and a bad message, is not."""
    assert CONDITIONS[condition][:2] == (meaning, refusal)


def test_a_refusal_without_a_condition_holds_the_message() -> None:
    """A lost connection is not the message's fault."""
    assert refusal_of(None) is Refusal.HOLD


def test_a_condition_that_is_not_in_the_table_is_unknown() -> None:
    """A message refused with one is not dead-lettered at its first delivery."""
    assert refusal_of("com.microsoft:brand-new") is Refusal.UNKNOWN
    assert MAX_UNKNOWN_DELIVERIES > 1


def test_each_subject_has_its_conditions() -> None:
    """A refused credential holds the message; a refused entity or message does not, and neither is the other."""
    assert {"amqp:unauthorized-access", "com.microsoft:auth-failed", "com.microsoft:publisher-revoked"} == (
        CREDENTIAL_CONDITIONS
    )
    assert {
        "amqp:not-found", "amqp:resource-deleted", "com.microsoft:relay-not-found", "com.microsoft:entity-disabled"
    } == ENTITY_CONDITIONS  # fmt: skip
    assert {
        "amqp:link:message-size-exceeded", "amqp:decode-error", "amqp:invalid-field", "amqp:not-allowed",
        "amqp:not-implemented", "amqp:precondition-failed", "com.microsoft:precondition-failed",
        "com.microsoft:argument-error", "com.microsoft:argument-out-of-range",
    } == MESSAGE_CONDITIONS  # fmt: skip
