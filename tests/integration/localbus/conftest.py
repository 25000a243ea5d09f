"""One localbus process for each module that asks for it, and what the SDK's scenarios run on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.localbus import LocalBus
from tests.support.process_fixtures import collected
from tests.support.scenarios import RunningScenarios, wanted_in

__all__ = ["collected"]


@pytest.fixture(scope="module")
def bus(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBus]:
    """A namespace that a module's tests share; `ON_A_STORE = True` in the module gives it a store."""
    store: Path | None = None
    if getattr(request.module, "ON_A_STORE", False):
        store = tmp_path_factory.mktemp("store") / "localbus.db"
    entities = getattr(request.module, "ENTITIES", None)
    file: Path | None = None
    if entities is not None:
        file = tmp_path_factory.mktemp("entities") / "entities.toml"
        file.write_text(entities, encoding="utf-8")
    with LocalBus(store=store, entities=file) as started:
        yield started


@pytest.fixture(scope="module")
def admin_client(bus: LocalBus) -> Iterator[ServiceBusAdministrationClient]:
    """The administration client of the module's namespace."""
    with ServiceBusAdministrationClient.from_connection_string(
        bus.connection_string, connection_verify=bus.ca_file
    ) as client:
        yield client


@pytest.fixture(scope="module")
def running_scenarios(request: pytest.FixtureRequest, bus: LocalBus) -> Iterator[RunningScenarios]:
    """Starts the module's scenarios; each test waits for its own."""
    running = RunningScenarios(bus, wanted_in(request.module, request.session.items))
    yield running
    running.close()
