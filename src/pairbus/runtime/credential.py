"""A credential of azure-identity with a deadline for each token.

The SDKs ask a credential for a token on the caller's thread, even in the middle of a send. A credential may never
answer, so it is called on a thread that can be left behind. Meanwhile the last token is used while that is valid.
"""

from __future__ import annotations

import contextvars
import os
import threading
import time
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import ClientAuthenticationError

from .bounded_call import is_done_within, start_call

#: The longest wait for a token where there is no valid one: a user may have to sign in by hand.
_FIRST_SECONDS = 60.0
#: The longest wait while the last token is valid. Short, since a send waits meanwhile.
_RENEWAL_SECONDS = 1.0

#: The method and the arguments of a request for a token: two requests with the same ones are one.
_Arguments = tuple[str, tuple[str, ...], str]


def deadline_credential(credential: Any) -> Any:
    """Return a credential with a deadline for each token, one for all callers; keys and signatures as they are."""
    if isinstance(credential, (AzureNamedKeyCredential, AzureSasCredential)):  # they contact no service
        return credential
    key = os.getpid(), id(credential)  # a forked process has none of its parent's threads
    with _lock:
        found = _known.get(key)
        if found is None:
            found = _known[key] = DeadlineCredential(credential)
        return found


class DeadlineCredential:
    """A token credential that calls another one, with at most one call under way for the same arguments."""

    def __init__(self, credential: Any) -> None:
        self._credential = credential
        self._lock = threading.Lock()
        self._requests: dict[_Arguments, _Request] = {}
        self._last: dict[_Arguments, Any] = {}

    def get_token(self, *scopes: str, **kwargs: Any) -> Any:
        """Return the credential's token; if it does not answer in time, the last one while that is valid."""
        return self._token("get_token", *scopes, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Return the credential's own attribute; `get_token_info`, which the SDKs prefer, gets the same deadline."""
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self._credential, name)
        return partial(self._token, name) if name == "get_token_info" else found

    def __repr__(self) -> str:
        return f"<DeadlineCredential of {type(self._credential).__name__}>"

    def _token(self, method: str, *scopes: str, **kwargs: Any) -> Any:
        arguments = method, scopes, repr(sorted(kwargs.items()))
        fetch = partial(self._fetch, arguments, kwargs)
        with self._lock:
            last = self._last.get(arguments)
            request = self._requests.get(arguments)
            if request is None:
                in_context = partial(contextvars.copy_context().run, fetch)  # a tracer keeps its span there
                try:
                    request = _Request(time.monotonic(), start_call(in_context, "pairbus-token"))
                    self._requests[arguments] = request
                except RuntimeError:  # no more threads: called below, without a deadline
                    pass
        if request is None:
            return fetch()
        # A caller that joins a late request does not wait for it as long again.
        seconds = _FIRST_SECONDS
        if _is_valid(last):
            seconds = max(request.began + _RENEWAL_SECONDS - time.monotonic(), 0.0)
        if is_done_within(request.token, seconds):
            return request.token.result()
        if _is_valid(last):  # it may have expired meanwhile
            return last
        # Raised as azure-identity does when it cannot reach the authority: an outage, and no refusal.
        raise ClientAuthenticationError(
            f"{type(self._credential).__name__} has not given a token in time"
        ) from TimeoutError(f"no answer within {seconds:g} s")

    def _fetch(self, arguments: _Arguments, kwargs: dict[str, Any]) -> Any:
        method, scopes, _ = arguments
        token = None
        try:
            token = getattr(self._credential, method)(*scopes, **kwargs)
        finally:
            with self._lock:
                self._requests.pop(arguments, None)
                if token is not None and not _has_claims(kwargs):
                    self._last[arguments] = token
        return token


class _Request(NamedTuple):
    """One call of a credential. Its `repr` shows no token, since that of a future shows no result."""

    began: float
    token: Future[Any]


def _is_valid(token: Any) -> bool:
    expires = getattr(token, "expires_on", None)
    return isinstance(expires, (int, float)) and expires > time.time()


def _has_claims(kwargs: dict[str, Any]) -> bool:
    """Return True if the service has refused the last token and asked for another."""
    return bool(kwargs.get("claims") or (kwargs.get("options") or {}).get("claims"))


_known: WeakValueDictionary[tuple[int, int], DeadlineCredential] = WeakValueDictionary()
_lock = threading.Lock()
