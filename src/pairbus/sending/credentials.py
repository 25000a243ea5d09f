"""Credentials that give tokens are asked when a pairing is opened: a bad one is told then, not by the first send.

A key or a signature cannot be tried so: it may be good for one entity only, which nobody has named yet.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

from ..errors import PairingError
from ..options import Namespace
from .classification import has_no_credential
from .sdk import describe

#: How long opening a pairing waits for a token, from the question on.
_PATIENCE_SECONDS = 10.0
#: azure-identity's for a credential that has not even tried; it need not be installed.
_UNAVAILABLE = "CredentialUnavailableError"


class Inquiry:
    """Asks a namespace's credential for a token, once, on a thread of its own."""

    def __init__(self, role: str, namespace: Namespace, scope: str) -> None:
        self._role = role
        self._namespace = namespace
        self._scope = scope
        self._failure: Exception | None = None
        self._answered = threading.Event()
        self._deadline = time.monotonic() + _PATIENCE_SECONDS
        threading.Thread(target=self._ask, name=f"pairbus-credential {namespace.host}", daemon=True).start()

    def _ask(self) -> None:
        credential = self._namespace.credential
        try:
            credential.get_token(self._scope)
        except Exception as error:
            self._failure = _broke(credential, self._scope) or error
        finally:
            self._answered.set()

    def check(self) -> None:
        """Raise if the credential was refused for good.

        A network that fails, or no answer in time, is no reason not to start: sends tell, or are parked.
        """
        self._answered.wait(max(self._deadline - time.monotonic(), 0.0))
        failure = self._failure
        if failure is not None and has_no_credential(failure):
            raise PairingError(
                f"the credential of {self._role} {self._namespace.host} gives no token: {describe(failure)}"
            ) from failure


def gives_tokens(namespace: Namespace) -> bool:
    """Whether its credential is one of azure-identity's kind, neither a key nor a signature."""
    return not isinstance(namespace.credential, (AzureNamedKeyCredential, AzureSasCredential))


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
