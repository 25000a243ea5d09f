"""The syphon's configuration: checked as a whole, and without a secret in it, wherever it is shown or sent."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import re
import socket
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import azure.identity
import pytest
from azure.core.credentials import AzureNamedKeyCredential
from hypothesis import given
from hypothesis import strategies as st

from pairbus import ConfigError, OptionError
from pairbus.config.references import CREDENTIALS
from pairbus.config.syphon_config import JOB_NEEDS, LedgerPlaces, NamespaceReference, SyphonConfig
from pairbus.domain.backlog import format_indexes

ROOT = Path(__file__).resolve().parents[3]
KEY = "c2VjcmV0LWtleS10aGF0LW5vYm9keS1tYXktc2Vl="
#: Of a storage account: with a slash, and such that the beginning might be a port.
SLASHED = "c2VjcmV0/" + "LWtleS10aGF0" * 6 + "bm=="
NUMBERED = "8020/" + SLASHED
SECRET = f"Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=root;SharedAccessKey={KEY}"
GUID = "12345678-90ab-cdef-1234-567890abcdef"
LEAST: dict[str, Any] = {"primary": {"connection": "env:FIRST"}, "secondary": {"connection": "env:SECOND"}}


def config(**tables: dict[str, Any]) -> SyphonConfig:
    return SyphonConfig.from_mapping({**LEAST, **tables})


def problems(mapping: Any) -> list[str]:
    """Return the problems of a refused configuration; none of them may show a secret."""
    with pytest.raises(ConfigError) as refused:
        SyphonConfig.from_mapping(mapping)
    assert_silent(refused.value)
    return list(refused.value.problems)


def problem(**tables: Any) -> str:
    """Return the only problem."""
    (only,) = problems({**LEAST, **tables})
    return only


def assert_silent(value: object) -> None:
    for text in (str(value), repr(value)):
        assert KEY not in text
        assert "SharedAccessKey=" not in text


# --- files -------------------------------------------------------------------------------------------------------


def test_the_example_is_valid_and_says_the_defaults() -> None:
    """conf/pairbus.toml is one, and what it sets besides the places is what holds without it."""
    example = SyphonConfig.load(ROOT / "conf" / "pairbus.toml")
    for field in dataclasses.fields(SyphonConfig):
        if field.name not in ("primary", "secondary", "ledger", "checkpoint", "journal"):
            assert getattr(example, field.name) == field.default, field.name
    assert example.require_ledger().journal == f"{example.ledger}/_journal"


def test_the_example_names_every_key(tmp_path: Path) -> None:
    """Every key is in the example, if only as a comment, and becomes valid when it is uncommented."""
    text = (ROOT / "conf" / "pairbus.toml").read_text()
    named = set(re.findall(r"^(?:# )?(\w+) = ", text, re.MULTILINE))
    known = {field.name for kind in (SyphonConfig, NamespaceReference) for field in dataclasses.fields(kind)}
    assert named == known - {"primary", "secondary", "event_hubs", "ledger"} | {"path"}
    opened = text.replace('connection = "env:PAIRBUS_PRIMARY"', "")
    opened = re.sub(r"^# (?=\[event_hubs\]|\w+ = )", "", opened, flags=re.MULTILINE)
    (tmp_path / "opened.toml").write_text(opened)
    assert SyphonConfig.load(tmp_path / "opened.toml").event_hubs is not None


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """The error names the file and what the system says."""
    with pytest.raises(ConfigError, match=r"nowhere\.toml: it cannot be read: No such file or directory"):
        SyphonConfig.load(tmp_path / "nowhere.toml")


def test_a_file_that_is_no_toml(tmp_path: Path) -> None:
    """The error names the file and the line, and nothing of the line's content."""
    file = tmp_path / "pairbus.toml"
    file.write_text(f'[primary]\nconnection = "{SECRET}" "again"\n')
    with pytest.raises(ConfigError, match=r"pairbus\.toml: it is not TOML: .*at line 2") as refused:
        SyphonConfig.load(file)
    assert_silent(refused.value)
    file.write_bytes(b"# \xff\xfe")
    with pytest.raises(ConfigError, match="not TOML: TOML is UTF-8"):
        SyphonConfig.load(file)


def test_all_mistakes_are_named_at_once(tmp_path: Path) -> None:
    """One reading of a file with twelve mistakes tells twelve, each with its key and what would be right."""
    file = tmp_path / "pairbus.toml"
    file.write_text(
        f"""
        [primray]
        connection = "env:FIRST"
        [secondary]
        connection = "{SECRET}"
        [event_hubs]
        host = "localhost:5671"
        credential = "azurecli"
        [syphon]
        queues = "4-0"
        late = "dead_letter"
        task_budget = "30m"
        window_byte = 3
        max_rate = -1
        [ledger]
        path = "abfss://a@b.example/c?sig={KEY}"
        checkpoint = "here"
        """
    )
    with pytest.raises(ConfigError) as refused:
        SyphonConfig.load(file)
    assert_silent(refused.value)
    expected = [
        "the configuration has the unknown key 'primray'; did you mean primary?",
        '[primary] is missing; it needs connection = "env:NAME"',
        "[secondary] connection must be env:NAME or file:/absolute/path",
        "[event_hubs] name is missing: the host localhost:5671 does not contain it",
        "[event_hubs] credential must be one of default, managed-identity, .*; did you mean azure-cli?",
        "[syphon] has the unknown key 'window_byte'; did you mean window_bytes?",
        "[syphon] queues must be indexes such as \"0-4,7\", each below 10000, not '4-0'",
        "[syphon] late must be one of deliver, dead-letter, not 'dead_letter'; did you mean dead-letter?",
        "[syphon] task_budget must be 1 s … 1 h",
        "[syphon] max_rate must be a number of messages a second, 0 for no limit, not -1",
        "[ledger] path must contain no key, signature or password",
        "[ledger] checkpoint must be an absolute path or a URI such as",
    ]
    for found, said in zip(refused.value.problems, expected, strict=True):
        assert re.match(re.escape(said).replace(r"\.\*", ".*"), found), found
    assert str(refused.value).startswith(f"{file}: 12 problems\n  - the configuration has")
    assert refused.value.source == str(file)


def test_a_config_error_can_be_pickled_and_is_an_option_error() -> None:
    """It is caught where option errors are, and crosses processes with its facts."""
    error = ConfigError(["one", "two"], "pairbus.toml")
    twin = pickle.loads(pickle.dumps(error))
    assert (str(twin), twin.problems, twin.source) == (str(error), ("one", "two"), "pairbus.toml")
    assert isinstance(error, OptionError)
    assert str(ConfigError(["only"])) == "the configuration: only"


# --- values ------------------------------------------------------------------------------------------------------


def test_the_least_configuration_has_the_defaults() -> None:
    """Two references are enough where there is no Spark."""
    least = config()
    assert least == SyphonConfig(
        primary=NamespaceReference(connection="env:FIRST"), secondary=NamespaceReference(connection="env:SECOND")
    )
    assert (least.queues, least.max_rate, least.journal) == (tuple(range(10)), None, None)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(1, 1.0), (2.5, 2.5), ("1500ms", 1.5), ("30s", 30.0), ("2min", 120.0), (" 1 s ", 1.0), (timedelta(minutes=1), 60)],
)
def test_durations(given: Any, seconds: float) -> None:
    """Numbers are seconds, text says its unit, and 2 min is the most for this one."""
    assert config(syphon={"retry_interval": given}).retry_interval == seconds


@pytest.mark.parametrize("given", [0.9, 121, "500ms", "3min", "30", "1m", "", True, None, [], float("nan"), 10**400])
def test_durations_that_are_refused(given: Any) -> None:
    """Out of range, without a unit, or no duration at all: named with the range."""
    assert problem(syphon={"retry_interval": given}).startswith("[syphon] retry_interval must be 1 s … 2 min")


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("idle_poll_interval", [1, "1h"], [0.5, 3601]),
        ("task_budget", [1, 3600], [0, "2h"]),
        ("window_messages", [1, 100_000], [0, 100_001, 1.5, True, "4000"]),
        ("window_bytes", [2**20, 2**30], [2**20 - 1, 2**30 + 1, "32MiB"]),
        ("max_rate", [0, 0.5, 100], [-1, True, "fast", float("inf")]),
        ("late", ["deliver", "dead-letter"], ["", "Deliver", 1]),
    ],
)
def test_ranges(key: str, good: list[Any], bad: list[Any]) -> None:
    """The limits are within, what is beyond them is refused by the key's name and shown."""
    for value in good:
        config(syphon={key: value})
    for value in bad:
        told = problem(syphon={key: value})
        assert told.startswith(f"[syphon] {key} must be ")
        assert f"not {value!r}" in told


def test_no_limit_is_written_zero() -> None:
    """A rate of 0 is none."""
    assert config(syphon={"max_rate": 0}).max_rate is None
    assert config(syphon={"max_rate": 5}).max_rate == 5.0


@pytest.mark.parametrize(
    ("given", "indexes"),
    [
        (3, (0, 1, 2)),
        ("3", (3,)),
        ("0-4,7", (0, 1, 2, 3, 4, 7)),
        (" 7 , 1-2", (1, 2, 7)),
        ([4, 2], (2, 4)),
        ("5-5", (5,)),
    ],
)
def test_queues(given: Any, indexes: tuple[int, ...]) -> None:
    """A number is that of all queues, a text lists their indexes."""
    assert config(syphon={"queues": given}).queues == indexes


@pytest.mark.parametrize(
    "given", [0, -1, 10_001, "", "1,", "a", "4-0", "-1", "0-10000", "0-99999999999", True, [], [-1]]
)
def test_queues_that_are_refused(given: Any) -> None:
    """No queue, or more than a namespace can have, is refused with an example of a right value."""
    assert '"0-4,7"' in problem(syphon={"queues": given})


def test_a_queue_named_twice_is_a_slip() -> None:
    """The problem contains that index."""
    assert "each index once, not 3-4 again: '0-4,3-4'" in problem(syphon={"queues": "0-4,3-4"})


@given(st.sets(st.integers(0, 9999), min_size=1))
def test_indexes_survive_their_short_form(indexes: set[int]) -> None:
    """Any set of indexes is read back as it was formatted."""
    assert config(syphon={"queues": format_indexes(sorted(indexes))}).queues == tuple(sorted(indexes))


def test_overrides() -> None:
    """The command line's values win, the file's others stay, and a rate of 0 removes the limit."""
    base = config(syphon={"max_rate": 10})
    assert base.with_overrides() == base
    assert base.with_overrides(queues="1,3").queues == (1, 3)
    assert base.with_overrides(max_rate=0).max_rate is None
    assert base.with_overrides(max_rate=7).max_rate == 7.0
    with pytest.raises(ConfigError, match=r"queues must be .*not 'all'"):
        base.with_overrides(queues="all")


def test_a_configuration_made_in_python_is_checked_too() -> None:
    """All mistakes at once, as in a file."""
    first, second = (NamespaceReference(connection=f"env:{name}") for name in ("FIRST", "SECOND"))
    with pytest.raises(ConfigError) as refused:
        SyphonConfig(primary=first, secondary="env:SECOND", late="no", window_messages=0)  # type: ignore[arg-type]
    assert len(refused.value.problems) == 3
    assert SyphonConfig(primary=first, secondary=second, queues="0-1").queues == (0, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("mapping", [[], "text", None, {**LEAST, "syphon": 1}, {**LEAST, "ledger": "/ledger"}])
def test_what_is_no_table_is_told(mapping: Any) -> None:
    """Something else where a table belongs is named with the keys that the table has."""
    assert any("must be a table with the keys" in each for each in problems(mapping))


# --- the ledger --------------------------------------------------------------------------------------------------


def test_a_spark_job_needs_the_ledger_and_others_do_not() -> None:
    """Without `[ledger]` a configuration is good, and says what is missing when a Spark job asks."""
    with pytest.raises(ConfigError) as refused:
        config().require_ledger()
    assert [re.match(r"\[ledger\] (\w+) is missing", each)[1] for each in refused.value.problems] == [
        "path",
        "checkpoint",
        "journal",
    ]
    assert config(ledger={"journal": "/journal"}).journal == "/journal"
    with pytest.raises(ConfigError, match="checkpoint is missing"):
        config(ledger={"path": "/ledger"}).require_ledger()


def test_the_journal_is_below_the_ledger_unless_told() -> None:
    """A slash at the end makes no difference."""
    told = config(ledger={"path": "/ledger/", "checkpoint": "dbfs:/checkpoint/"})
    assert told.require_ledger() == LedgerPlaces("/ledger", "dbfs:/checkpoint", "/ledger/_journal")
    told = config(ledger={"path": "s3://b/ledger", "checkpoint": "/c", "journal": "/j"})
    assert told.require_ledger().journal == "/j"


@pytest.mark.parametrize("place", ["ledger", "./ledger", "~/ledger", "", 7])
def test_places_that_depend_on_where_one_stands_are_refused(place: Any) -> None:
    """Executors have other working folders than the driver."""
    assert "[ledger] journal must be an absolute path or a URI" in problem(ledger={"journal": place})


@pytest.mark.parametrize(
    "place",
    [
        f"abfss://c@a.dfs.core.windows.net/x?sv=1&sig={KEY}",
        f"wasbs://c@a/x;AccountKey={KEY}",
        f"s3://AKIA:{KEY}@bucket/x",
        f"s3://bucket/x?region=eu&secret_key={KEY}",
        f"/folder/{SECRET}",
        f"s3://AKIA:{SLASHED}@bucket/x",
        f"abfss://box:{SLASHED}@account.dfs.core.windows.net/x",
        f"abfss://:{SLASHED}@account.blob.core.windows.net/box/x",
        f"abfss://box:{NUMBERED}@account.dfs.core.windows.net/x",
        f"wasbs://box@account/x/{SLASHED}",
    ],
)
def test_places_with_a_secret_are_refused_without_showing_it(place: str) -> None:
    """A path is seen in plans and logs."""
    assert "must contain no key, signature or password" in problem(ledger={"journal": place})


@pytest.mark.parametrize(
    "place",
    [
        "hdfs://namenode:8020/user@home/x",
        "abfss://box@account.dfs.core.windows.net/a:b@c",
        "s3://bucket/a:b@c",
        "/data/of/a/company/with/rather/long/names/of/folders/day=2024-01-01",
    ],
)
def test_places_without_a_secret_are_taken(place: str) -> None:
    """A port is no password, and neither is what is in a path."""
    assert config(ledger={"journal": place}).journal == place


@pytest.mark.parametrize("key", ["path", "checkpoint", "journal"])
@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("abfss://container/x", "names no storage account: write abfss://container@account.dfs.core.windows.net/…"),
        ("abfs://container@/x", "names no storage account: write abfs://container@account.dfs.core.windows.net/…"),
        ("s3a:///x", "names no bucket: write s3a://bucket/…"),
        (
            "file://host/x",
            "names the host host, but each machine looks for the folder on its own disks: write file:///…",
        ),
    ],
)
def test_a_place_whose_host_is_missing_or_one_too_many(key: str, place: str, said: str) -> None:
    """Named once, by its key, before a library or another machine stumbles over it."""
    told = problem(ledger={"path": "/a", "checkpoint": "/b", key: place})
    assert told.count("[ledger]") == 1
    assert f"[ledger] {key} {said}" in told


@pytest.mark.parametrize("place", ["file:///x", "file://localhost/x", "abfss://account.blob.core.windows.net/box/x"])
def test_a_place_whose_host_is_right(place: str) -> None:
    """This machine by either name, and both ways to name an account."""
    assert config(ledger={"journal": place}).journal == place


def test_places_must_differ() -> None:
    """A checkpoint in the ledger's own folder, or a journal in the checkpoint's, would mix two formats."""
    assert "path and checkpoint must be two folders" in problem(ledger={"path": "/a", "checkpoint": "/a/"})
    told = problem(ledger={"path": "/a", "checkpoint": "/b", "journal": "/b"})
    assert "checkpoint and journal must be two folders" in told
    assert "a checkpoint and no path" in problem(ledger={"checkpoint": "/b"})
    for key in ("checkpoint", "journal"):
        for table in ("/a/outcomes", "/a/batches/x"):
            told = problem(ledger={"path": "/a", "checkpoint": "/b", key: table})
            assert f"[ledger] {key} must be a folder of its own, not in the table {table.split('/')[2]}" in told
    assert "not in the checkpoint" in problem(ledger={"path": "/a", "checkpoint": "/b", "journal": "/b/j"})
    assert "not in the journal" in problem(ledger={"path": "/a", "checkpoint": "/j/c", "journal": "/j"})
    assert config(ledger={"path": "/a", "checkpoint": "/a/_checkpoint", "journal": "/a2"}).journal == "/a2"


@pytest.mark.parametrize("key", ["path", "journal"])
def test_a_journal_that_only_spark_could_write(key: str) -> None:
    """Storage that files cannot be written to without Spark is refused with what would do, before anything starts."""
    told = problem(ledger={"path": "/a", "checkpoint": "/b", key: "wasbs://box@account.blob.core.windows.net/x"})
    assert "no journal can be kept on wasbs://" in told
    assert "abfss" in told


def test_one_host_in_two_spellings() -> None:
    """A namespace is not its own secondary."""
    told = problem(
        primary={"host": "contoso.servicebus.windows.net", "credential": "default"},
        secondary={"host": "Contoso.ServiceBus.Windows.Net", "credential": "default"},
    )
    assert "[primary] and [secondary] must be two namespaces" in told


def test_all_that_cannot_be_looked_up_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By table, with the variable that is missing."""
    for name in ("PAIRBUS_NONE_A", "PAIRBUS_NONE_B"):
        monkeypatch.delenv(name, raising=False)
    told = config(
        primary={"connection": "env:PAIRBUS_NONE_A", "name": "contoso"}, secondary={"connection": "env:PAIRBUS_NONE_B"}
    )
    with pytest.raises(ConfigError) as caught:
        told.resolve()
    assert [problem.partition(" ")[0] for problem in caught.value.problems] == ["[primary]", "[secondary]"]


# --- references --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pasted",
    [
        SECRET,
        f"env:{SECRET}",
        f"file:{SECRET}",
        f"file:/x/{SECRET}",
        KEY,
        "PAIRBUS_PRIMARY",
        "env:",
        "env:A B",
        "file:x",
        7,
    ],
)
def test_what_is_no_reference_is_refused_without_showing_it(pasted: Any) -> None:
    """Whatever stands where a reference belongs may be the secret itself, so the text tells what to write instead."""
    told = problem(primary={"connection": pasted})
    assert "Put the connection string into an environment variable and write env:NAME" in told
    assert str(pasted) not in told.replace("env:NAME", "")
    with pytest.raises(ConfigError) as refused:
        NamespaceReference(connection=pasted)
    assert_silent(refused.value)


@pytest.mark.parametrize(
    ("namespace", "said"),
    [
        ({}, 'needs connection = "env:NAME", or host and credential'),
        ({"host": "contoso.servicebus.windows.net"}, "credential is missing; it must be one of default"),
        ({"host": "no host", "credential": "default"}, "host must be a host name such as"),
        ({"host": SECRET, "credential": "default"}, "host must be a host name such as"),
        ({"host": "contoso.example", "credential": KEY}, r"credential must be one of default.*\(not shown\)$"),
        ({"host": "contoso.example", "credential": "default", "client_id": KEY}, "client_id must be the GUID"),
        ({"host": "contoso.example", "credential": "azure-cli", "client_id": GUID}, "client_id has no meaning"),
        ({"host": "10.0.0.1", "credential": "default"}, "name is missing: the host 10.0.0.1 does not contain it"),
        ({"connection": "env:A", "host": "contoso.example"}, "has connection and host"),
        ({"connection": "env:A", "credential": "default"}, "has connection and credential"),
        ({"connection": "env:A", "name": "a b"}, "name must be a label such as contoso"),
        ({"connection": "env:A", "name": 1}, "name must be a label such as contoso"),
        ({"connection": "env:A", "ca_file": "ca.pem"}, "ca_file must be the absolute path of a file, not 'ca.pem'"),
        ({"conection": "env:A", "connection": "env:A"}, "unknown key 'conection'; did you mean connection?"),
        (
            {"connection": "env:A", KEY: 1},
            "unknown key <str, not shown since it may hold a secret>; known are connection, host",
        ),
        ("env:FIRST", "must be a table with the keys connection, host"),
    ],
)
def test_namespaces_that_are_refused(namespace: Any, said: str) -> None:
    """Each problem names its table, and never a value that may be a secret."""
    assert re.search(rf"^\[primary\] .*{said.replace('?', '[?]')}", problem(primary=namespace))


def test_one_namespace_is_no_pair() -> None:
    """The same reference, or the same host, twice is a copy that was not edited."""
    assert "must be two namespaces; both have connection 'env:SECOND'" in problem(primary={"connection": "env:SECOND"})
    same = {"host": "contoso.example", "credential": "default"}
    assert "both have host 'contoso.example'" in problem(primary=same, secondary=same)


def test_the_name_is_told_without_a_secret_where_it_can_be() -> None:
    """From `name`, else from the host; a connection string alone must be looked up."""
    assert NamespaceReference(host="sb://Contoso.example/", credential="default").name == "contoso"
    assert NamespaceReference(host="10.0.0.1", credential="default", name="Contoso").name == "contoso"
    assert NamespaceReference(connection="env:FIRST", name="contoso").name == "contoso"
    assert NamespaceReference(connection="env:FIRST").name is None


def test_a_variable_is_looked_up_where_and_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading needs no secret; resolving takes what the variable holds at that moment, on that machine."""
    reference = config().primary
    monkeypatch.delenv("FIRST", raising=False)
    with pytest.raises(OptionError, match=rf"no environment variable FIRST on {socket.gethostname()}"):
        reference.resolve()
    monkeypatch.setenv("FIRST", f" {SECRET}\n")
    namespace = pickle.loads(pickle.dumps(reference)).resolve()
    assert (namespace.host, namespace.name) == ("contoso.servicebus.windows.net", "contoso")
    assert isinstance(namespace.credential, AzureNamedKeyCredential)
    assert namespace.credential.named_key.key == KEY


def test_a_file_is_looked_up_where_and_when_it_is_needed(tmp_path: Path) -> None:
    """A secret that is mounted as a file, with the newline and the byte order mark that editors leave."""
    file = tmp_path / "primary"
    reference = NamespaceReference(connection=f"file:{file}", name="other")
    with pytest.raises(OptionError, match=rf"{file} cannot be read on {socket.gethostname()}: No such file"):
        reference.resolve()
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(OptionError, match="contains no text"):
        reference.resolve()
    file.write_text(f"\ufeff{SECRET}\n", encoding="utf-8")
    assert reference.resolve().name == "other"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("  ", "env:FIRST is empty on"),
        ("{{secrets/pairbus/primary}}", "a reference to a secret that Databricks did not resolve"),
        (KEY, "env:FIRST on .*: the connection string has no Endpoint"),
        (f"SharedAccessKey={KEY}", "env:FIRST on .*: the connection string has no Endpoint"),
        (
            SECRET.replace("contoso.servicebus.windows.net", "127.0.0.1:5671"),
            "env:FIRST on .*does not contain the namespace's name",
        ),
    ],
)
def test_what_a_reference_leads_to_is_never_shown(monkeypatch: pytest.MonkeyPatch, value: str, said: str) -> None:
    """The problem names the reference of an unusable value and its mistake."""
    monkeypatch.setenv("FIRST", value)
    with pytest.raises(OptionError, match=said) as refused:
        NamespaceReference(connection="env:FIRST").resolve()
    assert_silent(refused.value)


@pytest.mark.parametrize("kind", CREDENTIALS)
def test_every_kind_of_credential_is_azure_identitys(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host and a kind give that class of azure-identity, with the client id where one has a meaning."""
    monkeypatch.setenv("AZURE_TENANT_ID", GUID)
    monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", "/var/run/token")
    client_id = GUID if CREDENTIALS[kind][1] else None
    reference = NamespaceReference(host="contoso.example", credential=kind, client_id=client_id)
    credential = reference.resolve().credential
    assert type(credential) is getattr(azure.identity, CREDENTIALS[kind][0])
    credential.close()


def test_a_credential_that_cannot_be_made_here_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the kind of credential and the machine: an argument is missing, or azure-identity itself."""
    for name in ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_FEDERATED_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    reference = NamespaceReference(host="contoso.example", credential="workload-identity")
    with pytest.raises(OptionError, match=f"credential 'workload-identity' on {socket.gethostname()} cannot be used"):
        reference.resolve()
    monkeypatch.setitem(sys.modules, "azure.identity", None)
    with pytest.raises(OptionError, match="needs azure-identity, which is not installed there"):
        reference.resolve()


# --- travelling --------------------------------------------------------------------------------------------------


FULL: dict[str, Any] = {
    "primary": {"host": "contoso.example", "credential": "managed-identity", "client_id": GUID},
    "secondary": {"connection": "file:/run/secrets/secondary", "name": "fabrikam", "ca_file": "/etc/ca.pem"},
    "event_hubs": {"connection": "env:HUBS"},
    "syphon": {"queues": "0-4,7", "late": "dead-letter", "max_rate": 12.5, "task_budget": "1min"},
    "ledger": {"path": "/ledger", "checkpoint": "/checkpoint", "journal": "/journal"},
}


@pytest.mark.parametrize("mapping", [LEAST, FULL], ids=["least", "full"])
def test_a_configuration_survives_json_and_pickle(mapping: dict[str, Any]) -> None:
    """It reaches a source's options as JSON and an executor by pickle, and is the same there."""
    kept = copy.deepcopy(mapping)
    original = SyphonConfig.from_mapping(mapping)
    assert mapping == kept
    assert SyphonConfig.from_mapping(json.loads(json.dumps(original.to_mapping()))) == original
    assert pickle.loads(pickle.dumps(original)) == original
    assert len({original, pickle.loads(pickle.dumps(original))}) == 1


def test_nothing_of_a_secret_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even after it was looked up: text, JSON and pickle have references and nothing else."""
    monkeypatch.setenv("FIRST", SECRET)
    original = config()
    original.primary.resolve()
    for shown in (repr(original), json.dumps(original.to_mapping()), pickle.dumps(original).decode("latin-1")):
        assert "env:FIRST" in shown
        assert_silent(shown)


def test_a_configuration_cannot_be_changed() -> None:
    """Checked once, it stays so."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        config().late = "never"  # type: ignore[misc]


def test_a_command_names_all_that_is_wrong_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mistakes in the file and on the command line, what the ledger lacks, and references that lead nowhere."""
    for name in ("NOT_SET_A", "NOT_SET_B"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "pairbus.toml"
    file.write_text(
        '[primary]\nconnection = "env:NOT_SET_A"\n[secondary]\nconnection = "env:NOT_SET_B"\n'
        '[syphon]\nlate = "never"\n[ledger]\npath = "/ledger"\n'
    )
    with pytest.raises(ConfigError) as raised:
        SyphonConfig.for_command(file, queues="x", max_rate=-1.0, needs=JOB_NEEDS)
    late, queues, rate, checkpoint, primary, secondary = raised.value.problems
    assert raised.value.source == str(file)
    assert late.startswith("[syphon] late must be one of")
    assert queues.startswith("--queues must be indexes")
    assert rate.startswith("--max-rate must be a number")
    assert checkpoint == "[ledger] checkpoint is missing; a Spark job needs it"
    assert "NOT_SET_A" in primary
    assert "NOT_SET_B" in secondary


def test_a_command_gets_its_configuration_with_what_it_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal is below the ledger unless another is said, so it is not missed there."""
    for name in ("a", "b"):
        told = f"Endpoint=sb://{name}.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=a2V5"
        monkeypatch.setenv(f"SET_{name.upper()}", told)
    file = tmp_path / "pairbus.toml"
    file.write_text(
        '[primary]\nconnection = "env:SET_A"\n[secondary]\nconnection = "env:SET_B"\n[ledger]\npath = "/ledger"\n'
    )
    config = SyphonConfig.for_command(file, queues="3", max_rate=7.0, needs={"journal": ""})
    assert (config.queues, config.max_rate, config.journal) == ((3,), 7.0, "/ledger/_journal")
