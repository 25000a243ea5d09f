"""The meaning of an SDK's error for failover, read from its class, AMQP condition and status, never from its text.

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
    # A refused credential is a fault of the set-up; for an authority that was not reached see `_is_unreachable`.
    core.ClientAuthenticationError: _CONFIGURATION,
    # Of credentials and resolvers that use the network themselves.
    core.ServiceRequestError: _OUTAGE,
    core.ServiceResponseError: _OUTAGE,
    core.HttpResponseError: _OUTAGE,
    # An error that the SDK has no class for: of the service, unless the message is to blame (see `is_unnamed`).
    sdk.ServiceBusError: _OUTAGE,
    OSError: _OUTAGE,
    TypeError: _CONFIGURATION,
    ValueError: _CONFIGURATION,
}

#: The exception classes of azure-eventhub, by name: it need not be installed.
HUB_CLASSES: dict[str, Meaning] = {
    "ConnectError": _OUTAGE,
    "ConnectionLostError": _OUTAGE,
    "OperationTimeoutError": _OUTAGE,
    "EventDataSendError": _OUTAGE,
    "AuthenticationError": _CONFIGURATION,
    "ClientClosedError": _CONFIGURATION,
    "EventDataError": _CONFIGURATION,
    "OwnershipLostError": _CONFIGURATION,
    # An error that the SDK has no class for, as above.
    "EventHubError": _OUTAGE,
}
_HUB_ERRORS = "azure.eventhub.exceptions"
#: Private classes of both SDKs, by name: each has a copy of them.
_AUTHENTICATION, _TOKEN_REFUSED = "AuthenticationException", "TokenAuthFailure"

#: Errors of the network on the way to a credential's authority.
_NETWORK = (core.ServiceRequestError, core.ServiceResponseError, ConnectionError, TimeoutError)

#: Errors of a process that is short of threads or memory, or by these numbers of files or sockets.
_SHORTAGES = (RuntimeError, MemoryError)
_SHORT_OF = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}

#: HTTP statuses with which the service answers to a token.
_REFUSALS = range(400, 500)
_UNAUTHORISED = 401
_THROTTLED = 429
_TIMED_OUT = 408
_FAILURES = 500


def meaning_of(error: BaseException) -> Meaning:
    """Return the meaning of an error of a send; an unknown one is no outage: parking would hide a mistake."""
    if is_shortage(error):
        return _CONFIGURATION
    inner = inner_of(error)
    status = status_of(error)
    if status is not None and status in _REFUSALS:
        return _BUSY if status == _THROTTLED else _OUTAGE if status == _TIMED_OUT else _CONFIGURATION
    for each in (error, inner):
        # Behind a custom endpoint the SDK raises connection errors for all of these, refused tokens too.
        if _is_amqp_error(each, _AUTHENTICATION):
            # The SDK drops the status of a refusal that comes with a condition; every other has one, if only 0.
            refused = _is_amqp_error(each, _TOKEN_REFUSED) and each.status_code is None  # type: ignore[union-attr]
            return _CONFIGURATION if refused else _OUTAGE
    condition = amqp_condition(error)
    if condition in CONDITIONS:
        return CONDITIONS[condition].for_sender
    if condition is not None:
        return _OUTAGE  # an unknown condition of the service: its error, not the caller's
    if _is_generic(error) and isinstance(inner, Exception):
        return meaning_of(inner)
    if isinstance(error, core.ClientAuthenticationError) and _is_unreachable(error):
        return _OUTAGE
    for kind in type(error).__mro__:
        if kind in CLASSES:
            return CLASSES[kind]
        if _hub_class(kind) in HUB_CLASSES:
            return HUB_CLASSES[kind.__name__]
    return _CONFIGURATION


def at_opening(error: BaseException) -> BaseException:
    """Return the error to raise for one of opening a link: an unnamed one is an outage, as no message is involved."""
    if _is_bare(error) and not has_no_credential(error):
        unnamed = sdk.ServiceBusConnectionError(message=str(error), error=inner_of(error) or error)
        unnamed.__cause__ = error
        return unnamed
    return error


def is_shortage(error: BaseException) -> bool:
    """Return True if this process is short of threads, memory, files or sockets, which no entity is to blame for."""
    if isinstance(error, _SHORTAGES):
        return True
    return any(isinstance(each, OSError) and each.errno in _SHORT_OF for each in _behind(error))


def is_unnamed(error: BaseException) -> bool:
    """Return True if either the message cannot be encoded or the answer was no AMQP; encoding it again tells which."""
    inner = inner_of(error)
    if not _is_bare(error) or not isinstance(inner, Exception) or isinstance(inner, (OSError, *_SHORTAGES)):
        return False
    return not any(each.__module__.startswith("azure.") for each in type(inner).__mro__)


def _is_bare(error: BaseException) -> bool:
    """Return True for an SDK's most general class without a condition or status."""
    return _is_generic(error) and amqp_condition(error) is None and status_of(error) is None


def _is_generic(error: BaseException) -> bool:
    """Return True for the most general class of either SDK."""
    return type(error) is sdk.ServiceBusError or _hub_class(type(error)) == "EventHubError"


def has_no_credential(error: BaseException) -> bool:
    """Return True if the error comes from a credential that was refused for good, not from a network that failed."""
    for each in _behind(error):
        if isinstance(each, core.ClientAuthenticationError):
            return meaning_of(each) is _CONFIGURATION
    return False


def _is_unreachable(error: core.ClientAuthenticationError) -> bool:
    """Return True if the network or the authority failed: azure-identity has one class for that and a refusal."""
    if (status_of(error) or 0) >= _FAILURES:
        return True
    return any(isinstance(each, _NETWORK) for each in _behind(error))


def _behind(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in seen:
        yield each
        seen.append(each)
        each = inner_of(each) or each.__cause__


def inner_of(error: BaseException) -> BaseException | None:
    """Return the error inside one of an SDK; azure-eventhub has no attribute for it and leaves it to Python."""
    inner: Any = getattr(error, "inner_exception", None)
    if inner is None and _hub_class(type(error)) and not hasattr(error, "inner_exception"):
        inner = error.__cause__ or error.__context__
    return inner if isinstance(inner, BaseException) else None


def _hub_class(kind: type) -> str | None:
    """Return the name of a class if it is one of azure-eventhub's exceptions."""
    return kind.__name__ if kind.__module__ == _HUB_ERRORS else None


def _is_amqp_error(error: BaseException | None, name: str) -> bool:
    """Return True for an error of either SDK's AMQP engine that is of the class of that name."""
    return any(each.__name__ == name and "._pyamqp." in each.__module__ for each in type(error).__mro__)


def is_timeout(error: BaseException) -> bool:
    return isinstance(error, sdk.OperationTimeoutError) or _hub_class(type(error)) == "OperationTimeoutError"


def may_be_stale(error: BaseException) -> bool:
    """Return True if a new connection with a new token might succeed."""
    refused = isinstance(error, (sdk.ServiceBusAuthenticationError, sdk.ServiceBusAuthorizationError))
    return refused or _hub_class(type(error)) == "AuthenticationError" or status_of(error) == _UNAUTHORISED


def amqp_condition(error: BaseException) -> str | None:
    # The SDK raises a time-out of the service again, without its condition.
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
    """Return the HTTP status with which a token was refused, if there is one."""
    for each in (error, inner_of(error)):
        status = getattr(each, "status_code", None) or getattr(each, "_status_code", None)
        if isinstance(status, int) and not isinstance(status, bool) and status > 0:
            return status
    return None
