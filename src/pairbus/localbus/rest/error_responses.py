"""The management REST's errors in the service's own words, so that clients and people read what they know."""

from __future__ import annotations

import time
import uuid
from datetime import datetime, timezone

from pairbus.localbus.addresses import Place
from pairbus.localbus.bus_errors import UNAUTHORIZED, BusError

from .http import Response, refusal

_MORE = "To know more visit https://aka.ms/sbResourceMgrExceptions."
_CONFLICT = "Conflict. You're requesting an operation that isn't allowed in the resource's current state."


def refused(error: BusError, method: str, path: str, host: str, namespace: str) -> Response:
    """A BusError as the service would have answered it at this path; only its text is dressed up."""
    now = datetime.fromtimestamp(time.time(), timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
    place = Place.of(path)
    if error.condition == UNAUTHORIZED:
        detail = _claims(method, place, f"sb://{host}/{path}")
    else:
        detail = _detail(error, method, place, namespace)
    return refusal(
        error.status,
        f"{detail} TrackingId:{uuid.uuid4()}_G0, SystemTracker:{host}:{path}, Timestamp:{now}",
    )


def _claims(method: str, place: Place, endpoint: str) -> str:
    """What a good token's key must not do here."""
    if place.subscription or place.listing:
        kind = "Rule" if place.rule or place.listing == "Rules" else "Subscription"
        verb = {"PUT": "CreateOrUpdate", "DELETE": "Delete"}.get(method, "Get")
        operation = f"Enumerate{place.listing}" if place.listing and method == "GET" else verb + kind
        return f"401 SubCode=40100: Unauthorized : Unauthorized access for '{operation}' operation on '{endpoint}'."
    if method == "GET":
        return "Manage,EntityRead claims required for this operation."
    claim = "EntityDelete" if method == "DELETE" else "EntityWrite"
    return f"Authorization failed for specified action: Manage,{claim}."


def _detail(error: BusError, method: str, place: Place, namespace: str) -> str:
    below_topic = bool(place.subscription or place.listing)
    text = error.description.rstrip()
    text = text if text.endswith((".", "!", "?")) else text + "."
    if place.entity.startswith("$"):  # no entity, so no words of the service's
        return text
    match error.status, below_topic, method:
        case 404, True, _:
            return f"Entity '{place.full_name(namespace)}' was not found. {_MORE} "
        case 404, False, "DELETE":
            return "No service is hosted at the specified address."
        case 404, False, "PUT":
            return f"SubCode=40400. Not Found. The Operation doesn't exist. {_MORE} ."
        case 409, True, _:
            return f"The messaging entity '{place.full_name(namespace)}' already exists. {_MORE} "
        case 409, False, _:
            return f"SubCode=40900. {_CONFLICT} {_MORE} ."
        case 400, _, _:
            prefix = "" if below_topic or text.startswith("SubCode=") else "SubCode=40000. "
            return f"{prefix}{text} {_MORE} ."
    return text
