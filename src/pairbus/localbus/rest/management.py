"""The management REST: which request asks what of the broker, and what is answered.

Every mutation is committed before it is answered. Errors are BusErrors from wherever they were noticed; this
module gives them the service's words. It knows no sockets: requests come from `http`, entities from `ports`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote
from xml.etree.ElementTree import Element

from pairbus.localbus.addresses import Place
from pairbus.localbus.bus_errors import ENTITY_EXISTS, NOT_ALLOWED, UNAUTHORIZED, BusError, not_found
from pairbus.localbus.settings import HubSettings, QueueSettings, TopicSettings, check_path, check_subscription_name

from . import atom
from .atom_rules import read_rule
from .descriptions import HUB, QUEUE, SUBSCRIPTION, TOPIC, View, read_settings
from .error_responses import refused
from .http import Handler, Request, Response
from .ports import Broker, Rule, Subscription
from .xml_values import bad, child, read_integer

MANAGE = "Manage"
PAGE = 100
MAX_PAGE = 1000

Authorize = Callable[[str | None, str, str], None]
Commit = Callable[[], Awaitable[None]]

#: What an update may repeat but not change, by field; an update that is silent about them keeps them.
_FIXED = {
    "requires_session": "RequiresSession",
    "requires_duplicate_detection": "RequiresDuplicateDetection",
    "enable_partitioning": "EnablePartitioning",
    "partition_count": "PartitionCount",
}


class Management:
    """Answers management requests; a BusError becomes a refusal, other exceptions are the caller's affair."""

    def __init__(
        self,
        broker: Broker,
        authorize: Authorize,
        commit: Commit,
        extra: Mapping[str, Handler] | None = None,
    ) -> None:
        self._broker = broker
        self._authorize = authorize
        self._commit = commit
        self._extra = {prefix.strip("/").lower(): handler for prefix, handler in (extra or {}).items()}

    async def handle(self, request: Request) -> Response:
        host = request.headers.get("host") or self._broker.name
        view = View(self._broker.name, host, request.query.get("api-version", ""))
        path = request.path.strip("/")
        try:
            self._authorize(request.headers.get("authorization"), path, MANAGE)
            return await self._route(request, path, view)
        except BusError as error:
            if error.condition == UNAUTHORIZED and request.method == "GET" and self._is_nowhere(Place.of(path)):
                return _nothing()  # any key may hear that there is nothing
            return refused(error, request.method, path, host, self._broker.name)

    async def _route(self, request: Request, path: str, view: View) -> Response:
        lower = path.lower()
        for prefix, handler in self._extra.items():
            if lower == prefix or lower.startswith(prefix + "/"):
                return await handler(request)
        if request.method not in ("GET", "PUT", "DELETE"):
            raise BusError(NOT_ALLOWED, f"The method {request.method} is not supported here.", status=405)
        place = Place.of(path)
        if request.method == "PUT":
            return await self._put(request, place, view)
        if request.method == "DELETE":
            await self._delete(place)
            return Response(200)
        if lower == "$namespaceinfo":
            return _entry(atom.namespace_entry(self._broker, view), view)
        if lower.startswith("$resources/"):
            return self._list_entities(lower.removeprefix("$resources/"), request, view)
        if place.listing:
            return self._list_below(place, request, view)
        return self._get(place, view)

    # GET

    def _is_nowhere(self, place: Place) -> bool:
        broker, path = self._broker, place.entity
        below = place.subscription or place.listing or path.startswith("$")
        return not below and broker.queue(path) is None and broker.topic(path) is None and broker.hub(path) is None

    def _get(self, place: Place, view: View) -> Response:
        """Where no entity is, the service shows an empty list; below a topic it says 404."""
        if place.subscription:
            topic = self._broker.topic(place.entity)
            if topic is None:
                return _nothing()
            subscription = self._subscription(place)
            if not place.rule:
                return _entry(atom.subscription_entry(topic, subscription, view), view)
            rule = _rule(subscription, place.rule)
            if rule is None:
                raise not_found(place.rule)
            return _entry(atom.rule_entry(topic, subscription, rule), view)
        return self._entity(place.entity, view) or _nothing()

    def _entity(self, path: str, view: View) -> Response | None:
        if (queue := self._broker.queue(path)) is not None:
            return _entry(atom.queue_entry(queue, view), view)
        if (topic := self._broker.topic(path)) is not None:
            return _entry(atom.topic_entry(topic, view), view)
        if (hub := self._broker.hub(path)) is not None:
            return _entry(atom.hub_entry(hub, view), view)
        return None

    def _list_entities(self, kind: str, request: Request, view: View) -> Response:
        match kind:
            case "queues":
                return _page("Queues", self._broker.queues(), lambda q: atom.queue_entry(q, view), request, view)
            case "topics":
                return _page("Topics", self._broker.topics(), lambda t: atom.topic_entry(t, view), request, view)
            case "eventhubs":
                return _page("EventHubs", self._broker.hubs(), lambda h: atom.hub_entry(h, view), request, view)
        return _nothing()

    def _list_below(self, place: Place, request: Request, view: View) -> Response:
        topic = self._broker.topic(place.entity)
        if topic is None:
            return _nothing()
        if place.listing == "Subscriptions":
            found = _by_name(topic.subscriptions)
            return _page(place.listing, found, lambda s: atom.subscription_entry(topic, s, view), request, view)
        subscription = self._subscription(place)
        rules = _by_name(subscription.rules)
        return _page(place.listing, rules, lambda r: atom.rule_entry(topic, subscription, r), request, view)

    def _subscription(self, place: Place) -> Subscription:
        found = self._broker.subscription(place.entity, place.subscription)
        if found is None:
            raise not_found(f"{place.entity}/Subscriptions/{place.subscription}")
        return found

    # PUT

    async def _put(self, request: Request, place: Place, view: View) -> Response:
        """Create, or with If-Match replace: what an update leaves out goes back to its default."""
        description = atom.read_description(request.body)
        update = "if-match" in request.headers
        match description.tag:
            case "RuleDescription" if place.rule or place.listing == "Rules":
                entry = self._put_rule(description, place, update)
            case "SubscriptionDescription" if place.subscription and not place.rule:
                entry = self._put_subscription(description, place, update, view)
            case "QueueDescription" if not place.subscription and not place.listing:
                entry = self._put_queue(description, place.entity, update, view)
            case "TopicDescription" if not place.subscription and not place.listing:
                entry = self._put_topic(description, place.entity, update, view)
            case "EventHubDescription" if not place.subscription and not place.listing:
                entry = self._put_hub(description, place.entity, update, view)
            case other:
                raise bad(f"A {other} cannot be put at '{request.path}'.")
        await self._commit()
        return _entry(entry, view, status=200 if update else 201)

    def _put_queue(self, description: Element, path: str, update: bool, view: View) -> atom.Entry:
        given = read_settings(description, QUEUE, view)
        if update:
            current = self._broker.queue(path)
            if current is None:
                raise not_found(path)
            settings = QueueSettings(current.settings.name, **_replacing(current.settings, given, "Queue"))
            self._check_forwards(settings)
            self._broker.update_queue(settings)
        else:
            settings = QueueSettings(path, **_partitioned(given))
            self._check_forwards(settings)
            self._check_free(path)
            self._broker.create_queue(settings)
        return atom.queue_entry(_found(self._broker.queue(path), path), view)

    def _put_topic(self, description: Element, path: str, update: bool, view: View) -> atom.Entry:
        given = read_settings(description, TOPIC, view)
        if update:
            current = self._broker.topic(path)
            if current is None:
                raise not_found(path)
            settings = TopicSettings(current.settings.name, **_replacing(current.settings, given, "Topic"))
            self._broker.update_topic(settings)
        else:
            settings = TopicSettings(path, **_partitioned(given))
            self._check_free(path)
            self._broker.create_topic(settings)
        return atom.topic_entry(_found(self._broker.topic(path), path), view)

    def _put_hub(self, description: Element, path: str, update: bool, view: View) -> atom.Entry:
        given = read_settings(description, HUB, view)
        if update:
            current = self._broker.hub(path)
            if current is None:
                raise not_found(path)
            HubSettings(path, **_replacing(current.settings, given, "EventHub"))  # nothing of it can change
        else:
            settings = HubSettings(path, **given)
            self._check_free(path)
            self._broker.create_hub(settings)
        return atom.hub_entry(_found(self._broker.hub(path), path), view)

    def _put_subscription(self, description: Element, place: Place, update: bool, view: View) -> atom.Entry:
        given = read_settings(description, SUBSCRIPTION, view)
        topic = _found(self._broker.topic(place.entity), place.entity)
        if update:
            current = self._subscription(place)
            fields = _replacing(current.settings, given, "Subscription")
            settings = QueueSettings(atom.own_name(current), **fields)
            self._check_forwards(settings)
            self._broker.update_subscription(topic.settings.name, settings)
        else:
            check_subscription_name(place.subscription)
            settings = QueueSettings(place.subscription, **given)
            self._check_forwards(settings)
            if self._broker.subscription(place.entity, place.subscription) is not None:
                raise BusError(ENTITY_EXISTS, f"The subscription '{place.subscription}' already exists.")
            rule = child(description, "DefaultRuleDescription")
            first = None if rule is None else read_rule(rule)
            self._broker.create_subscription(topic.settings.name, settings, first)
        return atom.subscription_entry(topic, self._subscription(place), view)

    def _put_rule(self, description: Element, place: Place, update: bool) -> atom.Entry:
        """A rule put at the list itself is named by its description: Go's client sends the default so."""
        if update and not place.rule:
            raise bad("The name of the rule to update is missing.")
        settings = read_rule(description, place.rule)
        topic = _found(self._broker.topic(place.entity), place.entity)
        subscription = self._subscription(place)
        current = _rule(subscription, settings.name)
        if update:
            if current is None:
                raise not_found(settings.name)
            settings = settings.changed(name=current.settings.name)
            self._broker.update_rule(topic.settings.name, atom.own_name(subscription), settings)
        else:
            if current is not None:
                raise BusError(ENTITY_EXISTS, f"The rule '{settings.name}' already exists.")
            self._broker.create_rule(topic.settings.name, atom.own_name(subscription), settings)
        rule = _found(_rule(self._subscription(place), settings.name), settings.name)
        return atom.rule_entry(topic, subscription, rule)

    def _check_free(self, path: str) -> None:
        """Queues, topics and hubs share one space of names."""
        check_path(path)
        broker = self._broker
        if not (broker.queue(path) is None and broker.topic(path) is None and broker.hub(path) is None):
            raise BusError(ENTITY_EXISTS, f"The messaging entity '{path}' already exists.")

    def _check_forwards(self, settings: QueueSettings) -> None:
        """A destination must exist first; to itself the service lets an entity forward."""
        for target in filter(None, (settings.forward_to, settings.forward_dead_lettered_messages_to)):
            if self._broker.queue(target) is None and self._broker.topic(target) is None:
                raise bad("SubCode=40400. The auto forwarding destination entity does not exist.")

    # DELETE

    async def _delete(self, place: Place) -> None:
        broker, entity = self._broker, place.entity
        if place.listing:
            raise BusError(NOT_ALLOWED, "A list cannot be deleted.", status=405)
        if place.rule:
            subscription = self._subscription(place)
            rule = _found(_rule(subscription, place.rule), place.rule)
            broker.delete_rule(entity, atom.own_name(subscription), rule.settings.name)
        elif place.subscription:
            broker.delete_subscription(entity, atom.own_name(self._subscription(place)))
        elif broker.queue(entity) is not None:
            broker.delete_queue(entity)
        elif broker.topic(entity) is not None:
            broker.delete_topic(entity)
        elif broker.hub(entity) is not None:
            broker.delete_hub(entity)
        else:
            raise not_found(entity)
        await self._commit()


def _found(entity: Any, path: str) -> Any:
    if entity is None:
        raise not_found(path)
    return entity


def _rule(subscription: Subscription, name: str) -> Rule | None:
    wanted = name.lower()
    return next((rule for rule in subscription.rules.values() if rule.settings.name.lower() == wanted), None)


def _by_name(entities: Mapping[str, Any]) -> Sequence[Any]:
    """By name; a subscription's default rule comes first, since `$` does."""
    return [entities[name] for name in sorted(entities, key=str.lower)]


def _replacing(current: Any, given: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The fields of an update; what cannot be changed is kept, and refused by name if it would be."""
    kept = {name: getattr(current, name) for name in _FIXED if hasattr(current, name)}
    for name, value in kept.items():
        if given.get(name, value) != value:
            if name == "enable_partitioning":
                raise bad(f"Partitioning cannot be changed for {kind}.")
            raise bad(f"The value for the {_FIXED[name]} property of an existing {kind} cannot be changed.")
    return {**kept, **given}


def _partitioned(given: Mapping[str, Any]) -> dict[str, Any]:
    """A partitioned entity is made of sixteen, each of the size that was asked for."""
    size = given.get("max_size_in_megabytes", 1024)
    return {**given, "max_size_in_megabytes": 16 * size} if given.get("enable_partitioning") else dict(given)


def _entry(entry: atom.Entry, view: View, status: int = 200) -> Response:
    return Response(status, entry.write(view).encode(), {"Content-Type": atom.ENTRY})


def _nothing() -> Response:
    return Response(200, atom.write_nothing().encode(), {"Content-Type": atom.FEED})


def _number(query: Mapping[str, str], name: str, default: int) -> int:
    try:
        number = read_integer(query.get(f"${name}") or str(default))
    except ValueError:
        number = -1
    if number < 0:
        raise bad(f"Parameter '{name}' should be non-negative integer. Parameter name: {name}.")
    return number


def _page(
    title: str,
    found: Sequence[Any],
    entry: Callable[[Any], atom.Entry],
    request: Request,
    view: View,
) -> Response:
    """One page of a list, with a link to the next one if more remain."""
    skip = _number(request.query, "skip", 0)
    top = min(_number(request.query, "top", PAGE), MAX_PAGE)
    base = f"https://{view.host}/{quote(request.path.strip('/'), safe='/$')}"
    following = ""
    if top and skip + top < len(found):
        version = f"api-version={quote(view.version, safe='')}&" if view.version else ""
        following = f"{base}?{version}enrich=False&$skip={skip + top}&$top={top}"
    entries = [entry(entity) for entity in found[skip : skip + top]]
    page = atom.write_feed(title, f"https://{view.host}{request.target}", entries, view, following)
    return Response(200, page.encode(), {"Content-Type": atom.FEED})
