"""Nothing that pairbus says holds a secret: no repr, log record, event, status or error, in a story of much trouble."""

from __future__ import annotations

import base64
import json
import logging
import re
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote_plus, unquote_plus

import pytest
from azure.core.credentials import AccessToken, AzureSasCredential
from azure.servicebus import ServiceBusMessage

from pairbus import BacklogUnavailableError, Namespace, OptionError, PairingError, PairingOptions
from pairbus.localbus import LocalBus
from pairbus.localbus.auth import DEFAULT_KEY_NAME
from pairbus.runtime.redaction import describe_error
from tests.support.pairing import Pair, entity_of_sender
from tests.support.process_fixtures import key_of, sas_token, with_key
from tests.support.waiting import wait_until

WRONG_KEY = "d3Jvbmcta2V5LXRoYXQtbm9ib2R5LW1heS1zZWU="
JWT = "eyJhbGciOiJub25lIn0.eyJhdWQiOiJzZWNyZXQtY2xhaW1zIn0.c2VjcmV0LXNpZ25hdHVyZQ"


pytestmark = pytest.mark.usefixtures("quick_pings")


class Token:
    """A credential whose token is refused."""

    def get_token(self, *scopes: str, **kwargs: Any) -> AccessToken:
        return AccessToken(JWT, int(time.time()) + 3600)


class Everything(logging.Handler):
    """Every record of every logger as text, with its traceback and its extra fields, by the logger's name."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.seen: list[tuple[str, str]] = []
        self._formatter = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        extra = {name: value for name, value in vars(record).items() if name != "args"}
        self.seen.append((record.name, f"{self._formatter.format(record)} {extra!r}"))

    def of(self, prefix: str) -> list[str]:
        return [text for name, text in self.seen if name == prefix or name.startswith(f"{prefix}.")]


@pytest.fixture
def everything() -> Iterator[Everything]:
    """The root logger and all below it at DEBUG."""
    root, handler = logging.getLogger(), Everything()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler
    root.removeHandler(handler)
    root.setLevel(before)


class Said:
    """Texts and errors that the program was given, with all that belongs to them."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def hear(self, *things: Any) -> None:
        for each in things:
            self.texts += [repr(each), str(each)]

    def error_of(self, kind: type[Exception] | tuple[type[Exception], ...], call: Callable[[], Any]) -> None:
        with pytest.raises(kind) as raised:
            call()
        error: BaseException | None = raised.value
        assert error is not None
        self.texts.append("".join(traceback.format_exception(error)))
        while error is not None:
            self.hear(error, describe_error(error))
            self.hear(*(value for name, value in vars(error).items() if name in ("reasons", "message", "messages")))
            error = error.__cause__ or error.__context__


def forms(secret: str) -> set[str]:
    """A secret as it may appear: as it is, quoted for a URL, unquoted, without its padding, in base64."""
    found = {secret, quote_plus(secret), unquote_plus(secret), secret.rstrip("=")}
    return found | {base64.b64encode(secret.encode()).decode().rstrip("=")}


def signature_of(token: str) -> str:
    found = re.search(r"sig=([^&]+)", token)
    assert found
    return found.group(1)


def assert_silent(texts: list[str], secrets: set[str]) -> None:
    hidden = {form for secret in secrets for form in forms(secret)}
    assert texts
    for text in texts:
        for secret in hidden:
            assert secret not in text, f"a secret is in {text[:2000]}"
        assert not re.search(r"sig=(?!\*\*\*)[A-Za-z0-9%+/]{8,}", text), text[:2000]


def test_a_whole_story_shows_no_secret(pair: Pair, everything: Everything) -> None:
    """Wrong key, refused token, outage, failover, no backlog left, failback, changed rights, close: not one secret."""
    said = Said()
    queue = pair.queue()
    first, second = pair.primary.connection_string, pair.secondary.connection_string
    token = sas_token(f"sb://127.0.0.1:{pair.primary.port}/", DEFAULT_KEY_NAME, key_of(first), time.time() + 600)
    secrets = {key_of(first), key_of(second), WRONG_KEY, JWT, JWT.rpartition(".")[2], signature_of(token)}

    # Refused before it begins: a wrong key, a token that is not taken, a signature that is none.
    wrong = pair.secondary_namespace(with_key(second, DEFAULT_KEY_NAME, WRONG_KEY))
    said.error_of(PairingError, lambda: pair.pairing(secondary=wrong))
    host = f"127.0.0.1:{pair.secondary.port}"
    entra = Namespace(host, credential=Token(), name="backup", ca_file=pair.secondary.ca_file, use_tls=False)
    said.error_of(PairingError, lambda: pair.pairing(secondary=entra))
    stale = AzureSasCredential(token)
    signed = Namespace(host, credential=stale, name="backup", ca_file=pair.secondary.ca_file, use_tls=False)
    said.error_of(PairingError, lambda: pair.pairing(secondary=signed))
    said.hear(wrong, entra, signed)

    # A primary that refuses: wrong key, token, signature for another host, or for another entity.
    home = f"127.0.0.1:{pair.primary.port}"
    bad = pair.primary_namespace(with_key(first, DEFAULT_KEY_NAME, WRONG_KEY))
    said.error_of(PairingError, lambda: pair.pairing(primary=bad))
    elsewhere = token.replace(str(pair.primary.port), "1")
    astray = Namespace(home, credential=AzureSasCredential(elsewhere), name=pair.name, use_tls=False)
    said.error_of(PairingError, lambda: pair.pairing(primary=astray))
    one = sas_token(f"sb://{home}/another", DEFAULT_KEY_NAME, key_of(first), time.time() + 600)
    secrets.add(signature_of(one))
    for place in (
        Namespace(home, credential=Token(), name=pair.name, use_tls=False),
        Namespace(home, credential=AzureSasCredential(one), name=pair.name, use_tls=False),
    ):
        refused = pair.pairing(primary=place)
        sender = refused.get_queue_sender(queue)
        said.error_of(Exception, lambda sender=sender: sender.send_messages(ServiceBusMessage("x")))  # type: ignore[misc]
        said.hear(refused, sender, refused.primary, refused.status(), refused.status().as_dict(), place)
        refused.close()

    # An outage, with the backlog gone too for a while, and the way back.
    bus = pair.pairing(ping_primary_interval=0.5)
    sender = bus.get_queue_sender(queue).__enter__()
    sender.send_messages(ServiceBusMessage("direct"))
    pair.fail_over(sender)
    said.hear(bus, sender, bus.options, bus.primary, bus.secondary, bus.status())
    pair.secondary.kill()
    said.error_of(BacklogUnavailableError, lambda: sender.send_messages(ServiceBusMessage("nowhere")))
    said.hear(bus.status(), json.dumps(bus.status().as_dict()))
    pair.primary.restart()
    wait_until(lambda: pair.told("failed back"))
    pair.secondary.restart()
    bus.close()
    said.error_of(ValueError, lambda: sender.send_messages(ServiceBusMessage("late")))
    said.hear(bus, sender, bus.backlog, entity_of_sender(sender), *pair.events)

    kinds = {event.kind for event in pair.events}
    assert {"failed over", "failed back", "queue left rotation", "pairing closed"} <= kinds, "the story was told"
    assert_silent(said.texts, secrets)
    assert_silent(everything.of("pairbus"), secrets)
    assert everything.of("azure"), "the SDK's records were looked at, too"
    assert_silent([text for _, text in everything.seen], secrets)


@pytest.mark.parametrize(
    "given",
    [
        "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey={key};EntityPath=q",
        "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKey={key}",
        "Endpoint=sb://;SharedAccessKeyName=a;SharedAccessKey={key}",
        "SharedAccessKeyName=a;SharedAccessKey={key}",
        "sb://contoso.servicebus.windows.net/;{key}",
        "{key}",
    ],
)
def test_a_connection_string_that_is_refused_is_not_quoted(given: str) -> None:
    """Whatever is wrong with a connection string, the error shows no key."""
    said = Said()
    text = given.format(key=WRONG_KEY)
    said.error_of(OptionError, lambda: Namespace.from_connection_string(text))
    said.error_of(OptionError, lambda: Namespace(text + ";", credential=Token()))
    said.error_of(OptionError, lambda: Namespace("contoso.servicebus.windows.net", credential=WRONG_KEY))
    # A traceback quotes lines of code, never the values in them.
    assert_silent(said.texts, {WRONG_KEY})


def test_reprs_of_what_holds_credentials_are_short_and_silent() -> None:
    """A namespace says its host, its name and what kind of credential it has; options do not show the callback."""
    text = f"Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=root;SharedAccessKey={WRONG_KEY}"
    shown = repr(Namespace.from_connection_string(text))
    assert "contoso.servicebus.windows.net" in shown
    assert "AzureNamedKeyCredential" in shown
    assert_silent([shown, repr(PairingOptions(on_event=print))], {WRONG_KEY})
    assert "print" not in repr(PairingOptions(on_event=print))


@pytest.mark.parametrize(
    "text",
    [
        f"SharedAccessSignature sr=sb%3a%2f%2fcontoso&sig={quote_plus(WRONG_KEY)}&se=1&skn=root",
        f"Endpoint=sb://contoso/;SharedAccessKeyName=root;SharedAccessKey={WRONG_KEY};x",
        f"Endpoint=sb://contoso/;SharedAccessSignature=SharedAccessSignature sr=x&sig={WRONG_KEY}&se=1",
        f"https://contoso/q?token={WRONG_KEY}",
        f"'Authorization': 'Bearer {JWT}'",
        f"the token {JWT} is expired",
    ],
    ids=["signature", "key", "connection string", "query", "header", "jwt"],
)
def test_an_error_that_quotes_a_secret_is_told_without_it(text: str) -> None:
    """Should the service or the SDK put a secret into an error's text, events, log and status have it masked."""
    assert_silent([describe_error(RuntimeError(text))], {WRONG_KEY, JWT})


def test_secrets_are_masked_before_a_text_is_cut() -> None:
    """A long error is cut to a line's length: never in the middle of a secret that is then no longer recognised."""
    for filler in range(470, 500):
        told = describe_error(RuntimeError("x" * filler + f" sig={quote_plus(WRONG_KEY)}&se=1"))
        assert WRONG_KEY[:8] not in told


def test_the_localbus_of_these_tests_knows_its_own_secrets(pair: Pair) -> None:
    """The secrets that the other tests look for are really used: otherwise those tests could not fail."""
    assert isinstance(pair.primary, LocalBus)
    assert len(key_of(pair.primary.connection_string)) > 16
    with pytest.raises(AssertionError, match="a secret"):
        assert_silent([f"x {key_of(pair.primary.connection_string)} y"], {key_of(pair.primary.connection_string)})
