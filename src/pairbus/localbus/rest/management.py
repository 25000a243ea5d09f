"""The management REST API: requests are routed to the broker, and its entities are returned as Atom documents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote
from xml.etree.ElementTree import Element

from pairbus.localbus.addresses import EntityPath
from pairbus.localbus.broker.broker import Broker
from pairbus.localbus.bus_errors import NOT_ALLOWED, UNAUTHORIZED, BusError, existing, not_found
from pairbus.localbus.entities.topics import Rule, Subscription
from pairbus.localbus.settings import HubSettings, QueueSettings, TopicSettings

from . import atom
from .atom_rules import read_rule
from .descriptions import HUB, QUEUE, SUBSCRIPTION, TOPIC, RequestContext, read_settings
from .error_responses import service_error
from .http import Handler, Request, Response
from .xml_values import child, invalid_request, read_integer

MANAGE = "Manage"
_DEFAULT_PAGE = 100
_MAX_PAGE = 1000

Authorize = Callable[[str | None, str, str], None]
Commit = Callable[[], Awaitable[None]]

#: Fields that an update may repeat but not change, and their names in errors.
_IMMUTABLE = {
    "requires_session": "RequiresSession",
    "requires_duplicate_detection": "RequiresDuplicateDetection",
    "enable_partitioning": "EnablePartitioning",
    "partition_count": "PartitionCount",
}


class Management:
    """Handles management requests; `extra` has further handlers by path prefix, authorized in the same way."""

    def __init__(
        self, broker: Broker, authorize: Authorize, commit: Commit, extra: Mapping[str, Handler] | None = None
    ) -> None:
        self._broker = broker
        self._authorize = authorize
        self._commit = commit
        self._extra = {prefix.strip("/").lower(): handler for prefix, handler in (extra or {}).items()}

    async def handle(self, request: Request) -> Response:
        """Return the response to a request; exceptions other than BusError are raised."""
        host = request.headers.get("host") or self._broker.name
        context = RequestContext(self._broker.name, host, request.query.get("api-version", ""))
        path = request.path.strip("/")
        try:
            self._authorize(request.headers.get("authorization"), path, MANAGE)
            return await self._route(request, path, context)
        except BusError as error:
            if error.condition == UNAUTHORIZED and request.method == "GET" and self._has_no_entity(EntityPath.of(path)):
                return _empty_feed()  # the service shows this with any key
            return service_error(error, request.method, path, host, self._broker.name)

    async def _route(self, request: Request, path: str, context: RequestContext) -> Response:
        lower = path.lower()
        for prefix, handler in self._extra.items():
            if lower == prefix or lower.startswith(prefix + "/"):
                return await handler(request)
        if request.method not in ("GET", "PUT", "DELETE"):
            raise BusError(NOT_ALLOWED, f"The method {request.method} is not supported here.", status=405)
        entity_path = EntityPath.of(path)
        if request.method == "PUT":
            return await self._put(request, entity_path, context)
        if request.method == "DELETE":
            await self._delete(entity_path)
            return Response(200)
        if lower == "$namespaceinfo":
            return _entry(atom.namespace_entry(self._broker, context), context)
        if lower.startswith("$resources/"):
            return self._list_entities(lower.removeprefix("$resources/"), request, context)
        if entity_path.listing:
            return self._list_below(entity_path, request, context)
        return self._get(entity_path, context)

    def _has_no_entity(self, entity_path: EntityPath) -> bool:
        broker, path = self._broker, entity_path.entity
        below = entity_path.subscription or entity_path.listing or path.startswith("$")
        return not below and broker.queue(path) is None and broker.topic(path) is None and broker.hub(path) is None

    def _get(self, entity_path: EntityPath, context: RequestContext) -> Response:
        """Return an entity's entry; the service has an empty feed for a missing entity, and 404 below a topic."""
        if entity_path.subscription:
            topic = self._broker.topic(entity_path.entity)
            if topic is None:
                return _empty_feed()
            subscription = self._subscription(entity_path)
            if not entity_path.rule:
                return _entry(atom.subscription_entry(topic, subscription, context), context)
            rule = existing(_rule(subscription, entity_path.rule), entity_path.rule)
            return _entry(atom.rule_entry(topic, subscription, rule), context)
        return self._entity(entity_path.entity, context) or _empty_feed()

    def _entity(self, path: str, context: RequestContext) -> Response | None:
        if (queue := self._broker.queue(path)) is not None:
            return _entry(atom.queue_entry(queue, context), context)
        if (topic := self._broker.topic(path)) is not None:
            return _entry(atom.topic_entry(topic, context), context)
        if (hub := self._broker.hub(path)) is not None:
            return _entry(atom.hub_entry(hub, context), context)
        return None

    def _list_entities(self, kind: str, request: Request, context: RequestContext) -> Response:
        match kind:
            case "queues":
                return _page("Queues", self._broker.queues(), lambda q: atom.queue_entry(q, context), request, context)
            case "topics":
                return _page("Topics", self._broker.topics(), lambda t: atom.topic_entry(t, context), request, context)
            case "eventhubs":
                return _page("EventHubs", self._broker.hubs(), lambda h: atom.hub_entry(h, context), request, context)
        return _empty_feed()

    def _list_below(self, entity_path: EntityPath, request: Request, context: RequestContext) -> Response:
        topic = self._broker.topic(entity_path.entity)
        if topic is None:
            return _empty_feed()
        if entity_path.listing == "Subscriptions":
            found = _by_name(topic.subscriptions)
            return _page(
                entity_path.listing, found, lambda s: atom.subscription_entry(topic, s, context), request, context
            )
        subscription = self._subscription(entity_path)
        rules = _by_name(subscription.rules)
        return _page(entity_path.listing, rules, lambda r: atom.rule_entry(topic, subscription, r), request, context)

    def _subscription(self, entity_path: EntityPath) -> Subscription:
        found = self._broker.subscription(entity_path.entity, entity_path.subscription)
        return existing(found, f"{entity_path.entity}/Subscriptions/{entity_path.subscription}")

    async def _put(self, request: Request, entity_path: EntityPath, context: RequestContext) -> Response:
        """Create an entity, or with If-Match update it: settings that are left out get their defaults."""
        description = atom.read_description(request.body)
        update = "if-match" in request.headers
        match description.tag:
            case "RuleDescription" if entity_path.rule or entity_path.listing == "Rules":
                entry = self._put_rule(description, entity_path, update)
            case "SubscriptionDescription" if entity_path.subscription and not entity_path.rule:
                entry = self._put_subscription(description, entity_path, update, context)
            case "QueueDescription" if not entity_path.subscription and not entity_path.listing:
                entry = self._put_queue(description, entity_path.entity, update, context)
            case "TopicDescription" if not entity_path.subscription and not entity_path.listing:
                entry = self._put_topic(description, entity_path.entity, update, context)
            case "EventHubDescription" if not entity_path.subscription and not entity_path.listing:
                entry = self._put_hub(description, entity_path.entity, update, context)
            case other:
                raise invalid_request(f"A {other} cannot be put at '{request.path}'.")
        await self._commit()
        return _entry(entry, context, status=200 if update else 201)

    def _put_queue(self, description: Element, path: str, update: bool, context: RequestContext) -> atom.Entry:
        given = read_settings(description, QUEUE, context)
        if update:
            current = existing(self._broker.queue(path), path)
            settings = QueueSettings(current.settings.name, **_updated_fields(current.settings, given, "Queue"))
            self._check_forwards(settings)
            self._broker.update_queue(settings)
        else:
            settings = QueueSettings(path, **_created_fields(given))
            self._check_forwards(settings)
            self._broker.create_queue(settings)
        return atom.queue_entry(existing(self._broker.queue(path), path), context)

    def _put_topic(self, description: Element, path: str, update: bool, context: RequestContext) -> atom.Entry:
        given = read_settings(description, TOPIC, context)
        if update:
            current = existing(self._broker.topic(path), path)
            settings = TopicSettings(current.settings.name, **_updated_fields(current.settings, given, "Topic"))
            self._broker.update_topic(settings)
        else:
            settings = TopicSettings(path, **_created_fields(given))
            self._broker.create_topic(settings)
        return atom.topic_entry(existing(self._broker.topic(path), path), context)

    def _put_hub(self, description: Element, path: str, update: bool, context: RequestContext) -> atom.Entry:
        given = read_settings(description, HUB, context)
        if update:
            current = existing(self._broker.hub(path), path)
            # A hub has no setting that can be changed: this only checks the request.
            HubSettings(path, **_updated_fields(current.settings, given, "EventHub"))
        else:
            self._broker.create_hub(HubSettings(path, **given))
        return atom.hub_entry(existing(self._broker.hub(path), path), context)

    def _put_subscription(
        self, description: Element, entity_path: EntityPath, update: bool, context: RequestContext
    ) -> atom.Entry:
        given = read_settings(description, SUBSCRIPTION, context)
        topic = existing(self._broker.topic(entity_path.entity), entity_path.entity)
        if update:
            current = self._subscription(entity_path)
            fields = _updated_fields(current.settings, given, "Subscription")
            settings = QueueSettings(atom.short_name(current), **fields)
            self._check_forwards(settings)
            self._broker.update_subscription(topic.settings.name, settings)
        else:
            settings = QueueSettings(entity_path.subscription, **given)
            self._check_forwards(settings)
            rule = child(description, "DefaultRuleDescription")
            first = None if rule is None else read_rule(rule)
            self._broker.create_subscription(topic.settings.name, settings, first)
        return atom.subscription_entry(topic, self._subscription(entity_path), context)

    def _put_rule(self, description: Element, entity_path: EntityPath, update: bool) -> atom.Entry:
        """Create or update a rule; Go's client puts the default rule at the list, named by its description."""
        if update and not entity_path.rule:
            raise invalid_request("The name of the rule to update is missing.")
        settings = read_rule(description, entity_path.rule)
        topic = existing(self._broker.topic(entity_path.entity), entity_path.entity)
        subscription = self._subscription(entity_path)
        if update:
            current = existing(_rule(subscription, settings.name), settings.name)
            settings = settings.changed(name=current.settings.name)
            self._broker.update_rule(topic.settings.name, atom.short_name(subscription), settings)
        else:
            self._broker.create_rule(topic.settings.name, atom.short_name(subscription), settings)
        rule = existing(_rule(self._subscription(entity_path), settings.name), settings.name)
        return atom.rule_entry(topic, subscription, rule)

    def _check_forwards(self, settings: QueueSettings) -> None:
        """Refuse a forwarding destination that does not exist; the service allows the entity itself."""
        for target in filter(None, (settings.forward_to, settings.forward_dead_lettered_messages_to)):
            if self._broker.queue(target) is None and self._broker.topic(target) is None:
                raise invalid_request("SubCode=40400. The auto forwarding destination entity does not exist.")

    async def _delete(self, entity_path: EntityPath) -> None:
        broker, entity = self._broker, entity_path.entity
        if entity_path.listing:
            raise BusError(NOT_ALLOWED, "A list cannot be deleted.", status=405)
        if entity_path.rule:
            subscription = self._subscription(entity_path)
            rule = existing(_rule(subscription, entity_path.rule), entity_path.rule)
            broker.delete_rule(entity, atom.short_name(subscription), rule.settings.name)
        elif entity_path.subscription:
            broker.delete_subscription(entity, atom.short_name(self._subscription(entity_path)))
        elif broker.queue(entity) is not None:
            broker.delete_queue(entity)
        elif broker.topic(entity) is not None:
            broker.delete_topic(entity)
        elif broker.hub(entity) is not None:
            broker.delete_hub(entity)
        else:
            raise not_found(entity)
        await self._commit()


def _rule(subscription: Subscription, name: str) -> Rule | None:
    wanted = name.lower()
    return next((rule for rule in subscription.rules.values() if rule.settings.name.lower() == wanted), None)


def _by_name(entities: Mapping[str, Any]) -> Sequence[Any]:
    return [entities[name] for name in sorted(entities, key=str.lower)]


def _updated_fields(current: Any, given: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the fields of an update with the immutable ones; refuse a change of those."""
    kept = {name: getattr(current, name) for name in _IMMUTABLE if hasattr(current, name)}
    for name, value in kept.items():
        if given.get(name, value) != value:
            if name == "enable_partitioning":
                raise invalid_request(f"Partitioning cannot be changed for {kind}.")
            raise invalid_request(
                f"The value for the {_IMMUTABLE[name]} property of an existing {kind} cannot be changed."
            )
    return {**kept, **given}


def _created_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a new entity; a partitioned one has 16 partitions, each of the requested size."""
    size = given.get("max_size_in_megabytes", 1024)
    return {**given, "max_size_in_megabytes": 16 * size} if given.get("enable_partitioning") else dict(given)


def _entry(entry: atom.Entry, context: RequestContext, status: int = 200) -> Response:
    return Response(status, entry.write(context).encode(), {"Content-Type": atom.ENTRY})


def _empty_feed() -> Response:
    return Response(200, atom.write_empty_feed().encode(), {"Content-Type": atom.FEED})


def _page_parameter(query: Mapping[str, str], name: str, default: int) -> int:
    try:
        number = read_integer(query.get(f"${name}") or str(default))
    except ValueError:
        number = -1
    if number < 0:
        raise invalid_request(f"Parameter '{name}' should be non-negative integer. Parameter name: {name}.")
    return number


def _page(
    title: str, found: Sequence[Any], entry: Callable[[Any], atom.Entry], request: Request, context: RequestContext
) -> Response:
    """Return one page of a list, with a link to the next one if there is one."""
    skip = _page_parameter(request.query, "skip", 0)
    top = min(_page_parameter(request.query, "top", _DEFAULT_PAGE), _MAX_PAGE)
    base = f"https://{context.host}/{quote(request.path.strip('/'), safe='/$')}"
    following = ""
    if top and skip + top < len(found):
        version = f"api-version={quote(context.version, safe='')}&" if context.version else ""
        following = f"{base}?{version}enrich=False&$skip={skip + top}&$top={top}"
    entries = [entry(entity) for entity in found[skip : skip + top]]
    page = atom.write_feed(title, f"https://{context.host}{request.target}", entries, context, following)
    return Response(200, page.encode(), {"Content-Type": atom.FEED})
