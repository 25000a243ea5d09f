"""Options and namespaces: every default and range of the contract, refused by name, silent about secrets."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import math
import pickle
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.identity import ClientSecretCredential, DefaultAzureCredential
from azure.identity.aio import ClientSecretCredential as AsyncClientSecretCredential
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pairbus import Namespace, OptionError, PairbusError, PairingOptions
from pairbus.config.checks import shown

JUST = 1e-6

#: Option → its default, the least and the most that it may be, and how an error says so. Seconds.
DURATIONS: dict[str, tuple[float, float, float, str]] = {
    "failover_interval": (60, 0, 3600, "0 … 60 min"),
    "ping_primary_interval": (60, 1, 1800, "1 s … 30 min"),
    "ping_timeout": (120, JUST, math.inf, "more than 0 s"),
    "syphon_retry_interval": (1, 1, 120, "1 s … 2 min"),
    "send_timeout": (60, JUST, math.inf, "more than 0 s"),
    "server_busy_wait": (10, 0, 600, "0 … 10 min"),
}


def option(name: str, value: Any) -> Any:
    """Return an option's value in the options that are made with it."""
    return getattr(PairingOptions(**{name: value}), name)


# --- pairing options ---------------------------------------------------------------------------------------------


def test_the_defaults_are_the_originals() -> None:
    """All options with their defaults; a new one must be added here and to the contract."""
    assert dataclasses.asdict(PairingOptions()) == {
        "backlog_queue_count": 10,
        "failover_interval": 60.0,
        "ping_primary_interval": 60.0,
        "ping_timeout": 120.0,
        "enable_syphon": False,
        "syphon_journal": None,
        "syphon_retry_interval": 1.0,
        "send_timeout": 60.0,
        "server_busy_wait": 10.0,
        "ping": "message",
        "late": "deliver",
        "on_event": None,
    }


@pytest.mark.parametrize("name", DURATIONS)
def test_a_duration_has_its_default(name: str) -> None:
    """As `seconds` gives it, too."""
    assert PairingOptions().seconds(name) == DURATIONS[name][0]


def _inside() -> list[tuple[str, Any]]:
    values: list[tuple[str, Any]] = []
    for name, (_, least, most, _) in DURATIONS.items():
        values += [(name, least), (name, least + JUST)]
        values += [(name, most), (name, most - JUST)] if math.isfinite(most) else [(name, 10 * 24 * 3600)]
    return values


def _outside() -> list[tuple[str, Any]]:
    values: list[tuple[str, Any]] = []
    for name, (_, least, most, _) in DURATIONS.items():
        values += [(name, least - JUST), (name, -1), (name, -1.0)]
        if math.isfinite(most):
            values += [(name, most + 0.001), (name, int(most) + 1), (name, 10**9)]
    return values


@pytest.mark.parametrize(("name", "value"), _inside())
def test_the_ends_of_a_range_are_allowed(name: str, value: Any) -> None:
    """The least, the most, and what is just within them, as a number and as a timedelta."""
    assert option(name, value) == value
    assert option(name, timedelta(seconds=value)) == pytest.approx(value, abs=JUST / 2)


@pytest.mark.parametrize(("name", "value"), _outside())
def test_beyond_the_ends_of_a_range_is_refused(name: str, value: Any) -> None:
    """With the option's name, the value as it was given, and the range."""
    for given_as in (value, timedelta(seconds=value)):
        with pytest.raises(OptionError) as refused:
            option(name, given_as)
        text = str(refused.value)
        assert text.startswith(f"{name} must be {DURATIONS[name][3]} ")
        assert text.endswith(f"not {given_as!r}")


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, True, False, "60", b"60", None, [60], 1j, 10**400, timedelta.min],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_no_duration_is_refused(name: str, value: Any) -> None:
    """NaN and infinity are no durations, `True` is no second, a text is not read; always by name, with the range."""
    with pytest.raises(OptionError) as refused:
        option(name, value)
    text = str(refused.value)
    assert text.startswith(f"{name} must be {DURATIONS[name][3]} (seconds or timedelta), not ")
    assert text.endswith(shown(value))


@pytest.mark.parametrize("name", DURATIONS)
def test_a_duration_is_seconds_once_it_is_in(name: str) -> None:
    """A number, a whole number and a timedelta of the same length make equal options, of floats."""
    ways = [PairingOptions(**cast(Any, {name: value})) for value in (90, 90.0, timedelta(minutes=1, seconds=30))]
    assert ways[0] == ways[1] == ways[2]
    assert [type(getattr(way, name)) for way in ways] == [float] * 3
    assert ways[0].seconds(name) == 90.0


@example("send_timeout", 9007199254740993)  # the first whole number that no float is equal to
@example("ping_timeout", 10**400)  # beyond any float
@settings(deadline=None)
@given(st.sampled_from(sorted(DURATIONS)), st.floats() | st.integers() | st.timedeltas())
def test_a_duration_is_in_its_range_or_refused(name: str, value: Any) -> None:
    """Any number within the range is accepted, as the float nearest to it; any other is refused by name."""
    _, least, most, _ = DURATIONS[name]
    try:
        seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    except OverflowError:
        seconds = math.inf
    if (seconds > 0 if least == JUST else seconds >= least) and seconds <= most and seconds < math.inf:
        assert option(name, value) == seconds
    else:
        with pytest.raises(OptionError, match=rf"^{name} must be "):
            option(name, value)


@pytest.mark.parametrize("count", [1, 2, 10, 100, 10_000])
def test_any_number_of_queues_from_one_on_is_allowed(count: int) -> None:
    """The contract has no upper end."""
    assert option("backlog_queue_count", count) == count


@pytest.mark.parametrize("count", [0, -1, 1.0, 10.5, "10", None, True, False, math.nan, timedelta(10)], ids=repr)
def test_what_is_no_number_of_queues_is_refused(count: Any) -> None:
    """With the option's name, the value and the range."""
    with pytest.raises(OptionError) as refused:
        PairingOptions(backlog_queue_count=count)
    assert str(refused.value) == f"backlog_queue_count must be a whole number, 1 or more, not {shown(count)}"


@pytest.mark.parametrize(
    ("name", "allowed"), [("ping", ["message", "attach"]), ("late", ["deliver", "dead-letter"])]
)  # fmt: skip
def test_a_choice_is_one_of_its_words(name: str, allowed: list[str]) -> None:
    """Anything else is refused with the name, the words and the value."""
    assert [option(name, word) for word in allowed] == allowed
    for value in ("", "Message", "DELIVER", "never", None, 1, True, ["message"]):
        with pytest.raises(OptionError) as refused:
            option(name, value)
        assert str(refused.value).startswith(f"{name} must be one of {', '.join(allowed)}, not {shown(value)}")


@pytest.mark.parametrize("value", [0, 1, "true", "false", None], ids=repr)
def test_enable_syphon_is_true_or_false(value: Any) -> None:
    """A text such as "false" is not taken for true."""
    assert option("enable_syphon", True) is True
    with pytest.raises(OptionError, match=r"^enable_syphon must be True or False, not "):
        PairingOptions(enable_syphon=value)


@pytest.mark.parametrize(
    "journal",
    ["abfss://box@account.dfs.core.windows.net/journal", "s3://box/journal", Path("file:///tmp/journal"), 5, ""],
)
def test_the_syphons_journal_is_a_folder_of_this_machine(journal: Any) -> None:
    """A URI is refused: as a path it would be a folder below the current one, whose journals are never folded."""
    with pytest.raises(OptionError, match=r"^syphon_journal must be "):
        PairingOptions(syphon_journal=journal)
    assert option("syphon_journal", "data/journal") == "data/journal"


def test_on_event_is_something_to_call() -> None:
    """Refused before the first event, not at it."""
    assert option("on_event", print) is print
    with pytest.raises(OptionError, match=r"^on_event must be callable with one event, not 5"):
        PairingOptions(on_event=5)  # type: ignore[arg-type]


def test_an_unknown_option_is_a_type_error() -> None:
    """A misspelt option is not ignored, and options have no positions."""
    with pytest.raises(TypeError, match="failover_intervall"):
        PairingOptions(failover_intervall=5)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        PairingOptions(10)  # type: ignore[call-arg]


def test_a_refused_option_is_a_value_error_and_ours() -> None:
    """Either may be caught."""
    with pytest.raises(ValueError, match="backlog_queue_count") as refused:
        PairingOptions(backlog_queue_count=0)
    assert isinstance(refused.value, PairbusError)


def test_options_are_frozen() -> None:
    """A pairing's options are those it was made with; others are made from them and checked again."""
    options = PairingOptions(failover_interval=5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.failover_interval = 6  # type: ignore[misc]
    assert dataclasses.replace(options, ping_timeout=7) == PairingOptions(failover_interval=5, ping_timeout=7)
    with pytest.raises(OptionError, match="ping_timeout"):
        dataclasses.replace(options, ping_timeout=0)


def test_options_are_shown_as_they_are_written() -> None:
    """Their `repr` makes them again."""
    options = PairingOptions(backlog_queue_count=3, failover_interval=timedelta(minutes=2), ping="attach")
    assert "failover_interval=120.0" in repr(options)
    assert eval(repr(options), {"PairingOptions": PairingOptions}) == options


# --- namespaces --------------------------------------------------------------------------------------------------

HOST = "contoso.servicebus.windows.net"
KEY = "pQ7xY2vN8mK4tR1wZ6cB3hJ9sL5dF0gA+/uEiOo2T4k="
SIGNATURE = "S1gN%2fAtUrE%2bQ7xY2vN8mK4tR1wZ6cB3hJ9sL5d%3d"
TOKEN = f"SharedAccessSignature sr=https%3a%2f%2f{HOST}%2f&sig={SIGNATURE}&se=1999999999&skn=Root"
WITH_KEY = f"Endpoint=sb://{HOST}/;SharedAccessKeyName=Root;SharedAccessKey={KEY}"
WITH_TOKEN = f"Endpoint=sb://{HOST}/;SharedAccessSignature={TOKEN}"
SECRET = "cl1ent-s3cret~value"


class TokenCredential:
    """A credential as those of `azure-identity`, at its smallest; its `repr` shows its secret."""

    def get_token(self, *scopes: str, **kwargs: Any) -> AccessToken:
        return AccessToken(SECRET, 0)

    def __repr__(self) -> str:
        return f"TokenCredential({SECRET})"


def keyed() -> AzureNamedKeyCredential:
    return AzureNamedKeyCredential("Root", KEY)


def clueless(text: str) -> bool:
    """Return True if a text contains no six consecutive characters of a secret."""
    return not any(
        secret[start : start + 6] in text for secret in (KEY, SIGNATURE, SECRET) for start in range(len(secret) - 5)
    )


def test_a_connection_string_with_a_key() -> None:
    """Host, name and key are read; TLS is the rule."""
    namespace = Namespace.from_connection_string(WITH_KEY)
    assert (namespace.host, namespace.name, namespace.use_tls, namespace.ca_file) == (HOST, "contoso", True, None)
    assert isinstance(namespace.credential, AzureNamedKeyCredential)
    assert tuple(namespace.credential.named_key) == ("Root", KEY)


def test_a_connection_string_with_a_token() -> None:
    """The token is taken as it is, with all its `=`; it goes before a key."""
    for text in (WITH_TOKEN, f"{WITH_KEY};SharedAccessSignature={TOKEN}"):
        credential = Namespace.from_connection_string(text).credential
        assert isinstance(credential, AzureSasCredential)
        assert credential.signature == TOKEN


@pytest.mark.parametrize(
    "text",
    [
        f"{WITH_KEY};",
        f"  {WITH_KEY}\n",
        f"SharedAccessKey={KEY};SharedAccessKeyName=Root;Endpoint=sb://{HOST}",
        f"endpoint=sb://{HOST}/;sharedaccesskeyname=Root;SHAREDACCESSKEY={KEY}",
        f"Endpoint = SB://{HOST}/ ; SharedAccessKeyName = Root ; SharedAccessKey = {KEY}",
        f"{WITH_KEY};EntityPath=",
        f"{WITH_KEY};TransportType=Amqp",
        f"{WITH_KEY};UseDevelopmentEmulator=false",
        f"{WITH_KEY};SharedAccessSignature=",
    ],
)
def test_a_connection_string_may_be_written_in_many_ways(text: str) -> None:
    """Order, case, blanks and a last `;` do not matter, and what is empty was not given."""
    namespace = Namespace.from_connection_string(text)
    assert (namespace.host, namespace.name, namespace.use_tls) == (HOST, "contoso", True)
    assert tuple(namespace.credential.named_key) == ("Root", KEY)


@pytest.mark.parametrize("said", ["true", "True", "TRUE"])
def test_an_emulators_connection_string_means_no_tls(said: str) -> None:
    """`UseDevelopmentEmulator=true`: plain AMQP, and a name must be given for localhost."""
    text = f"Endpoint=sb://localhost:5672;SharedAccessKeyName=Root;SharedAccessKey={KEY};UseDevelopmentEmulator={said};"
    namespace = Namespace.from_connection_string(text, name="contoso")
    assert (namespace.host, namespace.name, namespace.use_tls) == ("localhost:5672", "contoso", False)
    with pytest.raises(OptionError, match="does not contain the namespace's name"):
        Namespace.from_connection_string(text)


def test_a_connection_string_for_one_entity_is_refused() -> None:
    """A pairing needs the whole namespace; the entity is named."""
    with pytest.raises(OptionError, match=r"for one entity \(EntityPath='orders'\).* the whole namespace"):
        Namespace.from_connection_string(f"{WITH_KEY};EntityPath=orders")


@pytest.mark.parametrize(
    "text",
    [
        f"Endpoint=sb://{HOST}/",
        f"Endpoint=sb://{HOST}/;SharedAccessKeyName=Root",
        f"Endpoint=sb://{HOST}/;SharedAccessKey={KEY}",
        f"Endpoint=sb://{HOST}/;SharedAccessKeyName=;SharedAccessKey={KEY}",
        f"Endpoint=sb://{HOST}/;SharedAccessKeyName=Root;SharedAccessKey=",
        f"Endpoint=sb://{HOST}/;SharedAccessSignature=",
    ],
)
def test_a_connection_string_without_a_credential_is_refused(text: str) -> None:
    """The error says which parts it needs."""
    with pytest.raises(OptionError, match="needs SharedAccessKeyName and SharedAccessKey, or SharedAccessSignature"):
        Namespace.from_connection_string(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"SharedAccessKeyName=Root;SharedAccessKey={KEY}", "has no Endpoint"),
        (f"Endpoint=;SharedAccessKeyName=Root;SharedAccessKey={KEY}", "has no Endpoint"),
        (f"{WITH_KEY};nonsense", "is malformed: every part must be Name=value"),
        (f"{WITH_KEY};;EntityPath=", "is malformed"),
        (HOST, "is malformed"),
        ("", "is empty"),
        ("  ", "is empty"),
        (None, "is empty"),
        (WITH_KEY.encode(), "is empty"),
        (f"Endpoint=sb:///;SharedAccessKeyName=Root;SharedAccessKey={KEY}", "host must be a host name"),
        (f"Endpoint=sb://{HOST}/orders;SharedAccessKeyName=Root;SharedAccessKey={KEY}", "host must be a host name"),
        (WITH_KEY.replace(";", ""), "has no credential"),
        (WITH_KEY.replace("/;", "/", 1) + f";{WITH_TOKEN.partition(';')[2]}", "host must be a host name"),
    ],
    ids=str,
)
def test_a_malformed_connection_string_is_refused(text: Any, says: str) -> None:
    """The error says what is wrong and quotes no secret."""
    with pytest.raises(OptionError) as refused:
        Namespace.from_connection_string(text)
    assert says in str(refused.value)
    assert clueless(str(refused.value))


@settings(deadline=None)
@given(
    st.sampled_from([WITH_KEY, WITH_TOKEN, f"{WITH_KEY};EntityPath=orders", f"EntityPath=orders;{WITH_TOKEN}"]),
    st.lists(st.tuples(st.sampled_from(["drop", "put"]), st.integers(0, 300), st.sampled_from(";= /:x")), max_size=4),
)
@example(f"EntityPath=orders;SharedAccessKey={KEY};Endpoint=sb://{HOST}", [("drop", 17, "x")])
@example(WITH_KEY, [("drop", len("Endpoint=sb://contoso.servicebus.windows.net/"), "x")])
def test_no_error_about_a_connection_string_quotes_a_secret(text: str, slips: list[tuple[str, int, str]]) -> None:
    """However it was mistyped: neither the error nor the namespace shows a piece of a key or a signature."""
    for what, where, letter in slips:
        # The marks between the parts are where a slip could pour a secret into another part.
        marks = [at for at, each in enumerate(text) if each in ";="] or [0]
        at = marks[where % len(marks)]
        text = text[:at] + text[at + 1 :] if what == "drop" else text[:at] + letter + text[at:]
    chained: BaseException | None = None
    try:
        shown = repr(Namespace.from_connection_string(text))
    except OptionError as refused:
        shown = "".join(traceback.format_exception_only(refused))
        chained = refused.__cause__ or refused.__context__
    assert chained is None
    assert clueless(shown)


def test_a_namespace_by_host_and_credential() -> None:
    """The host goes first and by its place; all else by name."""
    namespace = Namespace(HOST, credential=keyed())
    assert (namespace.host, namespace.name, namespace.use_tls, namespace.ca_file) == (HOST, "contoso", True, None)
    assert Namespace(host=HOST, credential=keyed()).host == HOST
    with pytest.raises(TypeError):
        Namespace(HOST, keyed())  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="credential"):
        Namespace(HOST)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="nmae"):
        Namespace(HOST, credential=keyed(), nmae="contoso")  # type: ignore[call-arg]


@pytest.mark.parametrize("host", [HOST, f" {HOST} ", f"sb://{HOST}", f"sb://{HOST}/", f"{HOST}/"])
def test_a_host_may_be_written_as_an_endpoint(host: str) -> None:
    """As it is copied from the portal."""
    assert Namespace(host, credential=keyed()).host == HOST


@pytest.mark.parametrize(
    "host",
    ["", " ", None, 5, b"contoso", "con toso", "contoso/orders", "https://contoso", "contoso:port", "-contoso", "[::1"],
    ids=repr,
)
def test_what_is_no_host_is_refused(host: Any) -> None:
    """With an example of what would be right."""
    with pytest.raises(OptionError, match=r"^host must be a host name such as contoso\.servicebus\.windows\.net, not "):
        Namespace(host, credential=keyed(), name="contoso")


def test_a_connection_string_for_a_host_is_not_quoted() -> None:
    """Nor for a name, nor for a file: the likeliest mistake would show a key."""
    slips: list[Callable[[], Namespace]] = [
        lambda: Namespace(WITH_KEY, credential=keyed()),
        lambda: Namespace(WITH_TOKEN, credential=keyed()),
        lambda: Namespace(KEY, credential=keyed()),
        lambda: Namespace(f"sig={SIGNATURE}", credential=keyed()),
        lambda: Namespace(HOST, credential=keyed(), name=WITH_KEY),
        lambda: Namespace(HOST, credential=keyed(), ca_file=WITH_KEY),
        lambda: Namespace(HOST, credential=keyed(), ca_file=Path(KEY)),
        lambda: Namespace(HOST, credential=WITH_KEY),
        lambda: Namespace(HOST, credential={"key": KEY}),
        lambda: Namespace(keyed().named_key, credential=keyed()),  # type: ignore[arg-type]
    ]
    for slip in slips:
        with pytest.raises(OptionError) as refused:
            slip()
        assert clueless(str(refused.value)), refused.value


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:5671", "[::1]", "[::1]:5671", "localhost", "LocalHost:5672"])
def test_an_address_or_localhost_needs_a_name(host: str) -> None:
    """Without one it is refused with what to do and why; with one it is taken."""
    with pytest.raises(OptionError) as refused:
        Namespace(host, credential=keyed())
    assert str(refused.value) == (
        f"the host {host} does not contain the namespace's name: pass it, Namespace(…, name='contoso'). The "
        "primary's is part of the backlog queues' paths, so all senders and the syphon must use the same"
    )
    assert Namespace(host, credential=keyed(), name="contoso").name == "contoso"


def test_a_name_may_be_given_to_any_host() -> None:
    """A private name in front of a namespace does not change its backlog queues' paths; names are lower case."""
    assert Namespace("bus.corp.example", credential=keyed(), name="Contoso").name == "contoso"
    assert Namespace(HOST.upper(), credential=keyed()).name == "contoso"
    assert Namespace.from_connection_string(WITH_KEY, name="fabrikam").name == "fabrikam"


@pytest.mark.parametrize("name", ["", " ", "a/b", "contoso ", "-contoso", "contoso-", "a" * 64, "ä", 5, True], ids=repr)
def test_what_is_no_name_is_refused(name: Any) -> None:
    """A name becomes part of a path: it must be one label."""
    with pytest.raises(OptionError, match=r"^name must be a label such as contoso"):
        Namespace(HOST, credential=keyed(), name=name)


def test_a_ca_file_must_be_there(tmp_path: Path) -> None:
    """As a text or a path; a file that is missing, a folder and what is no path are refused by name."""
    file = tmp_path / "ca.pem"
    file.write_text("-----BEGIN CERTIFICATE-----")
    for given_as in (file, str(file)):
        assert Namespace(HOST, credential=keyed(), ca_file=given_as).ca_file == given_as
        assert Namespace.from_connection_string(WITH_KEY, ca_file=given_as).ca_file == given_as
    for missing in (tmp_path / "none.pem", str(tmp_path / "none.pem"), tmp_path, ""):
        with pytest.raises(OptionError) as refused:
            Namespace.from_connection_string(WITH_KEY, ca_file=missing)
        assert str(refused.value) == (
            f"ca_file must be a file with certificates in PEM form, not {str(missing)!r}: no such file"
        )
    empty = tmp_path / "empty.pem"
    empty.write_text("no certificate")
    with pytest.raises(OptionError, match=r"empty\.pem' has none$"):
        Namespace(HOST, credential=keyed(), ca_file=empty)
    for no_path in (5, True, b"ca.pem"):
        with pytest.raises(OptionError, match=r"^ca_file must be a file"):
            Namespace(HOST, credential=keyed(), ca_file=no_path)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "credential",
    [
        keyed(),
        AzureSasCredential(TOKEN),
        TokenCredential(),
        ClientSecretCredential("tenant", "client", SECRET),
        DefaultAzureCredential(),
    ],
    ids=lambda credential: type(credential).__name__,
)
def test_every_kind_of_credential_is_taken(credential: Any) -> None:
    """A key, a token, and whatever can get a token; it is kept as it is."""
    assert Namespace(HOST, credential=credential).credential is credential


@pytest.mark.parametrize(
    ("credential", "shown"),
    [
        (None, "NoneType"),
        (KEY, "str"),
        (WITH_KEY, "str"),
        (("Root", KEY), "tuple"),
        (AccessToken(SECRET, 0), "AccessToken"),
        (object(), "object"),
        (DefaultAzureCredential, "the class DefaultAzureCredential"),
        (AsyncClientSecretCredential("tenant", "client", SECRET), "ClientSecretCredential"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 40 else "",
)
def test_what_is_no_credential_is_refused(credential: Any, shown: str) -> None:
    """Here, not at the first send; the error tells its kind and never its value. An asynchronous credential is none."""
    with pytest.raises(OptionError) as refused:
        Namespace(HOST, credential=credential)
    assert str(refused.value).startswith("credential must be one of azure-identity's credentials")
    assert str(refused.value).endswith(f"not {shown}")
    assert clueless(str(refused.value))


@pytest.mark.parametrize(
    "namespace",
    [
        Namespace.from_connection_string(WITH_KEY),
        Namespace.from_connection_string(WITH_TOKEN),
        Namespace(HOST, credential=TokenCredential()),
        Namespace(HOST, credential=ClientSecretCredential("tenant", "client", SECRET)),
    ],
    ids=["key", "token", "its own repr", "azure-identity"],
)
def test_a_namespace_shows_no_secret(namespace: Namespace, caplog: pytest.LogCaptureFixture) -> None:
    """Its `repr` names host, name and the credential's kind; no way of writing it shows more, alone or in others."""
    kind = type(namespace.credential).__name__
    assert repr(namespace) == f"Namespace('{HOST}', name='contoso', credential=<{kind}>)"
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("a.test").info("%s %r", namespace, namespace, extra={"namespace": namespace})
    ways = [str(namespace), f"{namespace}", f"{namespace!r}", "{:>5}".format(str(namespace)), "%s" % namespace]  # noqa: UP031,UP032
    ways += [repr([namespace]), repr({"primary": namespace}), json.dumps([namespace], default=str), caplog.text]
    assert all(clueless(way) for way in ways)


@pytest.mark.parametrize("text", [WITH_KEY, WITH_TOKEN], ids=["key", "token"])
def test_dumps_of_a_namespaces_fields_show_no_secret(text: str) -> None:
    """`vars` and `dataclasses.asdict` give the credential object, and the SDK's show nothing of themselves."""
    namespace = Namespace.from_connection_string(text)
    assert clueless(repr(vars(namespace)))
    assert clueless(repr(dataclasses.asdict(namespace)))


@pytest.mark.parametrize("text", [WITH_KEY, WITH_TOKEN], ids=["key", "token"])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_namespace_cannot_be_pickled(text: str, protocol: int) -> None:
    """Its key would be there in plain text: the error says what to do instead, also for what holds a namespace."""
    namespace = Namespace.from_connection_string(text)
    for each in (namespace, {"primary": namespace}):
        with pytest.raises(TypeError, match=r"Make it where it is used.*foreachPartition.*environ") as raised:
            pickle.dumps(each, protocol)
        assert clueless(str(raised.value))


def test_a_namespace_can_be_copied() -> None:
    """It is frozen, so a copy is the same; one that is changed is made, and checked, anew."""
    namespace = Namespace(HOST, credential=keyed())
    assert copy.copy(namespace) is copy.deepcopy(namespace) is namespace
    assert copy.deepcopy([namespace])[0] is namespace
    other = dataclasses.replace(namespace, name="other")
    assert (other.name, other.host, other.credential) == ("other", namespace.host, namespace.credential)
    with pytest.raises(OptionError):
        dataclasses.replace(namespace, name="no name")


def test_a_namespace_is_frozen() -> None:
    """A checked value cannot change afterwards."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        Namespace(HOST, credential=keyed()).host = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "key"), [("", "a2V5"), ("Root", ""), ("Ro;ot", "a2V5"), ("Root", "x;EndPoint=sb://other")]
)
def test_a_key_that_no_connection_string_can_hold_is_refused(name: str, key: str) -> None:
    """By name, and without the key: part of it could otherwise name another host."""
    with pytest.raises(OptionError, match="without ';'") as refused:
        Namespace("contoso.servicebus.windows.net", credential=AzureNamedKeyCredential(name, key))
    assert "EndPoint" not in str(refused.value)
