"""The meaning of errors: complete tables, read by class, condition and status, never by text."""

from __future__ import annotations

import errno
import inspect
import logging
import ssl
import struct
from collections.abc import Callable
from itertools import pairwise

import pytest
from azure.core import exceptions as core
from azure.identity import CredentialUnavailableError
from azure.servicebus import exceptions as sdk
from azure.servicebus._common import constants
from azure.servicebus._pyamqp import error as amqp
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

from pairbus.domain.conditions import CONDITIONS, Meaning
from pairbus.localbus import bus_errors as localbus_conditions
from pairbus.sending.sdk.classification import (
    CLASSES,
    amqp_condition,
    at_opening,
    has_no_credential,
    is_shortage,
    meaning_of,
    status_of,
)

OUTAGE, BUSY, CONFIGURATION = Meaning.OUTAGE, Meaning.BUSY, Meaning.CONFIGURATION

EXPORTED = [
    found
    for _, found in inspect.getmembers(sdk, inspect.isclass)
    if issubclass(found, Exception) and found.__module__ == sdk.__name__
]
#: Those that the service answers sends, links and settlements with, as far as we know.
SERVICE = [
    "com.microsoft:timeout", "com.microsoft:server-busy", "com.microsoft:entity-disabled",
    "com.microsoft:message-lock-lost", "com.microsoft:session-lock-lost", "com.microsoft:auth-failed",
    "com.microsoft:message-not-found", "com.microsoft:session-cannot-be-locked", "com.microsoft:argument-error",
    "com.microsoft:argument-out-of-range", "com.microsoft:entity-already-exists", "com.microsoft:operation-cancelled",
    "amqp:not-found", "amqp:unauthorized-access", "amqp:resource-limit-exceeded", "amqp:internal-error",
    "amqp:link:message-size-exceeded", "amqp:link:detach-forced", "amqp:not-implemented",
]  # fmt: skip
OF_THE_SDK = [condition.value.decode() for condition in amqp.ErrorCondition]
CODES = [value.decode() for name, value in vars(constants).items() if name.startswith("ERROR_CODE_")]


def translated(error: Exception, **options: str) -> Exception:
    """Return the error that the SDK raises for one of its engine."""
    silent = logging.getLogger("tests.silent")
    silent.propagate = False
    silent.disabled = True
    return PyamqpTransport.create_servicebus_exception(silent, error, **options)


# --- complete ------------------------------------------------------------------------------------------------------


def test_the_sdk_exports_what_we_think() -> None:
    """The list below is not empty for a wrong reason."""
    assert len(EXPORTED) >= 18
    assert sdk.ServiceBusServerBusyError in EXPORTED
    assert len(OF_THE_SDK) >= 28
    assert len(CODES) >= 12


@pytest.mark.parametrize("kind", EXPORTED, ids=lambda kind: kind.__name__)
def test_every_class_of_the_sdk_is_in_the_table(kind: type[Exception]) -> None:
    """By itself, not only through a base class: a new one must be decided on."""
    assert kind in CLASSES


@pytest.mark.parametrize("condition", sorted({*SERVICE, *OF_THE_SDK, *CODES}))
def test_every_condition_is_in_the_table(condition: str) -> None:
    """Those of the service, of AMQP as the SDK lists them, and the SDK's own codes."""
    assert condition in CONDITIONS


def test_every_condition_of_localbus_is_in_the_table() -> None:
    """Every condition that localbus answers with has a row, but for the one that only clients use."""
    assert set(localbus_conditions.STATUS) - set(CONDITIONS) <= {localbus_conditions.DEAD_LETTER}


def test_the_rows_of_the_contract() -> None:
    """Time-outs, lost connections and links and errors of the service count; busy waits; the rest is configuration."""
    assert {kind for kind, meaning in CLASSES.items() if meaning is BUSY} == {sdk.ServiceBusServerBusyError}
    for outage in (sdk.OperationTimeoutError, sdk.ServiceBusConnectionError, sdk.ServiceBusCommunicationError):
        assert meaning_of(outage()) is OUTAGE
    for configuration in (
        sdk.ServiceBusAuthenticationError,
        sdk.ServiceBusAuthorizationError,
        sdk.MessagingEntityNotFoundError,
        sdk.MessagingEntityDisabledError,
        sdk.MessageSizeExceededError,
        sdk.ServiceBusQuotaExceededError,
    ):
        assert meaning_of(configuration()) is CONFIGURATION
    assert meaning_of(sdk.ServiceBusServerBusyError()) is BUSY
    assert meaning_of(sdk.ServiceBusError("an error of the service")) is OUTAGE


# --- by class, condition and status, never by text -------------------------------------------------------------------

TEXTS = ("", "timed out", "server busy", "404 not found", "Unauthorized", "Handler failed: connection lost")


@pytest.mark.parametrize("kind", [kind for kind in EXPORTED if kind is not sdk.MessageAlreadySettled])
def test_the_text_of_an_error_decides_nothing(kind: Callable[..., Exception]) -> None:
    """The same class means the same whatever it says."""
    assert {meaning_of(kind(message=text)) for text in TEXTS} == {CLASSES[kind]}


@pytest.mark.parametrize("condition", sorted(CONDITIONS))
def test_the_condition_decides_before_the_class(condition: str) -> None:
    """On whatever class the SDK has put it, as text or as bytes, and whatever else is said."""
    for kind in (sdk.ServiceBusError, sdk.ServiceBusConnectionError, sdk.ServiceBusAuthenticationError):
        for given in (condition, condition.encode()):
            for text in TEXTS[:3]:
                assert meaning_of(kind(message=text, condition=given)) is CONDITIONS[condition].for_sender


@pytest.mark.parametrize("condition", sorted(CONDITIONS))
@pytest.mark.parametrize("kind", [amqp.AMQPLinkError, amqp.MessageException])
def test_a_condition_survives_the_sdks_translation(condition: str, kind: Callable[..., Exception]) -> None:
    """From the link's or the send's error to the one that the caller sees, the meaning is the condition's."""
    raised = translated(kind(condition=condition.encode(), description="Any text."))
    assert meaning_of(raised) is CONDITIONS[condition].for_sender


def test_a_condition_that_nobody_knows_is_an_error_of_the_service() -> None:
    """The service has said that it failed: that counts."""
    assert meaning_of(sdk.ServiceBusError("?", condition="com.microsoft:brand-new")) is OUTAGE


def test_a_timeout_of_the_service_keeps_its_condition() -> None:
    """The SDK raises it anew without: it is found behind the error, and told from an answer that never came."""
    answered, unanswered = sdk.OperationTimeoutError(), sdk.OperationTimeoutError()
    answered.__cause__ = sdk.OperationTimeoutError(condition=b"com.microsoft:timeout")
    unanswered.__cause__ = sdk.OperationTimeoutError()
    assert amqp_condition(answered) == "com.microsoft:timeout"
    assert amqp_condition(unanswered) is None
    assert meaning_of(answered) is meaning_of(unanswered) is OUTAGE


# --- errors without a name -------------------------------------------------------------------------------------------

INSIDE: list[tuple[Exception, Meaning]] = [
    (OSError("no route"), OUTAGE),
    (ConnectionResetError(), OUTAGE),
    (TimeoutError("Authentication attempt timed-out."), OUTAGE),
    (ssl.SSLError("handshake"), OUTAGE),
    (struct.error("argument out of range"), CONFIGURATION),
    (TypeError("Unable to encode"), CONFIGURATION),
    (ValueError("timed out"), CONFIGURATION),
    (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "connection lost"), CONFIGURATION),
    (OverflowError("int too big"), CONFIGURATION),
    (AttributeError("a slip"), CONFIGURATION),
    (core.ClientAuthenticationError("no"), CONFIGURATION),
    (CredentialUnavailableError("no credential here"), CONFIGURATION),
    (core.ServiceRequestError("Entra cannot be reached"), OUTAGE),
    (core.ServiceResponseError("Entra broke off"), OUTAGE),
]


def caused(error: Exception, *causes: Exception) -> Exception:
    """An error, raised from another, raised from another."""
    for effect, cause in pairwise((error, *causes)):
        effect.__cause__ = cause
    return error


def answered(status: int) -> Exception:
    """Return the error that azure-identity raises for an answer of Entra."""
    error = core.ClientAuthenticationError("any text")
    error.status_code = status
    return error


#: What azure-identity raises where it gets no token, and why.
CREDENTIALS: list[tuple[str, Exception, Meaning]] = [
    ("refused", core.ClientAuthenticationError("any text"), CONFIGURATION),
    ("unavailable", CredentialUnavailableError("any text"), CONFIGURATION),
    ("no program", caused(CredentialUnavailableError("any text"), FileNotFoundError("az")), CONFIGURATION),
    ("unreachable", caused(core.ClientAuthenticationError("any text"), core.ServiceRequestError("gone")), OUTAGE),
    ("broke off", caused(core.ClientAuthenticationError("any text"), core.ServiceResponseError("gone")), OUTAGE),
    ("reset", caused(core.ClientAuthenticationError("any text"), ConnectionResetError()), OUTAGE),
    (
        "unreachable behind another",
        caused(CredentialUnavailableError("?"), core.ClientAuthenticationError("?"), core.ServiceRequestError("?")),
        OUTAGE,
    ),
    ("400", answered(400), CONFIGURATION),
    ("401", answered(401), CONFIGURATION),
    ("500", answered(500), OUTAGE),
    ("503", answered(503), OUTAGE),
]


@pytest.mark.parametrize(("error", "meaning"), [row[1:] for row in CREDENTIALS], ids=[row[0] for row in CREDENTIALS])
def test_a_credential_that_is_refused_is_configuration_and_one_that_cannot_be_asked_an_outage(
    error: Exception, meaning: Meaning
) -> None:
    """Bare, as the SDK wraps it, wrapped twice, and when it happens while a link is opened."""
    wrapped = translated(error)
    twice = sdk.ServiceBusError("Handler failed", error=wrapped)
    assert type(wrapped) is sdk.ServiceBusError
    for each in (error, wrapped, twice, at_opening(wrapped), at_opening(twice)):
        assert meaning_of(each) is meaning
        assert has_no_credential(each) is (meaning is CONFIGURATION)


def test_what_the_sdk_cannot_name_is_an_outage_only_while_a_link_is_opened() -> None:
    """An answer that is no AMQP: nobody's message is to blame for it then, and no credential is."""
    error = translated(ValueError("Received invalid frame type"))
    assert meaning_of(error) is CONFIGURATION
    assert meaning_of(at_opening(error)) is OUTAGE
    assert not has_no_credential(error)


@pytest.mark.parametrize(("inside", "meaning"), INSIDE, ids=lambda value: type(value).__name__)
def test_an_error_without_a_name_means_what_is_inside(inside: Exception, meaning: Meaning) -> None:
    """As the SDK wraps it ("Handler failed"), wrapped twice, and bare."""
    wrapped = translated(inside)
    assert type(wrapped) is sdk.ServiceBusError
    assert meaning_of(wrapped) is meaning
    assert meaning_of(sdk.ServiceBusError("Handler failed", error=wrapped)) is meaning
    assert meaning_of(inside) is meaning


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS])
def test_a_want_of_this_process_is_no_outage(number: int) -> None:
    """Wherever it is: bare, or behind the SDK's errors as inner one or cause; other numbers are the network's."""
    for each, meaning in ((number, CONFIGURATION), (errno.ECONNRESET, OUTAGE)):
        bare = OSError(each, "text")
        raised = amqp.AMQPConnectionError(amqp.ErrorCondition.SocketError, description="text")
        raised.__cause__ = bare
        for error in (bare, raised, translated(bare), translated(raised), at_opening(translated(bare))):
            assert meaning_of(error) is meaning
            assert is_shortage(error) is (meaning is CONFIGURATION)


def test_what_is_unknown_is_no_outage() -> None:
    """Parking would hide a mistake in the program."""
    assert meaning_of(RuntimeError("connection lost")) is CONFIGURATION
    assert meaning_of(KeyboardInterrupt()) is CONFIGURATION


@pytest.mark.parametrize(
    ("status", "meaning"),
    [(401, CONFIGURATION), (403, CONFIGURATION), (408, OUTAGE), (429, BUSY), (500, OUTAGE), (503, OUTAGE)],
)
def test_an_answer_over_https_is_read_by_its_status(status: int, meaning: Meaning) -> None:
    """A credential that asks over https: a refusal is configuration, a failure of that service counts."""
    error = core.HttpResponseError("any text")
    error.status_code = status
    assert meaning_of(error) is meaning
    assert meaning_of(translated(error)) is meaning


# --- tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"custom_endpoint_address": "sb://127.0.0.1:5671"}], ids=["host", "endpoint"])
@pytest.mark.parametrize(
    ("failure", "meaning"),
    [
        (amqp.TokenAuthFailure(401, b"InvalidSignature"), CONFIGURATION),
        (amqp.TokenAuthFailure(404, b"not found"), CONFIGURATION),
        # The SDK drops the status of a refusal that names a condition, and sets it for every other answer.
        (amqp.TokenAuthFailure(None, None), CONFIGURATION),
        (amqp.TokenAuthFailure(429, b"slow down"), BUSY),
        (amqp.TokenAuthFailure(408, b"timeout"), OUTAGE),
        (amqp.TokenAuthFailure(500, b"failed"), OUTAGE),
        (amqp.TokenAuthFailure(503, b"failed"), OUTAGE),
        (amqp.TokenAuthFailure(0, b"Auth message has been rejected."), OUTAGE),
        (amqp.TokenAuthFailure(amqp.ErrorCondition.ClientError, b"CBS link is broken"), OUTAGE),
        (amqp.TokenExpired(condition=amqp.ErrorCondition.InternalError, description="expired"), OUTAGE),
        (amqp.AuthenticationException(condition=amqp.ErrorCondition.InternalError, description="no link"), OUTAGE),
    ],
    ids=["401", "404", "condition", "429", "408", "500", "503", "rejected", "broken", "expired", "no-link"],
)
def test_a_refused_token_is_configuration_and_an_unanswered_one_an_outage(
    failure: Exception, meaning: Meaning, options: dict[str, str]
) -> None:
    """Also behind a custom endpoint, where the SDK calls all of these connection errors."""
    raised = translated(failure, **options)
    expected = sdk.ServiceBusConnectionError if options else sdk.ServiceBusAuthenticationError
    assert type(raised) is expected
    assert meaning_of(raised) is meaning
    assert meaning_of(failure) is meaning


def test_the_status_of_a_refusal_is_found() -> None:
    """On the error itself or inside; what is no status is none."""
    assert status_of(translated(amqp.TokenAuthFailure(404, b"?"))) == 404
    assert status_of(sdk.ServiceBusError("?", status_code=410)) == 410
    assert status_of(translated(amqp.TokenAuthFailure(None, None))) is None
    assert status_of(OSError()) is None
