"""Errors of the management REST API in the service's own words, which clients and users know."""

from __future__ import annotations

import time
import uuid
from datetime import datetime, timezone

from pairbus.localbus.addresses import EntityPath
from pairbus.localbus.bus_errors import UNAUTHORIZED, BusError

from .http import Response, error_response

_MORE = "To know more visit https://aka.ms/sbResourceMgrExceptions."
_CONFLICT = "Conflict. You're requesting an operation that isn't allowed in the resource's current state."


def service_error(error: BusError, method: str, path: str, host: str, namespace: str) -> Response:
    now = datetime.fromtimestamp(time.time(), timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
    entity_path = EntityPath.of(path)
    if error.condition == UNAUTHORIZED:
        detail = _missing_claim(method, entity_path, f"sb://{host}/{path}")
    else:
        detail = _detail(error, method, entity_path, namespace)
    return error_response(
        error.status, f"{detail} TrackingId:{uuid.uuid4()}_G0, SystemTracker:{host}:{path}, Timestamp:{now}"
    )


def _missing_claim(method: str, entity_path: EntityPath, endpoint: str) -> str:
    """Return the service's text for a valid token without the necessary claim."""
    if entity_path.subscription or entity_path.listing:
        kind = "Rule" if entity_path.rule or entity_path.listing == "Rules" else "Subscription"
        verb = {"PUT": "CreateOrUpdate", "DELETE": "Delete"}.get(method, "Get")
        operation = f"Enumerate{entity_path.listing}" if entity_path.listing and method == "GET" else verb + kind
        return f"401 SubCode=40100: Unauthorized : Unauthorized access for '{operation}' operation on '{endpoint}'."
    if method == "GET":
        return "Manage,EntityRead claims required for this operation."
    claim = "EntityDelete" if method == "DELETE" else "EntityWrite"
    return f"Authorization failed for specified action: Manage,{claim}."


def _detail(error: BusError, method: str, entity_path: EntityPath, namespace: str) -> str:
    """Return the service's text for an error other than a missing claim."""
    below_topic = bool(entity_path.subscription or entity_path.listing)
    text = error.description.rstrip()
    text = text if text.endswith((".", "!", "?")) else text + "."
    if entity_path.entity.startswith("$"):  # a node of localbus: the service has no text for it
        return text
    match error.status, below_topic, method:
        case 404, True, _:
            return f"Entity '{entity_path.full_name(namespace)}' was not found. {_MORE} "
        case 404, False, "DELETE":
            return "No service is hosted at the specified address."
        case 404, False, "PUT":
            return f"SubCode=40400. Not Found. The Operation doesn't exist. {_MORE} ."
        case 409, True, _:
            return f"The messaging entity '{entity_path.full_name(namespace)}' already exists. {_MORE} "
        case 409, False, _:
            return f"SubCode=40900. {_CONFLICT} {_MORE} ."
        case 400, _, _:
            prefix = "" if below_topic or text.startswith("SubCode=") else "SubCode=40000. "
            return f"{prefix}{text} {_MORE} ."
    return text
