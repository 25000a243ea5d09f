"""One cluster for all tests of this folder: dead workers are replaced before each test."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster_drain import ROOT, ClusterDrain, say
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
    """The folder to run spark-submit in; it has the environment, unpacked under the name that executors use."""
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
def cluster_drain(
    pair: Pair, cluster: Cluster, archive: Path, home: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[ClusterDrain]:
    """Six thousand parked messages."""
    say(request.node.name)
    made = ClusterDrain(pair, cluster, archive, home, tmp_path)
    made.park()
    try:
        yield made
    finally:
        made.close()
