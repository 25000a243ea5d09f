"""Provisioning of a pairing's backlog queues: missing ones are created, none is ever changed or deleted."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.servicebus.management import QueueProperties, ServiceBusAdministrationClient

from pairbus.domain.backlog import PROPERTIES, differences, queue_path, unusable
from pairbus.errors import PairingError, ProvisioningError
from pairbus.options import Namespace
from pairbus.runtime.administration import administration_client
from pairbus.runtime.backoff import Backoff
from pairbus.runtime.redaction import describe_error

from .sdk.batches import PREMIUM_BATCH_LIMIT, STANDARD_LIMIT
from .status import Operations

_WORKERS = 8
_TRIES = 3
#: Pauses between the tries for one queue.
_BACKOFF = Backoff(first=0.5, longest=1.0)
_UNAUTHORISED, _FORBIDDEN = 401, 403
#: Errors of a host that was not heard, which says nothing about one queue.
_UNHEARD = (ServiceRequestError, ServiceResponseError)


@dataclass(frozen=True, slots=True)
class BacklogQueue:
    """A backlog queue that exists, its differences from one that pairbus makes, and the largest batch it takes."""

    path: str
    differences: Mapping[str, tuple[Any, Any]]
    limit: int


@dataclass(frozen=True, slots=True)
class Provisioned:
    """The backlog queues that can be used, and the reasons why the others cannot."""

    queues: tuple[BacklogQueue, ...]
    missing: Mapping[str, str]


def provision(
    primary: Namespace, secondary: Namespace, count: int, operations: Operations, timeout: float
) -> Provisioned:
    """Find or create `count` backlog queues; raise PairingError if refused, ProvisioningError if none can be used."""
    provisioning = _Provisioning(primary, secondary, operations, timeout)
    try:
        results = provisioning.run(count)
    finally:
        provisioning.close()
    for result in results:
        _refuse_unauthorised(result, secondary)
    missing = {
        queue_path(primary.name, index): describe_error(result)
        for index, result in enumerate(results)
        if isinstance(result, Exception)
    }
    queues = tuple(result for result in results if isinstance(result, BacklogQueue))
    if not queues:
        raise _no_queue(primary, secondary, results[0], missing)
    return Provisioned(queues, missing)


class _Provisioning:
    """The provisioning of all queues of one pairing."""

    def __init__(self, primary: Namespace, secondary: Namespace, operations: Operations, timeout: float) -> None:
        self._primary = primary
        self._secondary = secondary
        self._operations = operations
        self._timeout = timeout
        # However many queues there are, a host that stops answering is not waited for much longer than three tries.
        self._deadline = time.monotonic() + _TRIES * (timeout + _BACKOFF.first)
        self._refusal: AzureError | None = None
        self._local = threading.local()
        self._opened: list[ServiceBusAdministrationClient] = []

    def run(self, count: int) -> list[BacklogQueue | Exception]:
        """Return each queue or its error; the first goes ahead, to wait for a refusal or a silent host only once."""
        results = [self._one(0)]
        _refuse_unauthorised(results[0], self._secondary)
        if isinstance(results[0], _UNHEARD) and count > 1:
            results.append(self._one(1))  # it may have been the first queue alone
        if all(isinstance(result, _UNHEARD) for result in results):
            return results + results[:1] * (count - len(results))
        if len(results) < count:
            with ThreadPoolExecutor(min(_WORKERS, count - len(results)), "pairbus-provision") as pool:
                results += pool.map(self._one, range(len(results), count))
        return results

    def _one(self, index: int) -> BacklogQueue | Exception:
        if self._refusal is not None:
            return self._refusal
        if time.monotonic() > self._deadline:
            return ServiceResponseError(f"not looked for: {self._secondary.host} took too long to answer about others")
        try:
            return _provide(self._client(), queue_path(self._primary.name, index), self._operations, self._deadline)
        except AzureError as error:
            if _is_unauthorised(error):
                self._refusal = error
            return error

    def _client(self) -> ServiceBusAdministrationClient:
        if not hasattr(self._local, "client"):
            self._local.client = administration_client(self._secondary, self._timeout)
            self._opened.append(self._local.client)
        found: ServiceBusAdministrationClient = self._local.client
        return found

    def close(self) -> None:
        for each in self._opened:
            each.close()


def _no_queue(
    primary: Namespace, secondary: Namespace, first: BacklogQueue | Exception, missing: Mapping[str, str]
) -> ProvisioningError:
    """Return the error for a secondary without a single queue that can be used."""
    if isinstance(first, _UNHEARD):
        return ProvisioningError(
            f"the secondary {secondary.host} could not be asked for its backlog queues: "
            f"{describe_error(first).rstrip('.')}. Check its host, and its ca_file where a private authority has "
            "signed its certificate",
            missing,
        )
    path, why = next(iter(missing.items()))
    return ProvisioningError(
        f"{secondary.host} has no backlog queue of {primary.name} that could be used, and none could be made; "
        f"{path}: {why}",
        missing,
    )


def _provide(
    client: ServiceBusAdministrationClient, path: str, operations: Operations, deadline: float
) -> BacklogQueue | Exception:
    """Find one queue or create it, in three tries; return an error for one that cannot be used."""
    for attempt in range(_TRIES):
        try:
            found = _look(client, path, operations)
            if found is not None:
                return _report(path, found, made=False)
            try:
                operations.add("management", 1)
                return _report(path, client.create_queue(path, **PROPERTIES), made=True)
            except ResourceExistsError:
                found = _look(client, path, operations)  # another process has just created it
                if found is not None:
                    return _report(path, found, made=False)
                raise
        except AzureError as error:
            if _is_unauthorised(error) or attempt + 1 == _TRIES or time.monotonic() > deadline:
                raise
            time.sleep(_BACKOFF.pause(attempt))
    raise AssertionError("unreachable")


def _look(client: ServiceBusAdministrationClient, path: str, operations: Operations) -> QueueProperties | None:
    """Return a queue's properties; None if it does not exist."""
    operations.add("management", 1)
    try:
        return client.get_queue(path)
    except ResourceNotFoundError:
        return None
    except HttpResponseError as error:
        # A read is refused only to a caller without the right; a creation also where the namespace is full.
        if error.status_code == _FORBIDDEN:
            raise ClientAuthenticationError(message=str(error), response=error.response) from error
        raise
    except AttributeError:  # the SDK cannot read the description of a topic
        raise ResourceExistsError(f"{path} exists and is not a queue") from None


def _report(path: str, found: QueueProperties, *, made: bool) -> BacklogQueue | Exception:
    """Return a queue that can be used, with its differences, or the error that says why it cannot."""
    properties = vars(found)
    if (why := unusable(properties)) is not None:
        return ResourceExistsError(f"{path} exists and cannot be a backlog queue: {why}")
    kilobytes = getattr(found, "max_message_size_in_kilobytes", None)
    limit = min(kilobytes * 1024, PREMIUM_BATCH_LIMIT) if kilobytes else STANDARD_LIMIT
    return BacklogQueue(path, {} if made else differences(properties), limit)


def _is_unauthorised(error: Exception) -> bool:
    return isinstance(error, ClientAuthenticationError) or (
        isinstance(error, HttpResponseError) and error.status_code == _UNAUTHORISED
    )


def _refuse_unauthorised(result: BacklogQueue | Exception, secondary: Namespace) -> None:
    if isinstance(result, ClientAuthenticationError) and result.status_code is None:  # not by the service
        raise PairingError(
            f"the credential of the secondary {secondary.host} gives no token: {describe_error(result)}"
        ) from result
    if isinstance(result, Exception) and _is_unauthorised(result):
        raise PairingError(
            f"{secondary.host} does not let this credential look for or make backlog queues: "
            f"{describe_error(result).rstrip('.')}. It must be one of the secondary, with the Manage right there (or "
            "the role Azure Service Bus Data Owner)"
        ) from result
