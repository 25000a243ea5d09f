"""Error responses of the management REST API: the service's texts for each status, method and kind of entity."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from pairbus.localbus.bus_errors import ENTITY_EXISTS, INVALID_FIELD, NOT_ALLOWED, NOT_FOUND, UNAUTHORIZED, BusError
from pairbus.localbus.rest.error_responses import service_error

_RULE = "t/Subscriptions/s/Rules/r"


@pytest.mark.parametrize(
    ("condition", "status", "method", "path", "detail"),
    [
        (UNAUTHORIZED, 401, "GET", "q", "Manage,EntityRead claims required for this operation."),
        (UNAUTHORIZED, 401, "PUT", "q", "Authorization failed for specified action: Manage,EntityWrite."),
        (UNAUTHORIZED, 401, "DELETE", "q", "Authorization failed for specified action: Manage,EntityDelete."),
        (UNAUTHORIZED, 401, "GET", "t/Subscriptions/s", "401 SubCode=40100: Unauthorized : Unauthorized access for "
         "'GetSubscription' operation on 'sb://host/t/Subscriptions/s'."),
        (UNAUTHORIZED, 401, "PUT", _RULE, "'CreateOrUpdateRule'"),
        (UNAUTHORIZED, 401, "DELETE", _RULE, "'DeleteRule'"),
        (UNAUTHORIZED, 401, "GET", "t/Subscriptions", "'EnumerateSubscriptions'"),
        (UNAUTHORIZED, 401, "GET", "t/Subscriptions/s/Rules", "'EnumerateRules'"),
        (UNAUTHORIZED, 401, "PUT", "t/Subscriptions/s/Rules", "'CreateOrUpdateRule'"),
        (NOT_FOUND, 404, "GET", _RULE, "Entity 'contoso:Topic:t|s|r' was not found. To know more visit"),
        (NOT_FOUND, 404, "DELETE", "q", "No service is hosted at the specified address. TrackingId:"),
        (NOT_FOUND, 404, "PUT", "q", "SubCode=40400. Not Found. The Operation doesn't exist."),
        (NOT_FOUND, 404, "GET", "q", "reason."),
        (ENTITY_EXISTS, 409, "PUT", "q", "SubCode=40900. Conflict."),
        (ENTITY_EXISTS, 409, "PUT", "t/Subscriptions/s", "The messaging entity 'contoso:Topic:t|s' already exists."),
        (INVALID_FIELD, 400, "PUT", "q", "SubCode=40000. reason. To know more visit"),
        (INVALID_FIELD, 400, "PUT", "t/Subscriptions/s", "reason. To know more visit"),
        (INVALID_FIELD, 400, "PUT", "$localbus/faults", "reason. TrackingId:"),
    ],
)  # fmt: skip
def test_an_error_has_the_service_s_text(condition: str, status: int, method: str, path: str, detail: str) -> None:
    """Clients and their tests read these texts."""
    response = service_error(BusError(condition, "reason"), method, path, "host", "contoso")
    root = ElementTree.fromstring(response.body)
    assert (response.status, root.findtext("Code")) == (status, str(status))
    text = root.findtext("Detail") or ""
    assert text.startswith(detail) or (detail.startswith("'") and detail in text)
    assert f"SystemTracker:host:{path}, Timestamp:" in text


@pytest.mark.parametrize(
    ("reason", "text"), [("Why? ", "Why?"), ("No!", "No!"), ("no end", "no end."), ("One.", "One.")]
)
def test_a_reason_ends_with_a_full_stop(reason: str, text: str) -> None:
    """The service's own sentence follows it."""
    body = service_error(BusError(INVALID_FIELD, reason), "PUT", "t/Subscriptions/s", "h", "n").body.decode()
    assert f"<Detail>{text} To know more" in body


def test_a_reason_that_has_a_sub_code_keeps_it() -> None:
    """The service's sub-code is not added a second time."""
    error = BusError(INVALID_FIELD, "SubCode=40400. The auto forwarding destination entity does not exist.")
    body = service_error(error, "PUT", "q", "h", "n").body.decode()
    assert "<Detail>SubCode=40400. The auto" in body


def test_an_error_s_own_status_is_used() -> None:
    """405 has no text of the service's."""
    response = service_error(BusError(NOT_ALLOWED, "no", status=405), "POST", "q", "h", "n")
    assert response.status == 405
    assert b"<Detail>no. TrackingId" in response.body
