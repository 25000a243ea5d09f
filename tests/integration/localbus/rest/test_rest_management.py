"""The administration client, sync and async, over TLS against the management REST API.

Tests that do not use `fake` use `admin` and `site` alone: to run them against another server, give `site` that
server's connection string and CA file.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import http.client
import ssl
import time
from collections.abc import AsyncIterable, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, quote_plus

import pytest
import trustme
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncAdministrationClient
from azure.servicebus.management import (
    ApiVersion,
    AuthorizationRule,
    CorrelationRuleFilter,
    FalseRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from pairbus.localbus.broker.broker import Broker
from pairbus.localbus.bus_errors import AUTH_FAILED, BusError, not_found
from pairbus.localbus.rest.http import HttpProtocol, Request, Response
from pairbus.localbus.rest.management import Management
from pairbus.localbus.settings import FOREVER, Counts
from tests.support.fake_broker import FakeBroker
from tests.support.protocol_server import serving

KEY_NAME, KEY = "RootManageSharedAccessKey", "SAS_KEY_VALUE"


@dataclass
class Site:
    """A server: its connection string and CA file, and the broker if it is the fake one."""

    connection_string: str
    ca_file: str
    address: str
    broker: FakeBroker | None = None

    def sas(self, key: str = KEY) -> str:
        audience, expiry = quote_plus(f"https://{self.address}"), int(time.time()) + 300
        digest = hmac.new(key.encode(), f"{audience}\n{expiry}".encode(), hashlib.sha256).digest()
        signature = quote_plus(base64.b64encode(digest))
        return f"SharedAccessSignature sr={audience}&sig={signature}&se={expiry}&skn={KEY_NAME}"

    def send_request(self, method: str, path: str, body: str = "", **headers: str) -> tuple[int, str]:
        """Send one plain request, with a valid token by default."""
        context = ssl.create_default_context(cafile=self.ca_file)
        connection = http.client.HTTPSConnection(self.address, timeout=10, context=context)
        headers = {"Authorization": self.sas()} | {name.replace("_", "-"): text for name, text in headers.items()}
        try:
            connection.request(method, path, body.encode(), headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


def put_body(inner: str, kind: str = "QueueDescription") -> str:
    """Return the body of a PUT."""
    space = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
    return (
        f'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><{kind} xmlns="{space}">'
        f"{inner}</{kind}></content></entry>"
    )


def check_token(header: str | None, path: str, right: str) -> None:
    """Check a signature, as localbus does, in short."""
    assert right == "Manage"
    if not header:
        raise BusError(AUTH_FAILED, "MissingToken: The authorization header was not found.")
    fields = {name: values[0] for name, values in parse_qs(header.partition(" ")[2]).items()}
    text = f"{quote_plus(fields['sr'])}\n{fields['se']}".encode()
    if base64.b64encode(hmac.new(KEY.encode(), text, hashlib.sha256).digest()).decode() != fields["sig"]:
        raise BusError(AUTH_FAILED, "InvalidSignature: The token has an invalid signature.")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, str]:
    ca = trustme.CA()
    file: Path = tmp_path_factory.mktemp("ca") / "ca.pem"
    ca.cert_pem.write_to_path(file)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    return context, str(file)


async def extra(request: Request) -> Response:
    if request.path.endswith("unknown"):
        raise not_found("unknown")
    return Response(202, b"faults " + request.path.encode())


async def no_commit() -> None:
    """Return at once: the real broker keeps everything in memory here."""


@pytest.fixture
def site(authority: tuple[ssl.SSLContext, str], request: pytest.FixtureRequest) -> Iterator[Site]:
    """The REST API over the real broker, or over the fake one for tests that look into it."""
    context, ca_file = authority
    broker: Any = FakeBroker() if "fake" in request.fixturenames else None
    management = Management(
        broker or Broker("contoso"),
        check_token,
        broker.commit if broker is not None else no_commit,
        {"$localbus/faults": extra},
    )
    with serving(lambda: HttpProtocol(management.handle), context) as port:
        address = f"127.0.0.1:{port}"
        endpoint = f"Endpoint=sb://{address};SharedAccessKeyName={KEY_NAME};SharedAccessKey={KEY}"
        yield Site(f"{endpoint};UseDevelopmentEmulator=true", ca_file, address, broker)


@pytest.fixture
def fake(site: Site) -> FakeBroker:
    assert site.broker is not None
    return site.broker


class Blocking:
    """The async client with blocking methods, so that each test runs with both clients."""

    def __init__(self, client: AsyncAdministrationClient, loop: asyncio.AbstractEventLoop) -> None:
        self._client, self._loop = client, loop

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._loop.run_until_complete(_finish(method(*args, **kwargs)))

        return call


async def _finish(result: Any) -> Any:
    if isinstance(result, AsyncIterable):
        return [item async for item in result]
    return await result


@pytest.fixture(params=["sync", "aio"])
def admin(site: Site, request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "sync":
        with sync(site) as client:
            yield client
        return
    loop = asyncio.new_event_loop()

    async def connect() -> AsyncAdministrationClient:
        return AsyncAdministrationClient.from_connection_string(site.connection_string, connection_verify=site.ca_file)

    connected = loop.run_until_complete(connect())
    yield Blocking(connected, loop)
    loop.run_until_complete(connected.close())
    loop.run_until_complete(asyncio.sleep(0.05))  # aiohttp's TLS connections close in the next turns
    loop.close()


def sync(site: Site, **options: Any) -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient.from_connection_string(
        site.connection_string, connection_verify=site.ca_file, **options
    )


# queues


def test_a_queue_is_created_with_the_services_defaults(admin: Any) -> None:
    """Settings that are left out have Azure's values."""
    before = datetime.now(timezone.utc) - timedelta(seconds=1)
    made = admin.create_queue("orders")
    found = admin.get_queue("orders")
    for queue in (made, found):
        assert queue.name == "orders"
        assert queue.lock_duration == timedelta(minutes=1)
        assert queue.max_size_in_megabytes == 1024
        assert queue.max_delivery_count == 10
        assert queue.default_message_time_to_live == FOREVER
        assert queue.auto_delete_on_idle == FOREVER
        assert queue.duplicate_detection_history_time_window == timedelta(minutes=10)
        assert queue.status == "Active"
        assert queue.availability_status == "Available"
        assert queue.enable_batched_operations is True
        assert queue.requires_session is False
        assert queue.requires_duplicate_detection is False
        assert queue.enable_partitioning is False
        assert queue.forward_to is None
        assert queue.user_metadata is None
        assert queue.authorization_rules is None
        assert queue.max_message_size_in_kilobytes == 256
    runtime = admin.get_queue_runtime_properties("orders")
    assert before < runtime.created_at_utc < datetime.now(timezone.utc) + timedelta(seconds=1)
    assert runtime.accessed_at_utc is not None
    assert runtime.size_in_bytes == runtime.total_message_count == runtime.active_message_count == 0


def test_every_setting_of_a_queue_is_kept(admin: Any, site: Site) -> None:
    """A queue created with every setting is returned with every setting."""
    admin.create_topic("sink")
    admin.create_queue(
        "full",
        auto_delete_on_idle=timedelta(minutes=10),
        dead_lettering_on_message_expiration=True,
        default_message_time_to_live="PT11M2S",
        duplicate_detection_history_time_window=timedelta(minutes=12),
        enable_batched_operations=False,
        enable_express=True,
        enable_partitioning=True,
        forward_to="sink",
        forward_dead_lettered_messages_to=f"sb://{site.address}/sink",
        lock_duration=timedelta(seconds=13),
        max_delivery_count=14,
        max_size_in_megabytes=3072,
        user_metadata="<what & why>",
        status="SendDisabled",
    )
    queue = admin.get_queue("full")
    assert queue.auto_delete_on_idle == timedelta(minutes=10)
    assert queue.dead_lettering_on_message_expiration is True
    assert queue.default_message_time_to_live == timedelta(minutes=11, seconds=2)
    assert queue.duplicate_detection_history_time_window == timedelta(minutes=12)
    assert queue.enable_batched_operations is False
    assert queue.enable_express is True
    assert queue.enable_partitioning is True
    assert queue.forward_to == queue.forward_dead_lettered_messages_to == f"sb://{site.address}/sink"
    assert queue.lock_duration == timedelta(seconds=13)
    assert queue.max_delivery_count == 14
    assert queue.max_size_in_megabytes == 16 * 3072, "sixteen partitions, each of the size asked for"
    assert queue.user_metadata == "<what & why>"
    assert queue.status == "SendDisabled"


def test_authorization_rules_are_kept(admin: Any) -> None:
    """Keys and rights are returned as given; missing keys are generated."""
    given = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        rights=["Send", "Listen"],
        key_name="a",
        primary_key="cHJpbWFyeQ==",
    )
    admin.create_queue("guarded", authorization_rules=[given])
    (rule,) = admin.get_queue("guarded").authorization_rules
    assert rule.type == "SharedAccessAuthorizationRule"
    assert (rule.claim_type, rule.claim_value) == ("SharedAccessKey", "None")
    assert (rule.key_name, rule.primary_key, rule.rights) == ("a", "cHJpbWFyeQ==", ["Send", "Listen"])
    assert rule.secondary_key
    admin.update_queue(admin.get_queue("guarded"), max_delivery_count=3)
    assert admin.get_queue("guarded").authorization_rules[0].secondary_key == rule.secondary_key


def test_an_update_replaces_and_can_be_undone(admin: Any) -> None:
    """An update can be reverted; None removes a forward; FOREVER survives the SDK's arithmetic."""
    admin.create_topic("sink")
    queue = admin.create_queue("changing", requires_duplicate_detection=True)
    queue.lock_duration = timedelta(minutes=2)
    queue.forward_to = "sink"
    queue.status = "ReceiveDisabled"
    admin.update_queue(queue)
    queue = admin.get_queue("changing")
    assert queue.lock_duration == timedelta(minutes=2)
    assert queue.forward_to.endswith("/sink")
    assert queue.status == "ReceiveDisabled"
    assert queue.default_message_time_to_live == FOREVER
    admin.update_queue(queue, forward_to=None, status="Active", max_delivery_count=3)
    queue = admin.get_queue("changing")
    assert queue.forward_to is None
    assert (queue.status, queue.max_delivery_count, queue.requires_duplicate_detection) == ("Active", 3, True)


def test_a_queue_with_sessions_may_not_forward(admin: Any) -> None:
    """Creating and updating raise 400; forwarding into sessions, and from a dead-letter queue, is allowed."""
    admin.create_queue("sink", requires_session=True)
    admin.create_queue("plain", forward_to="sink")
    queue = admin.create_queue("sessions", requires_session=True, forward_dead_lettered_messages_to="sink")
    with pytest.raises(
        HttpResponseError, match=r"SubCode=40000\. Bad Request\. 'sessions' requires sessions"
    ) as caught:
        admin.update_queue(queue, forward_to="sink")
    assert caught.value.status_code == 400
    assert admin.get_queue("sessions").forward_to is None
    with pytest.raises(HttpResponseError, match="SubCode=40000") as caught:
        admin.create_queue("other", requires_session=True, forward_to="sink")
    assert caught.value.status_code == 400
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue("other")


def test_a_subscription_with_sessions_may_not_forward(admin: Any) -> None:
    """A subscription with sessions cannot forward, as a queue cannot."""
    admin.create_queue("sink")
    admin.create_topic("news")
    with pytest.raises(HttpResponseError, match=r"SubCode=40000\. Bad Request\. 'news/Subscriptions/all'") as caught:
        admin.create_subscription("news", "all", requires_session=True, forward_to="sink")
    assert caught.value.status_code == 400
    subscription = admin.create_subscription("news", "all", requires_session=True)
    with pytest.raises(HttpResponseError, match="SubCode=40000"):
        admin.update_subscription("news", subscription, forward_to="sink")
    assert admin.get_subscription("news", "all").forward_to is None


def test_a_partitioned_queue_with_sessions_may_forward(admin: Any) -> None:
    """Azure's documentation denies it; Azure accepts it, as recordings of Microsoft's tests show."""
    admin.create_topic("sink")
    admin.create_queue("sessions", requires_session=True, enable_partitioning=True, forward_to="sink")
    queue = admin.get_queue("sessions")
    assert queue.requires_session is True
    assert queue.forward_to.endswith("/sink")


def test_a_queue_may_forward_to_itself_once_it_exists(admin: Any, site: Site) -> None:
    """Azure accepts it: Microsoft's own tests do this."""
    queue = admin.create_queue("ring")
    queue.forward_to = f"sb://{site.address}/ring"
    admin.update_queue(queue)
    assert admin.get_queue("ring").forward_to == f"sb://{site.address}/ring"


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("requires_session", True, "RequiresSession property of an existing Queue cannot be changed"),
        (
            "requires_duplicate_detection",
            True,
            "RequiresDuplicateDetection property of an existing Queue cannot be changed",
        ),
        ("enable_partitioning", True, "Partitioning cannot be changed for Queue"),
    ],
)
def test_a_change_of_an_immutable_setting_is_refused_by_name(admin: Any, field: str, value: Any, text: str) -> None:
    """400 with the property's name, and no other change."""
    queue = admin.create_queue("fixed")
    with pytest.raises(HttpResponseError, match=text) as caught:
        admin.update_queue(queue, **{field: value})
    assert caught.value.status_code == 400
    assert getattr(admin.get_queue("fixed"), field) is False


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"lock_duration": timedelta(minutes=6)}, "exceeds the allowed maximum of '5' minutes"),
        ({"max_delivery_count": 0}, "MaxDeliveryCount"),
        ({"auto_delete_on_idle": timedelta(minutes=4)}, "AutoDeleteOnIdle"),
        ({"user_metadata": "x" * 1025}, "UserMetadata"),
        ({"status": "Sleeping"}, "Status"),
        ({"enable_express": True, "requires_duplicate_detection": True}, "cannot be enabled together"),
        ({"forward_to": "nowhere"}, "SubCode=40400. The auto forwarding destination entity does not exist"),
        ({"forward_dead_lettered_messages_to": "nowhere"}, "auto forwarding destination"),
        ({"forward_to": "picky"}, "auto forwarding destination"),
    ],
)
def test_invalid_settings_are_refused(admin: Any, settings: dict[str, Any], text: str) -> None:
    """400 with the reason, and no queue."""
    with pytest.raises(HttpResponseError, match=text) as caught:
        admin.create_queue("picky", **settings)
    assert caught.value.status_code == 400
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue("picky")


@pytest.mark.parametrize("name", ["", "a b", "a?b", "$secret", "a//b", "x" * 261, "#TEST"])
def test_invalid_names_are_refused(admin: Any, name: str) -> None:
    """400 for a name that Azure does not accept."""
    with pytest.raises(HttpResponseError) as caught:
        admin.create_queue(name)
    assert caught.value.status_code == 400


def test_names_with_slashes_keep_their_spelling_and_ignore_case(admin: Any) -> None:
    """`a/b` is one queue, found in any case and listed as it was created."""
    admin.create_queue("contoso/x-servicebus-transfer/0")
    admin.create_queue("Txt/.-_123")
    assert admin.get_queue("CONTOSO/X-Servicebus-Transfer/0").lock_duration == timedelta(minutes=1)
    assert [q.name for q in admin.list_queues()] == ["contoso/x-servicebus-transfer/0", "Txt/.-_123"]
    with pytest.raises(ResourceExistsError):
        admin.create_queue("txt/.-_123")
    admin.update_queue(admin.get_queue("TXT/.-_123"), max_delivery_count=2)
    assert [q.name for q in admin.list_queues()] == ["contoso/x-servicebus-transfer/0", "Txt/.-_123"]
    admin.delete_queue("TXT/.-_123")
    assert [q.name for q in admin.list_queues()] == ["contoso/x-servicebus-transfer/0"]


def test_a_missing_queue_is_not_found(admin: Any) -> None:
    """get, update and delete raise the errors that they raise against Azure."""
    queue = admin.create_queue("gone")
    admin.delete_queue("gone")
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue("gone")
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue_runtime_properties("gone")
    with pytest.raises(HttpResponseError, match="SubCode=40400") as caught:
        admin.update_queue(queue)
    assert caught.value.status_code == 404
    with pytest.raises(ResourceNotFoundError, match="No service is hosted"):
        admin.delete_queue("gone")


def test_an_existing_entity_cannot_be_created_again(admin: Any) -> None:
    """Queues and topics share their names."""
    admin.create_queue("q")
    admin.create_topic("t")
    for create, name in ((admin.create_queue, "q"), (admin.create_queue, "T"), (admin.create_topic, "Q")):
        with pytest.raises(ResourceExistsError) as caught:
            create(name)
        assert "SubCode=40900. Conflict." in str(caught.value)


def test_long_lists_come_in_pages(admin: Any) -> None:
    """The client follows the links to the end: each entity is listed once."""
    names = sorted(f"q{n:03}" for n in range(205))
    for name in names:
        admin.create_queue(name)
    assert [q.name for q in admin.list_queues()] == names
    assert [q.name for q in admin.list_queues_runtime_properties()] == names


def test_runtime_properties_have_every_count(admin: Any, fake: FakeBroker) -> None:
    """Every count reaches the client under its own name."""
    admin.create_queue("busy")
    admin.create_topic("t")
    admin.create_subscription("t", "s")
    queue, topic, subscription = fake.queue("busy"), fake.topic("t"), fake.subscription("t", "s")
    queue.held = subscription.held = Counts(active=1, dead_letter=2, scheduled=3, transfer=4, transfer_dead_letter=5)
    queue.size_in_bytes, queue.accessed_at = 12345, 1_600_000_000.0
    topic.held = Counts(scheduled=7)
    for runtime in (
        admin.get_queue_runtime_properties("busy"),
        next(iter(admin.list_queues_runtime_properties())),
        admin.get_subscription_runtime_properties("t", "s"),
        next(iter(admin.list_subscriptions_runtime_properties("t"))),
    ):
        assert runtime.active_message_count == 1
        assert runtime.dead_letter_message_count == 2
        assert runtime.transfer_message_count == 4
        assert runtime.transfer_dead_letter_message_count == 5
        assert runtime.total_message_count == 15
    runtime = admin.get_queue_runtime_properties("busy")
    assert (runtime.scheduled_message_count, runtime.size_in_bytes) == (3, 12345)
    assert runtime.accessed_at_utc == datetime.fromtimestamp(1_600_000_000, timezone.utc)
    assert admin.get_topic_runtime_properties("t").scheduled_message_count == 7


# topics and subscriptions


def test_a_topic_is_created_listed_updated_and_deleted(admin: Any) -> None:
    """The runtime properties count subscriptions and filters."""
    admin.create_topic("T/1", max_size_in_megabytes=2048, support_ordering=False, user_metadata="m")
    topic = admin.get_topic("t/1")
    assert (topic.max_size_in_megabytes, topic.support_ordering, topic.user_metadata) == (2048, False, "m")
    assert topic.default_message_time_to_live == FOREVER
    assert topic.availability_status == "Available"
    topic.default_message_time_to_live = timedelta(hours=1)
    topic.status = "Disabled"
    admin.update_topic(topic)
    topic = admin.get_topic("T/1")
    assert (topic.default_message_time_to_live, topic.status) == (timedelta(hours=1), "Disabled")
    with pytest.raises(HttpResponseError, match="RequiresDuplicateDetection property of an existing Topic"):
        admin.update_topic(topic, requires_duplicate_detection=True)
    admin.create_subscription("T/1", "s")
    admin.create_rule("T/1", "s", "sql", filter=SqlRuleFilter("1=1"))
    admin.create_rule("T/1", "s", "correlation", filter=CorrelationRuleFilter(correlation_id="a"))
    assert [t.name for t in admin.list_topics()] == ["T/1"]
    runtime = next(iter(admin.list_topics_runtime_properties()))
    assert (runtime.name, runtime.subscription_count, runtime.size_in_bytes) == ("T/1", 1, 0)
    assert (runtime.sql_filter_count, runtime.correlation_filter_count) == (2, 1)
    admin.delete_topic("t/1")
    assert list(admin.list_topics()) == []
    with pytest.raises(ResourceNotFoundError):
        admin.get_topic("T/1")
    with pytest.raises(ResourceNotFoundError):
        admin.delete_topic("T/1")


def test_a_topic_is_accessed_when_it_gets_a_subscription(admin: Any) -> None:
    """A topic's time of access is set before the first message."""
    topic = admin.create_topic("t")
    admin.update_topic(topic, auto_delete_on_idle=timedelta(minutes=100))
    admin.create_subscription("t", "s")
    runtime = admin.get_topic_runtime_properties("t")
    assert runtime.created_at_utc < runtime.updated_at_utc < runtime.accessed_at_utc


def test_a_subscription_is_created_listed_updated_and_deleted(admin: Any, site: Site) -> None:
    """A subscription can also be given a forward."""
    admin.create_queue("q")
    admin.create_topic("t")
    made = admin.create_subscription(
        "t",
        "Sub",
        lock_duration=timedelta(seconds=13),
        requires_session=True,
        default_message_time_to_live=timedelta(minutes=11),
        dead_lettering_on_message_expiration=True,
        dead_lettering_on_filter_evaluation_exceptions=False,
        max_delivery_count=14,
        enable_batched_operations=False,
        forward_dead_lettered_messages_to="q",
        user_metadata="m",
        auto_delete_on_idle=timedelta(minutes=10),
    )
    for subscription in (made, admin.get_subscription("T", "Sub"), next(iter(admin.list_subscriptions("t")))):
        assert subscription.name == "Sub"
        assert subscription.lock_duration == timedelta(seconds=13)
        assert subscription.requires_session is True
        assert subscription.default_message_time_to_live == timedelta(minutes=11)
        assert subscription.dead_lettering_on_message_expiration is True
        assert subscription.dead_lettering_on_filter_evaluation_exceptions is False
        assert subscription.max_delivery_count == 14
        assert subscription.enable_batched_operations is False
        assert subscription.forward_dead_lettered_messages_to == f"sb://{site.address}/q"
        assert subscription.user_metadata == "m"
        assert subscription.auto_delete_on_idle == timedelta(minutes=10)
        assert (subscription.status, subscription.availability_status) == ("Active", "Available")
    subscription = admin.get_subscription("t", "sub")
    subscription.max_delivery_count = 3
    subscription.forward_dead_lettered_messages_to = None
    admin.update_subscription("t", subscription)
    subscription = admin.get_subscription("t", "Sub")
    assert subscription.max_delivery_count == 3
    assert subscription.forward_dead_lettered_messages_to is None
    assert admin.create_subscription("t", "on", forward_to="q").forward_to == f"sb://{site.address}/q"
    admin.delete_subscription("t", "on")
    with pytest.raises(HttpResponseError, match="RequiresSession property of an existing Subscription"):
        admin.update_subscription("t", subscription, requires_session=False)
    with pytest.raises(ResourceExistsError, match=r"'contoso:Topic:t\|SUB' already exists"):
        admin.create_subscription("t", "SUB")
    admin.delete_subscription("t", "SUB")
    assert list(admin.list_subscriptions("t")) == []


def test_missing_subscriptions_and_topics_are_not_found(admin: Any) -> None:
    """The service has 404 below a topic and an empty feed without a topic: the client raises not-found for both."""
    admin.create_topic("t")
    made = admin.create_subscription("t", "s")
    admin.delete_subscription("t", "s")
    for topic in ("t", "nowhere"):
        with pytest.raises(ResourceNotFoundError):
            admin.get_subscription(topic, "s")
        with pytest.raises(ResourceNotFoundError):
            admin.get_subscription_runtime_properties(topic, "s")
        with pytest.raises(ResourceNotFoundError):
            admin.delete_subscription(topic, "s")
        with pytest.raises(HttpResponseError) as caught:
            admin.update_subscription(topic, made)
        assert caught.value.status_code == 404
        with pytest.raises(ResourceNotFoundError):
            admin.get_rule(topic, "s", "r")
        with pytest.raises(ResourceNotFoundError):
            admin.delete_rule(topic, "s", "r")
    with pytest.raises(ResourceNotFoundError):
        admin.create_subscription("nowhere", "s")
    assert list(admin.list_subscriptions("nowhere")) == []


def test_a_subscription_may_be_named_like_a_segment_of_its_path(admin: Any) -> None:
    """`t/Subscriptions/subscriptions/Rules/rules` is a rule."""
    admin.create_topic("t")
    admin.create_subscription("t", "subscriptions")
    admin.create_rule("t", "subscriptions", "rules", filter=FalseRuleFilter())
    assert [s.name for s in admin.list_subscriptions("t")] == ["subscriptions"]
    assert [r.name for r in admin.list_rules("t", "subscriptions")] == ["$Default", "rules"]


# rules

VALUES: dict[str, Any] = {
    "key_string": "str1",
    "key_int": 2,
    "key_long": 2147483650,
    "key_bool": False,
    "key_double": 1.5,
    "key_datetime": datetime(2020, 7, 5, 11, 12, 13),
    "key_duration": timedelta(days=1, hours=2, minutes=3),
}


def test_a_rule_is_created_listed_updated_and_deleted(admin: Any) -> None:
    """Every filter, action and typed value is kept; a subscription begins with the default rule."""
    admin.create_topic("t")
    admin.create_subscription("t", "s")
    (default,) = admin.list_rules("t", "s")
    assert (default.name, type(default.filter), default.action) == ("$Default", TrueRuleFilter, None)
    action = SqlRuleAction("SET Priority = @param", parameters={"@param": datetime(2020, 7, 5, 11, 12, 13)})
    condition = CorrelationRuleFilter(
        correlation_id="c", message_id="m", to="to", reply_to="r", label="l", session_id="s",
        reply_to_session_id="rs", content_type="ct", properties=VALUES,
    )  # fmt: skip
    made = admin.create_rule("t", "s", "correlation", filter=condition, action=action)
    for rule in (made, admin.get_rule("t", "s", "CORRELATION")):
        assert vars(rule.filter) == vars(condition)
        assert rule.action.sql_expression == "SET Priority = @param"
        assert rule.action.parameters == action.parameters
    assert admin.get_rule("t", "s", "correlation").created_at_utc is not None
    admin.create_rule("t", "s", "sql", filter=SqlRuleFilter("a = @p AND b <> 'x&y'", parameters={"@p": 1}))
    admin.create_rule("t", "s", "all", filter=TrueRuleFilter())
    admin.create_rule("t", "s", "none", filter=FalseRuleFilter())
    rules = {rule.name: rule for rule in admin.list_rules("t", "s")}
    assert list(rules) == ["$Default", "all", "correlation", "none", "sql"]
    assert rules["sql"].filter.sql_expression == "a = @p AND b <> 'x&y'"
    assert rules["sql"].filter.parameters == {"@p": 1}
    assert rules["sql"].action is None
    assert (type(rules["all"].filter), type(rules["none"].filter)) == (TrueRuleFilter, FalseRuleFilter)
    assert rules["correlation"].filter.properties == VALUES
    changed = rules["sql"]
    changed.filter = CorrelationRuleFilter(label="new")
    changed.action = SqlRuleAction("REMOVE x")
    admin.update_rule("t", "s", changed)
    changed = admin.get_rule("t", "s", "sql")
    assert (changed.filter.label, changed.action.sql_expression) == ("new", "REMOVE x")
    admin.delete_rule("t", "s", "$Default")
    with pytest.raises(ResourceExistsError, match=r"'contoso:Topic:t\|s\|SQL' already exists"):
        admin.create_rule("t", "s", "SQL")
    changed.name = "missing"
    with pytest.raises(HttpResponseError, match=r"Entity 'contoso:Topic:t\|s\|missing' was not found") as caught:
        admin.update_rule("t", "s", changed)
    assert caught.value.status_code == 404
    with pytest.raises(ResourceNotFoundError):
        admin.get_rule("t", "s", "$Default")
    with pytest.raises(ResourceNotFoundError):
        admin.delete_rule("t", "s", "$Default")
    assert [rule.name for rule in admin.list_rules("t", "s")] == ["all", "correlation", "none", "sql"]


def test_an_update_of_a_rule_without_a_name_is_refused(admin: Any) -> None:
    """400, and the default rule is unchanged."""
    admin.create_topic("t")
    admin.create_subscription("t", "s")
    rule = admin.create_rule("t", "s", "r", filter=SqlRuleFilter("a = 1"))
    rule.name = ""
    with pytest.raises(HttpResponseError) as caught:
        admin.update_rule("t", "s", rule)
    assert caught.value.status_code == 400
    assert admin.get_rule("t", "s", "$Default").filter.sql_expression == "1=1"


def test_a_filter_that_does_not_parse_is_refused(admin: Any) -> None:
    """400, and no rule."""
    admin.create_topic("t")
    admin.create_subscription("t", "s")
    with pytest.raises(HttpResponseError) as caught:
        admin.create_rule("t", "s", "bad", filter=SqlRuleFilter("this is a = = syntax error"))
    assert caught.value.status_code == 400
    assert [rule.name for rule in admin.list_rules("t", "s")] == ["$Default"]


# the namespace, authorization, versions


def test_namespace_properties(admin: Any) -> None:
    """The namespace has its name, and the tier that localbus imitates."""
    namespace = admin.get_namespace_properties()
    assert namespace.name == "contoso"
    assert (namespace.messaging_sku, namespace.namespace_type) == ("Standard", "Messaging")
    assert namespace.created_at_utc is not None
    assert namespace.modified_at_utc is not None


def test_a_wrong_key_is_an_authentication_error(site: Site) -> None:
    """401 with the service's body, for reads and writes."""
    wrong = site.connection_string.replace(KEY, "bm90IHRoZSBrZXk=")
    with ServiceBusAdministrationClient.from_connection_string(wrong, connection_verify=site.ca_file) as client:
        for attempt in (lambda: client.create_queue("q"), lambda: client.get_queue("q")):
            with pytest.raises(ClientAuthenticationError) as caught:
                attempt()
            assert caught.value.status_code == 401
    status, body = site.send_request("GET", "/q", Authorization=site.sas("wrong"))
    assert (status, body.startswith("<Error><Code>401</Code><Detail>")) == (401, True)
    assert "TrackingId:" in body
    assert site.send_request("DELETE", "/q", Authorization="")[0] == 401


@pytest.mark.parametrize("version", list(ApiVersion))
def test_every_api_version_is_supported(site: Site, version: ApiVersion) -> None:
    """The oldest version has no maximum message size."""
    with sync(site, api_version=version) as client:
        client.create_queue("q")
        size = client.get_queue("q").max_message_size_in_kilobytes
        assert size == (None if version == ApiVersion.V2017_04 else 256)
        client.update_queue(client.get_queue("q"), max_delivery_count=2)
        assert [q.max_delivery_count for q in client.list_queues()] == [2]


# the REST itself


def test_every_spelling_of_a_path_is_understood(site: Site) -> None:
    """Trailing slashes, any case, escapes, with and without a version or `enrich`."""
    assert site.send_request("PUT", "/a%2Fb?api-version=2021-05", put_body(""))[0] == 201
    assert site.send_request("PUT", "/t", put_body("", "TopicDescription"))[0] == 201
    assert site.send_request("PUT", "/t/SUBSCRIPTIONS/s", put_body("", "SubscriptionDescription"))[0] == 201
    for path in ("/a/b", "/A%2fB?enrich=true&api-version=2024-05", "/a/b/"):
        assert '<title type="text">a/b</title>' in site.send_request("GET", path)[1]
    for path in ("/$Resources/queues", "/$Resources/Queues/", "/$resources/QUEUES?$skip=0&$top=5"):
        assert '<title type="text">a/b</title>' in site.send_request("GET", path)[1]
    for path in ("/t/subscriptions", "/t/Subscriptions/", "/T/SUBSCRIPTIONS?&$top=1"):
        assert "/t/Subscriptions/s</id>" in site.send_request("GET", path)[1]
    for path in ("/t/subscriptions/s/rules", "/t/Subscriptions/s/Rules/?"):
        assert f"<id>https://{site.address}/t/Subscriptions/s/Rules/$Default</id>" in site.send_request("GET", path)[1]
    assert "<Name>contoso</Name>" in site.send_request("GET", "/$namespaceInfo")[1]


def test_a_missing_entity_is_an_empty_feed_of_public_services(site: Site) -> None:
    """200 with this title: Go's client recognizes a missing entity by it."""
    for path in ("/missing", "/missing/subscriptions/s", "/", "/$Resources/relays"):
        status, body = site.send_request("GET", path)
        assert (status, '<title type="text">Publicly Listed Services</title>' in body) == (200, True)
    site.send_request("PUT", "/t", put_body("", "TopicDescription"))
    status, body = site.send_request("GET", "/t/Subscriptions/s")
    assert (status, "Entity 'contoso:Topic:t|s' was not found." in body) == (404, True)


def test_pages_link_to_the_next_one_only_if_there_is_one(site: Site) -> None:
    """Python reads `$skip` and `$top` from the link, JavaScript `$skip`."""
    for n in range(5):
        site.send_request("PUT", f"/q{n}", put_body(""))
    _, body = site.send_request("GET", "/$Resources/queues?$skip=1&$top=2&api-version=2021-05")
    link = f"https://{site.address}/$Resources/queues?api-version=2021-05&amp;enrich=False&amp;$skip=3&amp;$top=2"
    assert f'<link rel="next" href="{link}"/>' in body
    assert [n for n in range(5) if f">q{n}<" in body] == [1, 2]
    assert 'rel="next"' not in site.send_request("GET", "/$Resources/queues?$skip=3&$top=2")[1]
    assert "<entry" not in site.send_request("GET", "/$Resources/queues?$skip=5")[1]
    for query in ("$skip=-1", "$top=-1", "$top=many"):
        status, body = site.send_request("GET", f"/$Resources/queues?{query}")
        assert (status, "should be non-negative integer" in body) == (400, True)


def test_a_default_rule_can_be_given_with_the_subscription(site: Site) -> None:
    """Java and Go create a subscription and its first rule in one request."""
    site.send_request("PUT", "/t", put_body("", "TopicDescription"))
    rule = (
        '<DefaultRuleDescription><Filter i:type="SqlFilter" xmlns:i="http://www.w3.org/2001/XMLSchema-instance">'
        "<SqlExpression>a=1</SqlExpression></Filter><Name>mine</Name></DefaultRuleDescription>"
    )
    assert site.send_request("PUT", "/t/subscriptions/s", put_body(rule, "SubscriptionDescription"))[0] == 201
    with sync(site) as client:
        (found,) = client.list_rules("t", "s")
    assert (found.name, found.filter.sql_expression) == ("mine", "a=1")


def test_a_rule_put_at_the_list_is_named_by_its_description(site: Site) -> None:
    """Go's client creates the default rule in this way."""
    site.send_request("PUT", "/t", put_body("", "TopicDescription"))
    site.send_request("PUT", "/t/subscriptions/s", put_body("", "SubscriptionDescription"))
    site.send_request("DELETE", "/t/subscriptions/s/rules/$Default")
    body = put_body("<Name>$Default</Name>", "RuleDescription")
    assert site.send_request("PUT", "/t/Subscriptions/s/Rules/", body)[0] == 201
    assert site.send_request("GET", "/t/Subscriptions/s/Rules/$Default")[0] == 200


def test_supplementary_tokens_and_https_forwards_are_accepted(site: Site) -> None:
    """Java sends https:// without a port; tokens for the destination are accepted unread."""
    site.send_request("PUT", "/sink", put_body(""))
    body = put_body("<ForwardTo>https://127.0.0.1/sink</ForwardTo>")
    tokens = {"ServiceBusSupplementaryAuthorization": "x", "ServiceBusDlqSupplementaryAuthorization": "y"}
    status, answer = site.send_request("PUT", "/source", body, **tokens)
    assert (status, f"<ForwardTo>sb://{site.address}/sink</ForwardTo>" in answer) == (201, True)


def test_an_update_without_the_immutable_settings_keeps_them(site: Site) -> None:
    """Go's users send only their changes; other settings that are left out get their defaults."""
    site.send_request("PUT", "/q", put_body("<RequiresSession>true</RequiresSession><UserMetadata>m</UserMetadata>"))
    status, body = site.send_request("PUT", "/q", put_body("<Status>Disabled</Status>"), If_Match="*")
    assert status == 200
    assert "<RequiresSession>true</RequiresSession>" in body
    assert "<Status>Disabled</Status>" in body
    assert "UserMetadata" not in body


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/q", ""),
        ("/q", "<entry"),
        ("/q", put_body("").replace("<entry", "<!DOCTYPE entry><entry", 1)),
        ("/q", "<a>" * 100 + "</a>" * 100),
        ("/q", put_body("", "RuleDescription")),
        ("/q/subscriptions/s", put_body("")),
        ("/q/subscriptions/s/rules/r", put_body("", "SubscriptionDescription")),
        ("/q/subscriptions", put_body("", "TopicDescription")),
        ("/", put_body("")),
        ("/$Resources/queues", put_body("")),
    ],
)
def test_invalid_bodies_are_refused(site: Site, path: str, body: str) -> None:
    """400 in the service's XML."""
    status, answer = site.send_request("PUT", path, body)
    assert (status, answer.startswith("<Error><Code>400</Code><Detail>")) == (400, True)


def test_unknown_methods_are_refused(site: Site) -> None:
    """405 for methods other than GET, PUT and DELETE."""
    assert site.send_request("POST", "/q", "x")[0] == 405
    assert site.send_request("DELETE", "/q/subscriptions")[0] == 405


def test_every_change_is_committed_before_its_response(site: Site, fake: FakeBroker) -> None:
    """One commit for each change, none for a read or an error."""
    requests = [
        ("PUT", "/t", put_body("", "TopicDescription"), 1),
        ("PUT", "/t", put_body("", "TopicDescription"), 0),
        ("PUT", "/t/subscriptions/s", put_body("", "SubscriptionDescription"), 1),
        ("PUT", "/t/subscriptions/s/rules/r", put_body("", "RuleDescription"), 1),
        ("GET", "/t", "", 0),
        ("DELETE", "/t/subscriptions/s/rules/r", "", 1),
        ("DELETE", "/missing", "", 0),
        ("DELETE", "/t", "", 1),
        ("PUT", "/hub", put_body("", "EventHubDescription"), 1),
    ]
    for method, path, body, expected in requests:
        before = fake.commits
        site.send_request(method, path, body)
        assert (method, path, fake.commits - before) == (method, path, expected)


def test_an_event_hub_is_created_listed_and_deleted(site: Site) -> None:
    """Its number of partitions cannot be changed."""
    body = put_body("<PartitionCount>3</PartitionCount>", "EventHubDescription")
    status, answer = site.send_request("PUT", "/logs", body)
    assert (status, "<PartitionCount>3</PartitionCount>" in answer) == (201, True)
    assert "<d2p1:string>2</d2p1:string>" in site.send_request("GET", "/Logs")[1]
    assert site.send_request("PUT", "/logs", body)[0] == 409
    assert site.send_request("PUT", "/logs", put_body(""))[0] == 409
    assert site.send_request("PUT", "/logs", body, If_Match="*")[0] == 200
    more = put_body("<PartitionCount>4</PartitionCount>", "EventHubDescription")
    status, answer = site.send_request("PUT", "/logs", more, If_Match="*")
    assert (status, "PartitionCount" in answer) == (400, True)
    assert (
        site.send_request("PUT", "/none", put_body("<PartitionCount>0</PartitionCount>", "EventHubDescription"))[0]
        == 400
    )
    assert "logs</title>" in site.send_request("GET", "/$Resources/eventhubs")[1]
    assert site.send_request("DELETE", "/logs")[0] == 200
    assert "<entry" not in site.send_request("GET", "/$Resources/EventHubs")[1]


def test_extra_handlers_need_manage(site: Site, fake: FakeBroker) -> None:
    """Handlers beside the REST API (fault injection) need the Manage claim, too."""
    assert site.send_request("POST", "/$localbus/faults/x", "{}") == (202, "faults $localbus/faults/x")
    assert site.send_request("POST", "/$localbus/faults", "{}", Authorization="")[0] == 401
    status, answer = site.send_request("DELETE", "/$localbus/faults/unknown")
    assert (status, "The messaging entity 'unknown' could not be found." in answer) == (404, True)
    assert site.send_request("GET", "/$localbus/faultsy")[0] == 200  # another path, without an entity


def test_names_are_escaped_in_ids(site: Site) -> None:
    """A rule's name may have characters that a URL may not."""
    site.send_request("PUT", "/t", put_body("", "TopicDescription"))
    site.send_request("PUT", "/t/subscriptions/s", put_body("", "SubscriptionDescription"))
    name = quote("a & <b>")
    assert site.send_request("PUT", f"/t/subscriptions/s/rules/{name}", put_body("", "RuleDescription"))[0] == 201
    answer = site.send_request("GET", f"/t/subscriptions/s/rules/{name}")[1]
    assert '<title type="text">a &amp; &lt;b&gt;</title>' in answer
    assert "/Rules/a%20&amp;%20%3Cb%3E</id>" in answer
