"""The meaning of azure-eventhub's errors: every class has a row, and the AMQP error inside decides first."""

from __future__ import annotations

import inspect
import subprocess
import sys
from types import SimpleNamespace

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.eventhub import exceptions as sdk
from azure.eventhub._pyamqp import error as amqp
from azure.eventhub._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus import exceptions as service_bus

from pairbus.domain.conditions import CONDITIONS, Meaning
from pairbus.sending.sdk.classification import (
    HUB_CLASSES,
    amqp_condition,
    is_timeout,
    may_be_stale,
    meaning_of,
    status_of,
)

OUTAGE, BUSY, CONFIGURATION = Meaning.OUTAGE, Meaning.BUSY, Meaning.CONFIGURATION
EXPORTED = [
    found
    for _, found in inspect.getmembers(sdk, inspect.isclass)
    if issubclass(found, Exception) and found.__module__ == sdk.__name__
]
OF_THE_SDK = [condition.value.decode() for condition in amqp.ErrorCondition]
VENDOR = ["com.microsoft:server-busy", "com.microsoft:timeout", "com.microsoft:entity-disabled"]


def raised(error: Exception) -> Exception:
    """Return the error that azure-eventhub raises for one of its engine: while that is handled, without a cause."""
    producer = SimpleNamespace(_name="p", _close_connection=lambda: None, _close_handler=lambda: None)
    try:
        try:
            raise error
        except Exception as inner:
            raise PyamqpTransport._handle_exception(inner, producer) from None
    except sdk.EventHubError as made:
        return made


def test_the_table_has_every_class_that_the_sdk_exports() -> None:
    """Each by itself, and none that is not there: a new one must be decided on."""
    assert {kind.__name__ for kind in EXPORTED} == set(HUB_CLASSES)
    assert len(EXPORTED) >= 9


@pytest.mark.parametrize("kind", EXPORTED, ids=lambda kind: kind.__name__)
def test_a_bare_error_means_what_its_row_says(kind: type[Exception]) -> None:
    """With nothing behind it the class decides."""
    assert meaning_of(kind("what happened")) is HUB_CLASSES[kind.__name__]


@pytest.mark.parametrize("condition", [*OF_THE_SDK, *VENDOR])
@pytest.mark.parametrize(
    "kind", [amqp.AMQPLinkError, amqp.AMQPConnectionError, amqp.AMQPSessionError, amqp.MessageException]
)
def test_the_condition_behind_an_error_decides(kind: type[amqp.AMQPException], condition: str) -> None:
    """Whatever class the SDK gives it: it is read from what the error came from, not from the text."""
    made = raised(kind(condition.encode(), description="amqp:not-found com.microsoft:server-busy Status code: 404"))
    assert isinstance(made, sdk.EventHubError)
    assert amqp_condition(made) == condition
    assert meaning_of(made) is CONDITIONS[condition].for_sender


def test_an_error_that_is_raised_again_keeps_its_meaning() -> None:
    """A sender keeps what is behind an error; what Python puts into its context later does not count."""
    made = raised(amqp.AMQPLinkError(b"com.microsoft:server-busy"))
    made.inner_exception = made.__context__  # type: ignore[attr-defined]
    made.__context__ = raised(amqp.AMQPLinkError(b"amqp:not-found"))
    assert amqp_condition(made) == "com.microsoft:server-busy"
    assert meaning_of(made) is BUSY


@pytest.mark.parametrize(
    ("status", "meaning"),
    [(401, CONFIGURATION), (403, CONFIGURATION), (404, CONFIGURATION), (408, OUTAGE), (429, BUSY), (500, OUTAGE)],
)
def test_the_status_of_a_refused_token_decides(status: int, meaning: Meaning) -> None:
    """Refused is configuration; a service that cannot answer is an outage."""
    made = raised(amqp.TokenAuthFailure(status, "described"))
    assert isinstance(made, sdk.AuthenticationError)
    assert status_of(made) == status
    assert meaning_of(made) is meaning
    assert may_be_stale(made)


@pytest.mark.parametrize(
    ("inner", "meaning"),
    [
        (amqp.TokenAuthFailure(None, None), CONFIGURATION),
        (amqp.TokenAuthFailure(0, "Auth message has been rejected."), OUTAGE),
        (amqp.AuthenticationException(amqp.ErrorCondition.InternalError, description="timeout"), OUTAGE),
        (amqp.TokenExpired(amqp.ErrorCondition.InternalError, description="expired"), OUTAGE),
    ],
    ids=["refused", "rejected", "no answer", "expired"],
)
def test_other_failures_of_authentication_are_as_in_service_bus(inner: Exception, meaning: Meaning) -> None:
    """A refusal without a status is one; no answer to a token is an outage."""
    assert meaning_of(raised(inner)) is meaning


@pytest.mark.parametrize(
    ("inner", "meaning"),
    [
        (TypeError("cannot be encoded"), CONFIGURATION),
        (ConnectionResetError(104, "reset"), OUTAGE),
        (ClientAuthenticationError(message="no token"), CONFIGURATION),
        (KeyError("a mistake"), CONFIGURATION),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_generic_error_means_what_is_inside(inner: Exception, meaning: Meaning) -> None:
    """The SDK wraps whatever it does not know."""
    made = raised(inner)
    assert type(made) is sdk.EventHubError
    assert meaning_of(made) is meaning


def test_a_lost_time_out_is_an_outage() -> None:
    """No answer in time, as the SDK raises it and as a connection does."""
    assert meaning_of(raised(TimeoutError("no answer"))) is OUTAGE
    assert is_timeout(sdk.OperationTimeoutError("no answer"))
    assert is_timeout(service_bus.OperationTimeoutError(message="no answer"))
    assert not is_timeout(sdk.ConnectionLostError("lost"))


def test_a_class_of_that_name_elsewhere_is_not_meant() -> None:
    """Only azure-eventhub's own are in the table."""

    class ConnectError(Exception):
        pass

    assert meaning_of(ConnectError()) is CONFIGURATION
    assert not is_timeout(type("OperationTimeoutError", (Exception,), {})())


def test_the_context_of_other_errors_is_not_read() -> None:
    """Service Bus's errors say themselves what is behind them."""
    made = service_bus.ServiceBusConnectionError(message="lost")
    made.__context__ = amqp.AMQPLinkError(b"amqp:not-found")
    assert amqp_condition(made) is None
    assert meaning_of(made) is OUTAGE


def test_the_table_needs_no_azure_eventhub() -> None:
    """A service that only sends to queues loads nothing of it, and can classify."""
    code = (
        "import sys; from pairbus import *; from pairbus.sending.sdk.classification import meaning_of;"
        "meaning_of(OSError());"
        "sys.exit(any(name.startswith('azure.eventhub') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
