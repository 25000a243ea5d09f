"""Backlog queues of the secondary: looked for, made where they are missing, reported where they differ, left out where
they would lose what is parked in them.

Nothing is ever deleted or changed. Queues are looked after side by side, each worker with a client of its own.
"""

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
from pairbus.runtime.redaction import describe_error

from .sdk.batches import PREMIUM_BATCH_LIMIT, STANDARD_LIMIT
from .status import Operations

_WORKERS = 8
_TRIES = 3
_PAUSE_SECONDS = 0.5
_UNAUTHORISED, _FORBIDDEN = 401, 403
#: Nothing was heard from the host: that is not about one queue.
_UNHEARD = (ServiceRequestError, ServiceResponseError)


@dataclass(frozen=True, slots=True)
class BacklogQueue:
    """A backlog queue that exists: where it differs from what pairbus makes, and the largest batch it takes."""

    path: str
    differences: Mapping[str, tuple[Any, Any]]
    limit: int


@dataclass(frozen=True, slots=True)
class Provisioned:
    """The backlog queues that can be used, and why the others cannot."""

    queues: tuple[BacklogQueue, ...]
    missing: Mapping[str, str]


def provision(
    primary: Namespace, secondary: Namespace, count: int, operations: Operations, timeout: float
) -> Provisioned:
    """Find or make the backlog queues of a pairing.

    Raises `PairingError` at once if the caller may not, `ProvisioningError` if not one queue can be had.
    """
    # However many queues there are, a host that stops to answer is not waited for much longer than three tries take.
    deadline = time.monotonic() + _TRIES * (timeout + _PAUSE_SECONDS)
    refused: list[AzureError] = []
    local = threading.local()
    opened: list[ServiceBusAdministrationClient] = []

    def client() -> ServiceBusAdministrationClient:
        if not hasattr(local, "client"):
            local.client = administration_client(secondary, timeout)
            opened.append(local.client)
        found: ServiceBusAdministrationClient = local.client
        return found

    def one(index: int) -> BacklogQueue | Exception:
        if refused:
            return refused[0]
        if time.monotonic() > deadline:
            return ServiceResponseError(f"not looked for: {secondary.host} took too long to answer about others")
        try:
            return _provide(client(), queue_path(primary.name, index), operations, deadline)
        except AzureError as error:
            if _is_unauthorised(error):
                refused.append(error)
            return error

    try:
        # The first goes ahead: a caller who may not look is refused once, not a hundred times, and a host that does not
        # answer is waited for once.
        results = [one(0)]
        _refuse_unauthorised(results[0], secondary)
        if isinstance(results[0], _UNHEARD) and count > 1:
            results.append(one(1))  # it may have been that queue alone
        if all(isinstance(result, _UNHEARD) for result in results):
            results += results[:1] * (count - len(results))
        elif len(results) < count:
            with ThreadPoolExecutor(min(_WORKERS, count - len(results)), "pairbus-provision") as pool:
                results += pool.map(one, range(len(results), count))
    finally:
        for each in opened:
            each.close()
    for result in results:
        _refuse_unauthorised(result, secondary)
    missing = {
        queue_path(primary.name, index): describe_error(result)
        for index, result in enumerate(results)
        if isinstance(result, Exception)
    }
    queues = tuple(result for result in results if isinstance(result, BacklogQueue))
    if not queues and isinstance(results[0], _UNHEARD):
        raise ProvisioningError(
            f"the secondary {secondary.host} could not be asked for its backlog queues: "
            f"{describe_error(results[0]).rstrip('.')}. Check its host, and its ca_file where a private authority has "
            "signed its certificate",
            missing,
        )
    if not queues:
        path, why = next(iter(missing.items()))
        raise ProvisioningError(
            f"{secondary.host} has no backlog queue of {primary.name} that could be used, and none could be made; "
            f"{path}: {why}",
            missing,
        )
    return Provisioned(queues, missing)


def _provide(
    client: ServiceBusAdministrationClient, path: str, operations: Operations, deadline: float
) -> BacklogQueue | Exception:
    """One queue: look first, make it if it is missing, three tries. One that cannot be used is an error."""
    for attempt in range(_TRIES):
        try:
            found = _look(client, path, operations)
            if found is not None:
                return _report(path, found, made=False)
            try:
                operations.add("management", 1)
                return _report(path, client.create_queue(path, **PROPERTIES), made=True)
            except ResourceExistsError:
                found = _look(client, path, operations)  # another process was quicker
                if found is not None:
                    return _report(path, found, made=False)
                raise
        except AzureError as error:
            if _is_unauthorised(error) or attempt + 1 == _TRIES or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_SECONDS * (attempt + 1))
    raise AssertionError("unreachable")


def _look(client: ServiceBusAdministrationClient, path: str, operations: Operations) -> QueueProperties | None:
    operations.add("management", 1)
    try:
        return client.get_queue(path)
    except ResourceNotFoundError:
        return None
    except HttpResponseError as error:
        # To look is forbidden to strangers only; to create one more is, too, where a namespace is full.
        if error.status_code == _FORBIDDEN:
            raise ClientAuthenticationError(message=str(error), response=error.response) from error
        raise
    except AttributeError:  # so the SDK stumbles over the description of a topic
        raise ResourceExistsError(f"{path} exists and is not a queue") from None


def _report(path: str, found: QueueProperties, *, made: bool) -> BacklogQueue | Exception:
    told = vars(found)
    if (why := unusable(told)) is not None:
        return ResourceExistsError(f"{path} exists and cannot be a backlog queue: {why}")
    kilobytes = getattr(found, "max_message_size_in_kilobytes", None)
    limit = min(kilobytes * 1024, PREMIUM_BATCH_LIMIT) if kilobytes else STANDARD_LIMIT
    return BacklogQueue(path, {} if made else differences(told), limit)


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
