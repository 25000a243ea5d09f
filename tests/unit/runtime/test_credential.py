"""A credential with a deadline for each token: shared within a process, with the last token in reserve."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError

from pairbus.runtime import credential as module
from pairbus.runtime.credential import deadline_credential

SCOPE = "https://servicebus.azure.net/.default"


class Numbered:
    """A credential whose tokens are numbered; it does not answer while `free` is not set."""

    def __init__(self) -> None:
        self.asked = 0
        self.free = threading.Event()
        self.free.set()

    def get_token(self, *scopes: str, **kwargs: Any) -> AccessToken:
        self.asked += 1
        number = self.asked
        assert self.free.wait(30)
        return AccessToken(str(number), int(time.time()) + 3600)


@pytest.fixture
def numbered(monkeypatch: pytest.MonkeyPatch) -> Iterator[Numbered]:
    monkeypatch.setattr(module, "_FIRST_SECONDS", 0.2)
    monkeypatch.setattr(module, "_RENEWAL_SECONDS", 0.1)
    made = Numbered()
    yield made
    made.free.set()


def test_the_last_token_is_used_while_there_is_no_other(numbered: Numbered) -> None:
    """It is valid, and a send waits for it."""
    credential = deadline_credential(numbered)
    assert credential.get_token(SCOPE).token == "1"
    numbered.free.clear()
    assert credential.get_token(SCOPE).token == "1"


def test_a_token_for_claims_is_not_kept(numbered: Numbered) -> None:
    """The service asks with claims when it has refused a token: the next such request needs a new one."""
    credential = deadline_credential(numbered)
    assert credential.get_token(SCOPE, claims="more").token == "1"
    numbered.free.clear()
    with pytest.raises(ClientAuthenticationError, match="has not given a token in time"):
        credential.get_token(SCOPE, claims="more")


def test_a_process_shares_one_and_a_forked_one_has_its_own(numbered: Numbered, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that the parent's thread has begun would never be answered in the child."""
    ours = deadline_credential(numbered)
    assert deadline_credential(numbered) is ours
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert deadline_credential(numbered) is not ours
