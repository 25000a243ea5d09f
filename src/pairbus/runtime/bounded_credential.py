"""A credential of azure-identity that is waited for, but not for ever.

The SDKs ask a credential on the caller's thread, also in the midst of a send: when a link is open and its token comes
to its end. A credential may take as long as it likes, or never answer. So it is asked on a thread that can be left
behind. While the last token is still good, that one does as well.
"""

from __future__ import annotations

import contextvars
import os
import threading
import time
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus._base_handler import ServiceBusSASTokenCredential, ServiceBusSharedKeyCredential

#: How long an answer is waited for where there is no other token: somebody may have to sign in by hand.
_FIRST_SECONDS = 60.0
#: The same while the last token is good. Short: this is part of somebody's send.
_RENEWAL_SECONDS = 1.0
#: Keys and signatures: they ask nobody.
_KEYS = (AzureNamedKeyCredential, AzureSasCredential, ServiceBusSharedKeyCredential, ServiceBusSASTokenCredential)

#: The method, the scopes, and all else that a token was asked for with.
_Question = tuple[str, tuple[str, ...], str]


def bounded(credential: Any) -> Any:
    """What an SDK is given instead of a credential; the same one for all who use it. Keys and signatures stay as they
    are."""
    if isinstance(credential, _KEYS):
        return credential
    key = os.getpid(), id(credential)  # a fork does not copy the threads that ask
    with _lock:
        found = _known.get(key)
        if found is None:
            found = _known[key] = BoundedCredential(credential)
        return found


class BoundedCredential:
    """Asks a credential for tokens, once at a time for each scope, and keeps the last ones."""

    def __init__(self, credential: Any) -> None:
        self._credential = credential
        self._lock = threading.Lock()
        self._asking: dict[_Question, _Asking] = {}
        self._last: dict[_Question, Any] = {}

    def get_token(self, *scopes: str, **kwargs: Any) -> Any:
        """The credential's answer, be it an error. If there is none in time: the last token while that is good, or
        `ClientAuthenticationError`."""
        return self._ask("get_token", *scopes, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """All else that the credential has. `get_token_info`, which an SDK uses where it is there, is bounded, too."""
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self._credential, name)
        return partial(self._ask, name) if name == "get_token_info" else found

    def __repr__(self) -> str:
        return f"<BoundedCredential of {type(self._credential).__name__}>"

    def _ask(self, method: str, *scopes: str, **kwargs: Any) -> Any:
        question = method, scopes, repr(sorted(kwargs.items()))
        with self._lock:
            last = self._last.get(question)
            asking = self._asking.get(question)
            if mine := asking is None:
                asking = self._asking[question] = _Asking()
        assert asking is not None
        if mine:
            context = contextvars.copy_context()  # of a tracer, for example
            run: Any = (self._run, asking, question, kwargs)
            try:
                threading.Thread(target=context.run, args=run, name="pairbus-token", daemon=True).start()
            except RuntimeError:  # no more threads
                self._run(asking, question, kwargs)
        # Who comes later does not wait anew for what is late already.
        seconds = _FIRST_SECONDS
        if _is_good(last):
            seconds = max(asking.began + _RENEWAL_SECONDS - time.monotonic(), 0.0)
        if asking.answered.wait(seconds):
            if asking.error is not None:
                raise asking.error
            return asking.token
        if _is_good(last):  # it may have ended meanwhile
            return last
        who = type(self._credential).__name__
        # As azure-identity says that it could not ask: that is no refusal.
        raise ClientAuthenticationError(f"{who} has not given a token in time") from TimeoutError(
            f"no answer within {seconds:g} s"
        )

    def _run(self, asking: _Asking, question: _Question, kwargs: dict[str, Any]) -> None:
        method, scopes, _ = question
        try:
            asking.token = getattr(self._credential, method)(*scopes, **kwargs)
        except BaseException as error:  # handed to whoever waits
            asking.error = error
        with self._lock:
            del self._asking[question]
            if asking.error is None and not _has_claims(kwargs):
                self._last[question] = asking.token
        asking.answered.set()


class _Asking:
    """One question that was put to a credential, and its answer. Never printed."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.answered = threading.Event()
        self.token: Any = None
        self.error: BaseException | None = None


def _is_good(token: Any) -> bool:
    ends = getattr(token, "expires_on", None)
    return isinstance(ends, (int, float)) and ends > time.time()


def _has_claims(kwargs: dict[str, Any]) -> bool:
    """Whether the service has asked for another token than the last."""
    return bool(kwargs.get("claims") or (kwargs.get("options") or {}).get("claims"))


_known: WeakValueDictionary[tuple[int, int], BoundedCredential] = WeakValueDictionary()
_lock = threading.Lock()
