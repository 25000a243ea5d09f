"""What a failure of the SDK means for failover: one table, read by class, AMQP condition and status, never by text.

| meaning | examples |
|---|---|
| OUTAGE: counts toward failover | time-out, connection or link lost, an error of the service |
| BUSY: wait and try again | server busy, throttled |
| CONFIGURATION: the caller's error, no outage | unauthorised, not found, disabled, too large, quota, bad arguments |
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

from azure.core import exceptions as core
from azure.servicebus import exceptions as sdk
from azure.servicebus._pyamqp.error import AuthenticationException, TokenAuthFailure

from pairbus.domain.conditions import CONDITIONS, Meaning

_OUTAGE, _BUSY, _CONFIGURATION = Meaning.OUTAGE, Meaning.BUSY, Meaning.CONFIGURATION

#: The exception classes of the SDK, for errors without a condition that is known.
CLASSES: dict[type[BaseException], Meaning] = {
    sdk.ServiceBusServerBusyError: _BUSY,
    sdk.OperationTimeoutError: _OUTAGE,
    sdk.ServiceBusConnectionError: _OUTAGE,
    sdk.ServiceBusCommunicationError: _OUTAGE,
    sdk.ServiceBusAuthenticationError: _CONFIGURATION,
    sdk.ServiceBusAuthorizationError: _CONFIGURATION,
    sdk.MessagingEntityNotFoundError: _CONFIGURATION,
    sdk.MessagingEntityDisabledError: _CONFIGURATION,
    sdk.MessagingEntityAlreadyExistsError: _CONFIGURATION,
    sdk.MessageSizeExceededError: _CONFIGURATION,
    sdk.ServiceBusQuotaExceededError: _CONFIGURATION,
    sdk.MessageAlreadySettled: _CONFIGURATION,
    sdk.MessageLockLostError: _CONFIGURATION,
    sdk.SessionLockLostError: _CONFIGURATION,
    sdk.SessionCannotBeLockedError: _CONFIGURATION,
    sdk.MessageNotFoundError: _CONFIGURATION,
    sdk.AutoLockRenewFailed: _CONFIGURATION,
    sdk.AutoLockRenewTimeout: _CONFIGURATION,
    # A credential that cannot be had is a fault of the set-up, not of the entity; unless it could not be asked for.
    core.ClientAuthenticationError: _CONFIGURATION,
    # Where a credential or a resolver talks to the network itself.
    core.ServiceRequestError: _OUTAGE,
    core.ServiceResponseError: _OUTAGE,
    core.HttpResponseError: _OUTAGE,
    # What the SDK could not name: an error of the service, if the message is not to blame (see `meaning_of`).
    sdk.ServiceBusError: _OUTAGE,
    OSError: _OUTAGE,
    TypeError: _CONFIGURATION,
    ValueError: _CONFIGURATION,
}

#: Those of azure-eventhub, by name: it need not be installed.
HUB_CLASSES: dict[str, Meaning] = {
    "ConnectError": _OUTAGE,
    "ConnectionLostError": _OUTAGE,
    "OperationTimeoutError": _OUTAGE,
    "EventDataSendError": _OUTAGE,
    "AuthenticationError": _CONFIGURATION,
    "ClientClosedError": _CONFIGURATION,
    "EventDataError": _CONFIGURATION,
    "OwnershipLostError": _CONFIGURATION,
    # What its SDK could not name, as above.
    "EventHubError": _OUTAGE,
}
_HUB_ERRORS = "azure.eventhub.exceptions"

#: Why a credential could not even be asked for.
_NETWORK = (core.ServiceRequestError, core.ServiceResponseError, ConnectionError, TimeoutError)

#: This process is short of threads or memory, or by these numbers of files or sockets.
_SHORTAGES = (RuntimeError, MemoryError)
_SHORT_OF = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}

#: Statuses of a refused token: the service was asked and has answered.
_REFUSALS = range(400, 500)
_UNAUTHORISED = 401
_THROTTLED = 429
_TIMED_OUT = 408
_FAILURES = 500


def meaning_of(error: BaseException) -> Meaning:
    """What an error says about the entity it came from.

    A generic error with something else inside ("Handler failed: …") means what is inside; something unknown is no
    outage, since parking would hide a mistake in the program.
    """
    if is_shortage(error):
        return _CONFIGURATION
    inner = inner_of(error)
    status = status_of(error)
    if status is not None and status in _REFUSALS:
        return _BUSY if status == _THROTTLED else _OUTAGE if status == _TIMED_OUT else _CONFIGURATION
    for each in (error, inner):
        # Behind a custom endpoint the SDK calls all of these connection errors, refused tokens too.
        if _is(each, AuthenticationException):
            # The SDK drops the status of a refusal that comes with a condition; every other has one, if only 0.
            refused = _is(each, TokenAuthFailure) and each.status_code is None  # type: ignore[union-attr]
            return _CONFIGURATION if refused else _OUTAGE
    condition = amqp_condition(error)
    if condition in CONDITIONS:
        return CONDITIONS[condition].for_sender
    if condition is not None:
        return _OUTAGE  # a condition of the service that we do not know: its error, not the caller's
    if _is_generic(error) and isinstance(inner, Exception):
        return meaning_of(inner)
    if isinstance(error, core.ClientAuthenticationError) and _is_unasked(error):
        return _OUTAGE
    for kind in type(error).__mro__:
        if kind in CLASSES:
            return CLASSES[kind]
        if _hub_class(kind) in HUB_CLASSES:
            return HUB_CLASSES[kind.__name__]
    return _CONFIGURATION


def at_opening(error: BaseException) -> BaseException:
    """An error of opening a link, where no message plays a part.

    What the SDK cannot name, such as an answer that is no AMQP by a proxy whose service is down, is an outage. A
    credential that is refused is none, though the SDK has no name for it either.
    """
    if _says_nothing(error) and not has_no_credential(error):
        unnamed = sdk.ServiceBusConnectionError(message=str(error), error=inner_of(error) or error)
        unnamed.__cause__ = error
        return unnamed
    return error


def is_shortage(error: BaseException) -> bool:
    """Whether this process is short of something: threads, memory, files, sockets. That says nothing about an entity
    or a backlog queue."""
    if isinstance(error, _SHORTAGES):
        return True
    return any(isinstance(each, OSError) and each.errno in _SHORT_OF for each in _behind(error))


def is_unnamed(error: BaseException) -> bool:
    """Whether an SDK has stumbled over something that is neither its own nor the network's, in a send.

    That is a message that cannot be encoded, or else an answer that is no AMQP: only the message can tell which.
    """
    inner = inner_of(error)
    if not _says_nothing(error) or not isinstance(inner, Exception) or isinstance(inner, (OSError, *_SHORTAGES)):
        return False
    return not any(each.__module__.startswith("azure.") for each in type(inner).__mro__)


def _says_nothing(error: BaseException) -> bool:
    return _is_generic(error) and amqp_condition(error) is None and status_of(error) is None


def _is_generic(error: BaseException) -> bool:
    return type(error) is sdk.ServiceBusError or _hub_class(type(error)) == "EventHubError"


def has_no_credential(error: BaseException) -> bool:
    """Whether a credential is behind an error, and was refused for good: by no network that failed on the way to it."""
    for each in _behind(error):
        if isinstance(each, core.ClientAuthenticationError):
            return meaning_of(each) is _CONFIGURATION
    return False


def _is_unasked(error: core.ClientAuthenticationError) -> bool:
    """Whether the network, or who gives tokens, was out of order: azure-identity has one class for all of that."""
    if (status_of(error) or 0) >= _FAILURES:
        return True
    return any(isinstance(each, _NETWORK) for each in _behind(error))


def _behind(error: BaseException) -> Iterator[BaseException]:
    """An error, what it was raised from, and so on."""
    seen: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in seen:
        yield each
        seen.append(each)
        each = inner_of(each) or each.__cause__


def inner_of(error: BaseException) -> BaseException | None:
    """What is behind an error of an SDK: azure-eventhub has no attribute for it, and leaves it to Python."""
    inner: Any = getattr(error, "inner_exception", None)
    if inner is None and _hub_class(type(error)) and not hasattr(error, "inner_exception"):
        inner = error.__cause__ or error.__context__
    return inner if isinstance(inner, BaseException) else None


def _hub_class(kind: type) -> str | None:
    """The name of one of azure-eventhub's exception classes."""
    return kind.__name__ if kind.__module__ == _HUB_ERRORS else None


def _is(error: BaseException | None, kind: type[BaseException]) -> bool:
    """Whether it is an AMQP error of that class; each of the two SDKs has a copy of all of them."""
    return any(each.__name__ == kind.__name__ and "._pyamqp." in each.__module__ for each in type(error).__mro__)


def is_timeout(error: BaseException) -> bool:
    """Whether an SDK has waited in vain."""
    return isinstance(error, sdk.OperationTimeoutError) or _hub_class(type(error)) == "OperationTimeoutError"


def may_be_stale(error: BaseException) -> bool:
    """Whether a new connection with a new token may mend it."""
    refused = isinstance(error, (sdk.ServiceBusAuthenticationError, sdk.ServiceBusAuthorizationError))
    return refused or _hub_class(type(error)) == "AuthenticationError" or status_of(error) == _UNAUTHORISED


def amqp_condition(error: BaseException) -> str | None:
    """The AMQP condition behind an error, if there is one."""
    # A time-out of the service is raised anew by the SDK, without its condition.
    cause = error.__cause__ if isinstance(error, sdk.OperationTimeoutError) else None
    for each in (error, inner_of(error), cause):
        condition: Any = getattr(each, "_condition", None) or getattr(each, "condition", None)
        condition = getattr(condition, "value", condition)
        if isinstance(condition, bytes):
            condition = condition.decode("ascii", "replace")
        if isinstance(condition, str):
            return condition
    return None


def status_of(error: BaseException) -> int | None:
    """The status with which a token was refused, if that is what happened."""
    for each in (error, inner_of(error)):
        status = getattr(each, "status_code", None) or getattr(each, "_status_code", None)
        if isinstance(status, int) and not isinstance(status, bool) and status > 0:
            return status
    return None
