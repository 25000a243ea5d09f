"""One cluster for all tests here: started once, healed after each test, and gone at the end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster_drain import ROOT, Homecoming, say
from tests.cluster.spark_cluster import Cluster
from tests.support.pairing import Pair, both, collected, pair
from tests.support.spark import spark

__all__ = ["both", "collected", "pair", "spark"]


@pytest.fixture(scope="session")
def archive() -> Path:
    """The environment for executors, as `make environment` packs it."""
    made = ROOT / "build" / "environment.tar.gz"
    subprocess.run([sys.executable, ROOT / "tools" / "environment_archive.py", f"--archive={made}"], check=True)
    return made


@pytest.fixture(scope="session")
def home(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where spark-submit is called: the driver has the environment unpacked beside it, under the executors' name."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "environment").mkdir()
    subprocess.run(["tar", "-xzf", archive, "-C", folder / "environment"], check=True)
    return folder


@pytest.fixture(scope="session")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as made:
        say(f"a master and two workers are at {made.url}")
        yield made


@pytest.fixture
def cluster(standing: Cluster) -> Cluster:
    """A master and two workers that run nothing."""
    standing.heal()
    standing.wait_until_idle()
    return standing


@pytest.fixture
def homecoming(
    pair: Pair, cluster: Cluster, archive: Path, home: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Homecoming]:
    """Six thousand messages on their way home."""
    say(request.node.name)
    made = Homecoming(pair, cluster, archive, home, tmp_path)
    made.park()
    try:
        yield made
    finally:
        made.close()
