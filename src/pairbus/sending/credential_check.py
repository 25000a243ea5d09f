"""Checks of credentials when a pairing is opened: azure-identity must give a token, a key's token must be accepted."""

from __future__ import annotations

import logging
import re
import threading
import time
from abc import ABC, abstractmethod
from typing import Any
from urllib.parse import unquote_plus, urlsplit

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

from pairbus.errors import PairingError
from pairbus.options import Namespace
from pairbus.runtime.bounded_call import is_done_within, start_call
from pairbus.runtime.credential import deadline_credential
from pairbus.runtime.redaction import describe_error

from .sdk.classification import has_no_credential, status_of
from .sdk.clients import put_token, token_sender
from .sdk.connection_patches import abort

log = logging.getLogger("pairbus")

#: Seconds that opening a pairing waits for a token, and for the service's answer to one.
_TOKEN_SECONDS = 10.0
_ANSWER_SECONDS = 5.0
#: azure-identity's error of a credential that is not configured, by name: it need not be installed.
_UNAVAILABLE = "CredentialUnavailableError"
#: The service's words for a token that is invalid everywhere; its answer to a missing right is another.
_UNAUTHORISED = 401
_BAD_TOKENS = ("InvalidSignature", "ExpiredToken", "MalformedToken")


class CredentialCheck(ABC):
    """One try of a namespace's credential, on a thread of its own."""

    def __init__(self, role: str, namespace: Namespace, seconds: float) -> None:
        self._role = role
        self._namespace = namespace
        self._deadline = time.monotonic() + seconds
        self._call = start_call(self._try, f"pairbus-credential {namespace.host}")

    @abstractmethod
    def _try(self) -> None:
        """Use the credential; raise the error if it fails."""

    @abstractmethod
    def _refusal(self, failure: Exception) -> str | None:
        """Return the rest of the error's sentence if the failure is a refusal for good, else None."""

    def check(self) -> None:
        """Raise if the credential was refused for good; a failing network or a late answer does not prevent a start."""
        if not is_done_within(self._call, max(self._deadline - time.monotonic(), 0.0)):
            return
        failure = self._call.exception()
        if not isinstance(failure, Exception):
            return
        subject = f"the credential of {self._role} {self._namespace.host}"
        if (refusal := self._refusal(failure)) is not None:
            raise PairingError(f"{subject} {refusal}: {describe_error(failure)}") from failure
        log.debug("%s could not be tried: %s; the pairing opens without the check", subject, describe_error(failure))


class TokenCheck(CredentialCheck):
    """A request to a credential of azure-identity for a token."""

    def __init__(self, role: str, namespace: Namespace, scope: str) -> None:
        self._scope = scope
        super().__init__(role, namespace, _TOKEN_SECONDS)

    def _try(self) -> None:
        credential = deadline_credential(self._namespace.credential)
        try:
            credential.get_token(self._scope)
        except Exception:
            failed = _failed_in_chain(credential, self._scope)
            if failed is None:
                raise
            raise failed  # noqa: B904 - its own cause tells a refusal from a network that failed

    def _refusal(self, failure: Exception) -> str | None:
        return "gives no token" if has_no_credential(failure) else None


class KeyCheck(CredentialCheck):
    """A token that a key has signed, or the signature that was given, presented to the service."""

    def __init__(self, role: str, namespace: Namespace) -> None:
        self._sender = token_sender(namespace, _ANSWER_SECONDS)
        super().__init__(role, namespace, _ANSWER_SECONDS)

    def _try(self) -> None:
        # A silent peer is cut from here: the caller may have failed for another reason meanwhile.
        cut = threading.Timer(_ANSWER_SECONDS, abort, (self._sender,))
        cut.name, cut.daemon = f"pairbus-credential-end {self._namespace.host}", True
        cut.start()
        try:
            put_token(self._sender, _ANSWER_SECONDS)
        finally:
            cut.cancel()

    def _refusal(self, failure: Exception) -> str | None:
        said = describe_error(failure)
        if status_of(failure) == _UNAUTHORISED and any(each in said for each in _BAD_TOKENS):
            return "is refused there (it must be one of the whole namespace, not of one entity)"
        return None


def gives_tokens(namespace: Namespace) -> bool:
    """Return True for a credential of azure-identity's kind, neither a key nor a signature."""
    return not isinstance(namespace.credential, (AzureNamedKeyCredential, AzureSasCredential))


def is_for_all(namespace: Namespace) -> bool:
    """Return True unless the credential is a signature that names one entity."""
    credential = namespace.credential
    if not isinstance(credential, AzureSasCredential):
        return True
    found = re.search(r"\bsr=([^&]*)", credential.signature)
    resource = unquote_plus(found.group(1)) if found else ""
    return not urlsplit(resource if "://" in resource else f"sb://{resource}").path.strip("/")


def _failed_in_chain(credential: Any, scope: str) -> Exception | None:
    """Return the error that ended a chain such as `DefaultAzureCredential`, whose own error holds only its text."""
    for each in getattr(credential, "credentials", ()):
        try:
            each.get_token(scope)
        except Exception as error:
            if type(error).__name__ != _UNAVAILABLE:  # after such a one a chain goes on
                return error
    return None
