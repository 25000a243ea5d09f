"""A credential has a deadline for each token: in itself, and in a pairing whose sends need one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AccessToken, AccessTokenInfo, AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import ClientAuthenticationError
from azure.eventhub import EventData
from azure.servicebus import ServiceBusMessage

from pairbus import Namespace, PairedNamespace, PairingError, PairingOptions, ProvisioningError, pair_namespaces
from pairbus.domain.conditions import Meaning
from pairbus.localbus import LocalBus
from pairbus.runtime import credential as module
from pairbus.runtime.credential import deadline_credential
from pairbus.sending.sdk.classification import has_no_credential, meaning_of
from tests.support.pairing import IMPATIENT, Pair, entity_of, idle_connection, pairbus_threads
from tests.support.process_fixtures import create
from tests.support.waiting import wait_until

SCOPE = "https://servicebus.azure.net/.default"


class Holding:
    """A credential whose tokens are numbered; it does not answer while it is held."""

    def __init__(self) -> None:
        self.asked: list[tuple[tuple[str, ...], dict[str, Any]]] = []
        self.free = threading.Event()
        self.free.set()
        self.error: Exception | None = None
        self.life = 3600.0

    def get_token(self, *scopes: str, **kwargs: Any) -> AccessToken:
        self.asked.append((scopes, kwargs))
        number = len(self.asked)
        self.free.wait()
        if self.error is not None:
            raise self.error
        return AccessToken(f"eyJ0.eyJ1.secret{number}", int(time.time() + self.life))

    def hold(self) -> None:
        self.free.clear()


class Informing(Holding):
    """One that has `get_token_info` as well, as those of azure-identity have."""

    def get_token_info(self, *scopes: str, options: Any = None) -> AccessTokenInfo:
        found = self.get_token(*scopes, options=options)
        return AccessTokenInfo(found.token, found.expires_on)


@pytest.fixture
def credential() -> Any:
    """One that is held no longer when the test is over."""
    made = Informing()
    yield made
    made.free.set()
    wait_until(lambda: "pairbus-token" not in pairbus_threads(), why=pairbus_threads)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer is waited for long."""
    monkeypatch.setattr(module, "_FIRST_SECONDS", 0.2)
    monkeypatch.setattr(module, "_RENEWAL_SECONDS", 0.2)


# --- by itself -------------------------------------------------------------------------------------------------------


def test_a_credential_that_answers_is_asked_each_time_and_its_answer_is_handed_on(credential: Informing) -> None:
    """Arguments, token and error are the very ones; an error is not hidden by a token that is still good."""
    patient = deadline_credential(credential)
    first = patient.get_token(SCOPE, claims="more", tenant_id="t")
    second = patient.get_token(SCOPE)
    assert (first.token, second.token) == ("eyJ0.eyJ1.secret1", "eyJ0.eyJ1.secret2")
    assert credential.asked == [((SCOPE,), {"claims": "more", "tenant_id": "t"}), ((SCOPE,), {})]
    credential.error = ClientAuthenticationError("please sign in")
    with pytest.raises(ClientAuthenticationError) as raised:
        patient.get_token(SCOPE)
    assert raised.value is credential.error


def test_keys_and_signatures_stay_what_they_are_and_a_credential_has_one_bounded(credential: Informing) -> None:
    """An SDK tells keys and signatures by their class. All who use one credential share what is known of it."""
    for key in (AzureNamedKeyCredential("name", "a2V5"), AzureSasCredential("sr=x")):
        assert deadline_credential(key) is key
    assert deadline_credential(credential) is deadline_credential(credential)


def test_token_info_is_there_where_the_credential_has_it(credential: Informing) -> None:
    """azure-core looks for `get_token_info`, and calls it with options; what else a credential has is there, too."""
    patient = deadline_credential(credential)
    found = patient.get_token_info(SCOPE, options={"enable_cae": True})
    assert isinstance(found, AccessTokenInfo)
    assert credential.asked == [((SCOPE,), {"options": {"enable_cae": True}})]
    assert patient.life == 3600.0
    assert not hasattr(deadline_credential(Holding()), "get_token_info")
    assert not hasattr(patient, "token_type")


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("method", ["get_token", "get_token_info"])
def test_while_it_does_not_answer_the_last_token_is_given_again(credential: Informing, method: str) -> None:
    """However many ask meanwhile, one thread waits for it; when the new token has come, that is the last one."""
    ask: Callable[..., Any] = getattr(deadline_credential(credential), method)
    first = ask(SCOPE)
    credential.hold()
    with ThreadPoolExecutor(8) as pool:
        assert {each.token for each in pool.map(lambda _: ask(SCOPE), range(20))} == {first.token}
    assert pairbus_threads().count("pairbus-token") == 1
    assert len(credential.asked) == 2
    credential.free.set()
    wait_until(lambda: "pairbus-token" not in pairbus_threads(), why=pairbus_threads)
    credential.hold()
    assert ask(SCOPE).token == "eyJ0.eyJ1.secret2"


@pytest.mark.usefixtures("hurried")
def test_without_a_good_token_it_raises_as_one_that_could_not_be_asked(credential: Informing) -> None:
    """No token yet, an expired one, one for another scope, one that the service has refused: no token is given,
    and the error says so. For a sender that is a network that fails, no refusal."""
    credential.life = -1
    ask = deadline_credential(credential).get_token
    ask(SCOPE)
    credential.life = 3600
    ask("another scope")
    credential.hold()
    for kwargs in ({}, {"claims": "more"}):
        with pytest.raises(ClientAuthenticationError, match="Informing has not given a token") as raised:
            ask(SCOPE, **kwargs)
        assert "secret" not in repr(raised.value)
        assert meaning_of(raised.value) is Meaning.OUTAGE
        assert not has_no_credential(raised.value)


@pytest.mark.usefixtures("hurried")
def test_a_token_that_ends_while_another_is_waited_for_is_not_given(
    credential: Informing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service would refuse it, and a refusal is no outage; that there is none to be had in time is one."""
    ask = deadline_credential(credential).get_token
    ask(SCOPE)
    credential.hold()
    answers = iter([True, False])
    monkeypatch.setattr(module, "_is_valid", lambda token: next(answers))
    with pytest.raises(ClientAuthenticationError, match="in time") as raised:
        ask(SCOPE)
    assert meaning_of(raised.value) is Meaning.OUTAGE


def test_without_threads_the_credential_is_called_on_the_callers_thread(
    credential: Informing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its token is kept as any other; without a deadline, since there is no thread to leave behind."""
    ask = deadline_credential(credential).get_token

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", start)
        assert ask(SCOPE).token == "eyJ0.eyJ1.secret1"
    monkeypatch.setattr(module, "_RENEWAL_SECONDS", 0.0)
    credential.hold()
    assert ask(SCOPE).token == "eyJ0.eyJ1.secret1"


def test_private_attributes_of_a_credential_are_not_handed_on(credential: Informing) -> None:
    """Else copying an object that is not made yet would never end."""
    credential._cache = "x"  # type: ignore[attr-defined]
    assert not hasattr(deadline_credential(credential), "_cache")


def test_it_shows_no_token(credential: Informing) -> None:
    """Neither its `repr` nor its text, while it holds one."""
    patient = deadline_credential(credential)
    patient.get_token(SCOPE)
    assert repr(patient) == "<DeadlineCredential of Informing>"
    assert str(patient) == repr(patient)


# --- in a pairing ----------------------------------------------------------------------------------------------------


def at(bus: LocalBus, name: str, credential: Any) -> Namespace:
    return Namespace(f"127.0.0.1:{bus.port}", credential=credential, name=name, ca_file=bus.ca_file, use_tls=False)


def near_its_end(bus: PairedNamespace, entity: str) -> None:
    """As far as the SDK can tell, the token of the entity's open link has come to its last tenth."""
    connection = idle_connection(entity_of(bus, entity).pool)
    authenticator = connection.sender._handler._cbs_authenticator
    authenticator._refresh_window = authenticator._expires_on


def test_a_send_is_not_held_by_a_credential_that_renews_a_token(pair: Pair, credential: Informing) -> None:
    """On an open link whose token nears its end, while the credential does not answer: the primary accepts the message
    with the token that is still good, and nothing fails over."""
    with LocalBus("contoso", accept_any_jwt=True) as primary:
        create(primary, "orders")
        bus = pair.pairing(primary=at(primary, pair.name, credential), send_timeout=60)
        sender = bus.get_queue_sender("orders")
        sender.send_messages(ServiceBusMessage("1"))
        near_its_end(bus, "orders")
        credential.hold()
        asked = len(credential.asked)
        with ThreadPoolExecutor(1) as pool:
            sending: Future[None] = pool.submit(sender.send_messages, ServiceBusMessage("2"))
            try:
                sending.result(50)  # while it is held, and before the send itself is over its time
            finally:
                credential.free.set()
        assert len(credential.asked) == asked + 1
        assert bus.status().entities["orders"].state == "available"
        assert pair.count(primary, "orders") == 2
        bus.close()
    assert pair.parked() == 0


def test_nor_is_an_event(pair: Pair, credential: Informing, tmp_path: Path) -> None:
    """azure-eventhub asks in the same way."""
    entities = tmp_path / "hubs.toml"
    entities.write_text('[[event_hubs]]\nname = "telemetry"\npartition_count = 1\n')
    with LocalBus("hubs", entities=entities, accept_any_jwt=True) as hubs:
        place = at(hubs, "hubs", credential)
        options = PairingOptions(**{**IMPATIENT, "send_timeout": 60})
        places = pair.primary_namespace(), pair.secondary_namespace()
        with pair_namespaces(*places, options, event_hubs=place) as bus, bus.get_event_hub_producer("telemetry") as out:
            out.send_event(EventData("1"))
            name = f"sb://{place.host}/telemetry"
            near_its_end(bus, name)
            credential.hold()
            with ThreadPoolExecutor(1) as pool:
                sending: Future[None] = pool.submit(out.send_event, EventData("2"))
                try:
                    sending.result(50)
                finally:
                    credential.free.set()
            found = bus.status().entities[name]
            assert (found.state, found.sent, found.parked) == ("available", 2, 0)


def test_a_send_whose_token_has_ended_is_parked(pair: Pair, credential: Informing) -> None:
    """The credential does not answer, the link is gone and there is no token for another: that is an outage."""
    with LocalBus("contoso", accept_any_jwt=True) as primary:
        create(primary, "orders")
        credential.life = -1
        bus = pair.pairing(primary=at(primary, pair.name, credential))
        sender = bus.get_queue_sender("orders")
        credential.hold()
        sender.send_messages(ServiceBusMessage("parked"))
        assert not credential.free.is_set()
        assert bus.status().entities["orders"].state == "failed over"
        bus.close()
    assert pair.parked_bodies() == ["parked"]


def test_a_pairing_does_not_wait_for_ever_for_the_secondarys_credential(
    pair: Pair, credential: Informing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says whose credential gives no token, while that still keeps it waiting; no thread waits on but the one that
    asks it."""
    monkeypatch.setattr(module, "_FIRST_SECONDS", 1.0)
    credential.hold()
    place = at(pair.secondary, "backup", credential)
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(lambda: pair.pairing(secondary=place))
        try:
            refusal = opening.exception(60)
        finally:
            credential.free.set()
    assert isinstance(refusal, PairingError)
    assert not isinstance(refusal, ProvisioningError)
    assert f"the secondary {place.host} gives no token" in str(refusal)
    assert len(credential.asked) == 1
