"""Microsoft's Service Bus SDKs for JavaScript, Go and Java, unmodified, with one localbus.

Each language has a conformance program in this folder. It is built into ``.build/`` and run once, and prints one JSON
line per case; each case is a test here. Run with ``pytest -m sdks tests/sdks`` (``make sdk-test``).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.localbus import LocalBus

pytestmark = pytest.mark.sdks

SOURCE = Path(__file__).parent
BUILD = SOURCE / ".build"
BUILD_LIMIT = 600  # seconds; the first build downloads the SDK
RUN_LIMIT = 600

CASES = [
    "send_receive_complete",
    "system_properties",
    "batch_send",
    "drain_500",
    "abandon_with_properties",
    "max_delivery_count",
    "defer_receive_by_sequence_number",
    "dead_letter",
    "peek",
    "schedule_and_cancel",
    "scheduled_by_property",
    "renew_lock",
    "lock_expiry",
    "receive_and_delete",
    "ttl_dead_letter",
    "ttl_of_entity_discards",
    "duplicate_detection",
    "auto_forward",
    "session_named",
    "session_next",
    "session_order",
    "session_state",
    "session_renew_lock",
    "session_lock_lost",
    "session_next_timeout",
    "session_cannot_be_locked",
    "session_rules_of_the_queue",
    "session_defer_and_peek",
    "topic_default_rule",
    "topic_sql_filter",
    "topic_correlation_filter",
    "topic_sql_action",
    "topic_subscription_dead_letter",
    "topic_sessions_and_schedule",
    "property_types",
    "body_types",
    "large_message",
    "interop_with_python",
    "message_too_large",
    "missing_queue",
    "wrong_key",
    "entity_disabled",
    "admin_queue",
    "admin_topic",
    "admin_subscription",
    "admin_rule",
    "admin_runtime_counts",
    "admin_not_found",
    "admin_already_exists",
    "admin_namespace",
    "admin_wrong_key",
]

# Cases that only some of the SDKs can run.
MORE = {
    "js": ["streaming_receive", "topic_rule_manager", "admin_list_pages"],
    "go": ["session_list", "admin_list_pages"],
    "java": ["streaming_receive", "topic_rule_manager"],
}


def build_js() -> list[str]:
    target = BUILD / "js"
    target.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "conformance.mjs"):
        shutil.copyfile(SOURCE / "js" / name, target / name)
    run_tool(["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"], target)
    return ["node", str(target / "conformance.mjs")]


def build_go() -> list[str]:
    target = BUILD / "go" / "conformance"
    run_tool(["go", "build", "-o", str(target), "."], SOURCE / "go")
    return [str(target)]


def build_java() -> list[str]:
    target = BUILD / "java"
    run_tool(
        ["mvn", "-q", "-B", f"-Dbuild.to={target}", "compile", "dependency:build-classpath"],
        SOURCE / "java",
    )
    classpath = f"{target / 'classes'}{os.pathsep}{(target / 'classpath.txt').read_text().strip()}"
    return ["java", "-cp", classpath, "Conformance"]


@dataclass(frozen=True)
class Language:
    tools: tuple[str, ...]
    build: Callable[[], list[str]]


LANGUAGES = {
    "js": Language(("node", "npm"), build_js),
    "go": Language(("go",), build_go),
    "java": Language(("java", "mvn"), build_java),
}


def run_tool(command: list[str], folder: Path) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_LIMIT,
        check=False,
    )
    if done.returncode:
        pytest.fail(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-4000:]}", pytrace=False)


@dataclass(frozen=True)
class Outcome:
    ok: bool
    detail: str


@dataclass(frozen=True)
class Report:
    """The result of one program: its outcomes by case, its exit code and the end of its error stream."""

    outcomes: dict[str, Outcome]
    exit_code: int
    errors: str


@pytest.fixture(scope="module")
def bus() -> Iterator[LocalBus]:
    with LocalBus(name="contoso") as bus:
        yield bus


@pytest.fixture
def language(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def reports(bus: LocalBus) -> dict[str, Report | str]:
    """Return the report of each language's program, or the error that prevented it."""
    return {}


@pytest.fixture
def report(language: str, bus: LocalBus, reports: dict[str, Report | str]) -> Report:
    """Return the report of the language's program, which is built and run once."""
    if language not in reports:
        try:
            reports[language] = run_program(language, bus)
        except pytest.fail.Exception as failure:
            reports[language] = str(failure)
    found = reports[language]
    if isinstance(found, str):
        pytest.fail(found, pytrace=False)
    return found


def run_program(language: str, bus: LocalBus) -> Report:
    missing = [tool for tool in LANGUAGES[language].tools if shutil.which(tool) is None]
    if missing:
        pytest.fail(f"{language}: {' and '.join(missing)} not found on PATH", pytrace=False)
    command = LANGUAGES[language].build()
    prepare_interop(bus, language)
    environment = os.environ | {
        "LOCALBUS": bus.connection_string,
        "LOCALBUS_CA": str(bus.ca_file),
        "LOCALBUS_INTEROP": f"interop-{language}",
        "NODE_EXTRA_CA_CERTS": str(bus.ca_file),
    }
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=RUN_LIMIT, check=False)
    except subprocess.TimeoutExpired as late:
        so_far = (late.stdout or b"").decode(errors="replace")
        pytest.fail(f"{language}: no end within {RUN_LIMIT} s; it had reports:\n{so_far[-4000:]}", pytrace=False)
    outcomes = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            case = json.loads(line)
            outcomes[case["case"]] = Outcome(case["ok"], case["detail"])
    return Report(outcomes, done.returncode, done.stderr[-4000:])


INTEROP_PROPERTIES: dict[str | bytes, int | float | bytes | bool | str | UUID] = {
    "text": "grüße",
    "number": -7,
    "share": 0.25,
    "yes": True,
    "no": False,
}


def prepare_interop(bus: LocalBus, language: str) -> None:
    with ServiceBusAdministrationClient.from_connection_string(
        bus.connection_string, connection_verify=str(bus.ca_file)
    ) as administration:
        for end in ("in", "out"):
            administration.create_queue(f"interop-{language}-{end}")
    message = ServiceBusMessage(
        b"\x00\xff from python",
        message_id="m-1",
        subject="over",
        application_properties=dict(INTEROP_PROPERTIES),
    )
    with (
        ServiceBusClient.from_connection_string(bus.connection_string) as client,
        client.get_queue_sender(f"interop-{language}-in") as sender,
    ):
        sender.send_messages(message)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        pairs = [(language, case) for language in LANGUAGES for case in CASES + MORE[language]]
        ids = [f"{language}-{case}" for language, case in pairs]
        metafunc.parametrize(("language", "case"), pairs, ids=ids, indirect=["language"])
    else:
        metafunc.parametrize("language", list(LANGUAGES), indirect=True)


def test_case(report: Report, case: str) -> None:
    """The SDK behaves against localbus as it does against Azure."""
    outcome = report.outcomes.get(case)
    if outcome is None:
        pytest.fail(f"{case} was not reported (exit code {report.exit_code}):\n{report.errors}", pytrace=False)
    if not outcome.ok:
        pytest.fail(outcome.detail, pytrace=False)


def test_the_program_runs_exactly_the_listed_cases(report: Report, language: str) -> None:
    """Its exit code agrees with the outcomes."""
    assert set(report.outcomes) == set(CASES + MORE[language]), report.errors
    assert (report.exit_code == 0) == all(outcome.ok for outcome in report.outcomes.values()), report.errors


def text(value: object) -> object:
    return value.decode() if isinstance(value, bytes) else value


def test_python_reads_a_message_that_another_sdk_resent(report: Report, bus: LocalBus, language: str) -> None:
    """A message from Python's SDK, received and sent by another SDK, has the same body and properties."""
    with (
        ServiceBusClient.from_connection_string(bus.connection_string) as client,
        client.get_queue_receiver(f"interop-{language}-out", max_wait_time=5) as receiver,
    ):
        [message] = receiver.receive_messages(max_message_count=1)
        receiver.complete_message(message)
    assert b"".join(message.body) == b"\x00\xff from python"
    assert (message.message_id, message.subject) == ("m-1", "over")
    received = {text(key): text(value) for key, value in (message.application_properties or {}).items()}
    assert received == INTEROP_PROPERTIES
