"""Credentials are tried when a pairing is opened: a bad one is told then, not by the first send.

One of azure-identity's is asked for a token; a token that a key has signed is shown to the service.
"""

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

#: How long opening a pairing waits for a token, and for the service's answer to one.
_TOKEN_SECONDS = 10.0
_ANSWER_SECONDS = 5.0
#: azure-identity's for a credential that has not even tried; it need not be installed.
_UNAVAILABLE = "CredentialUnavailableError"
#: How the service says that a token is no good, whatever it is for: a right that is missing sounds otherwise.
_UNAUTHORISED = 401
_BAD_TOKENS = ("InvalidSignature", "ExpiredToken", "MalformedToken")


class Inquiry(ABC):
    """Tries a namespace's credential, once, on a thread of its own."""

    def __init__(self, role: str, namespace: Namespace, patience: float) -> None:
        self._role = role
        self._namespace = namespace
        self._deadline = time.monotonic() + patience
        self._call = start_call(self._try, f"pairbus-credential {namespace.host}")

    @abstractmethod
    def _try(self) -> None:
        """Use the credential; raise what comes of it."""

    @abstractmethod
    def _refusal(self, failure: Exception) -> str | None:
        """What was refused for good, if that is what a failure says."""

    def check(self) -> None:
        """Raise if the credential was refused for good.

        A network that fails, or no answer in time, is no reason not to start: sends tell, or are parked.
        """
        if not is_done_within(self._call, max(self._deadline - time.monotonic(), 0.0)):
            return
        failure = self._call.exception()
        if not isinstance(failure, Exception):
            return
        whose = f"the credential of {self._role} {self._namespace.host}"
        if (refusal := self._refusal(failure)) is not None:
            raise PairingError(f"{whose} {refusal}: {describe_error(failure)}") from failure
        log.debug("%s could not be tried: %s", whose, describe_error(failure))


class TokenInquiry(Inquiry):
    """Asks a credential of azure-identity for a token."""

    def __init__(self, role: str, namespace: Namespace, scope: str) -> None:
        self._scope = scope
        super().__init__(role, namespace, _TOKEN_SECONDS)

    def _try(self) -> None:
        credential = deadline_credential(self._namespace.credential)
        try:
            credential.get_token(self._scope)
        except Exception:
            broke = _broke(credential, self._scope)
            if broke is None:
                raise
            raise broke  # noqa: B904 - what it was raised from tells a refusal from a network that failed

    def _refusal(self, failure: Exception) -> str | None:
        return "gives no token" if has_no_credential(failure) else None


class KeyInquiry(Inquiry):
    """Shows the service a token that a key has signed, or the signature that was given."""

    def __init__(self, role: str, namespace: Namespace) -> None:
        self._sender = token_sender(namespace, _ANSWER_SECONDS)
        super().__init__(role, namespace, _ANSWER_SECONDS)

    def _try(self) -> None:
        # A peer that says nothing is left by itself: who has asked may have failed for another reason meanwhile.
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
    """Whether its credential is one of azure-identity's kind, neither a key nor a signature."""
    return not isinstance(namespace.credential, (AzureNamedKeyCredential, AzureSasCredential))


def is_for_all(namespace: Namespace) -> bool:
    """Whether a key or a signature is for a whole namespace, as far as can be told: a signature says what it is for."""
    credential = namespace.credential
    if not isinstance(credential, AzureSasCredential):
        return True
    found = re.search(r"\bsr=([^&]*)", credential.signature)
    resource = unquote_plus(found.group(1)) if found else ""
    return not urlsplit(resource if "://" in resource else f"sb://{resource}").path.strip("/")


def _broke(credential: Any, scope: str) -> Exception | None:
    """The error at which a chain of credentials has ended, such as `DefaultAzureCredential`: the chain's own error
    holds its text only, and so does not tell a network that fails from a refusal."""
    for each in getattr(credential, "credentials", ()):
        try:
            each.get_token(scope)
        except Exception as error:
            if type(error).__name__ != _UNAVAILABLE:  # after such a one a chain goes on
                return error
    return None
