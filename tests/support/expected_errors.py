"""The exception of the SDK, sync and async, for each AMQP condition with which a send is rejected."""

from __future__ import annotations

from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityAlreadyExistsError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from pairbus.localbus import bus_errors as conditions

#: Condition -> exception of the SDK.
RAISED: dict[str, type[ServiceBusError]] = {
    conditions.TIMEOUT: OperationTimeoutError,
    conditions.SERVER_BUSY: ServiceBusServerBusyError,
    conditions.ENTITY_DISABLED: MessagingEntityDisabledError,
    conditions.MESSAGE_LOCK_LOST: MessageLockLostError,
    conditions.SESSION_LOCK_LOST: SessionLockLostError,
    conditions.AUTH_FAILED: ServiceBusAuthorizationError,
    conditions.NOT_FOUND: MessagingEntityNotFoundError,
    conditions.UNAUTHORIZED: ServiceBusAuthorizationError,
    conditions.RESOURCE_LIMIT_EXCEEDED: ServiceBusQuotaExceededError,
    conditions.MESSAGE_SIZE_EXCEEDED: MessageSizeExceededError,
    conditions.DETACH_FORCED: ServiceBusConnectionError,
    conditions.MESSAGE_NOT_FOUND: MessageNotFoundError,
    conditions.INTERNAL_ERROR: ServiceBusError,
    conditions.ENTITY_EXISTS: MessagingEntityAlreadyExistsError,
    conditions.SESSION_CANNOT_BE_LOCKED: SessionCannotBeLockedError,
}
#: Conditions that the SDK does not retry.
NOT_RETRIED = {
    conditions.RESOURCE_LIMIT_EXCEEDED, conditions.UNAUTHORIZED, conditions.NOT_FOUND,
    conditions.MESSAGE_SIZE_EXCEEDED, conditions.MESSAGE_LOCK_LOST, conditions.SESSION_LOCK_LOST,
}  # fmt: skip
