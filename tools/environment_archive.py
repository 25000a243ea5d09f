"""An archive of the syphon's Python environment, which Spark copies to every executor of a cluster.

build/environment.tar.gz is a virtual environment with pairbus's own wheel, Proton, pyarrow and their dependencies. They
are copied from .venv, so nothing is downloaded. Spark is not included, because a cluster has its own. `bin/python` is a
link: all machines need a Python of the same minor version at the same path (`--python`), and the operating system and
architecture of this machine.

    spark-submit --archives build/environment.tar.gz#environment --conf spark.pyspark.python=./environment/bin/python …

`make environment` runs this with the Python of .venv. An archive that is up to date is kept.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
ARCHIVE = ROOT / "build" / "environment.tar.gz"
#: pairbus's extra for the syphon on a cluster, and packages that a configuration may need.
EXTRA = "spark"
FURTHER = ("azure-identity",)
#: Provided by the cluster's Spark, which puts them first on the path.
OF_THE_CLUSTER = frozenset({"pyspark", "py4j"})
#: Folders that are not imported at run time: a quarter of the size.
_LEFT_OUT = frozenset({"tests", "include"})


def say(text: str) -> None:
    print(f"pairbus: {text}", file=sys.stderr, flush=True)


def build_wheel(into: Path) -> Path:
    """Build pairbus's own wheel, because .venv only points to the sources."""
    run = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", f"--wheel-dir={into}", str(ROOT)]
    if (code := subprocess.run([*run, "--quiet", "--disable-pip-version-check", "--no-input"]).returncode) != 0:
        say("pip could not build pairbus' wheel (see above)")
        sys.exit(130 if code < 0 or code == 130 else 1)
    (wheel,) = into.glob("pairbus-*.whl")
    return wheel


def needed(wheel: Path) -> list[Distribution]:
    """Return the installed packages that the wheel needs on a cluster."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        lines = archive.read(metadata).decode().partition("\n\n")[0].splitlines()
    # The extra includes other extras of pairbus.
    extras, found = {EXTRA}, dict[str, Distribution]()
    waiting = [(Requirement(line.removeprefix("Requires-Dist:").strip()), extras) for line in lines if "Dist:" in line]
    own = [requirement for requirement, _ in waiting]
    for requirement in own:
        if canonicalize_name(requirement.name) == "pairbus" and _applies(requirement, extras):
            extras |= requirement.extras
    waiting += [(Requirement(name), set()) for name in FURTHER]
    while waiting:
        requirement, wanted = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in found or name in OF_THE_CLUSTER or name == "pairbus" or not _applies(requirement, wanted):
            continue
        found[name] = distribution(name)
        waiting += [(Requirement(each), set(requirement.extras)) for each in found[name].requires or ()]
    return [found[name] for name in sorted(found)]


def _applies(requirement: Requirement, extras: set[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in {"", *extras})


def files_of(package: Distribution) -> Iterator[tuple[PurePosixPath, Path]]:
    """Yield each file of an installed package with its path in the archive, without programs in `bin`."""
    for file in package.files or ():
        path = Path(str(file.locate()))
        if ".." not in file.parts and not _LEFT_OUT & set(file.parts) and path.is_file():
            yield PurePosixPath(file), path


def digest_of(python: str, packages: list[Distribution]) -> str:
    """Return a digest of the archive's contents; a change means that it must be rebuilt."""
    digest = hashlib.sha256(f"{python} {sys.version} {sorted(_LEFT_OUT)}".encode())
    digest.update(repr([(package.name, package.version) for package in packages]).encode())
    sources = [ROOT / "pyproject.toml", *sorted((ROOT / "src").rglob("*")), Path(__file__)]
    for file in sources:
        if file.is_file() and "__pycache__" not in file.parts:
            digest.update(f"{file}\0{file.stat().st_size}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def pack(archive: Path, python: str, wheel: Path, packages: list[Distribution]) -> None:
    """Write the archive completely, or not at all."""
    site = PurePosixPath(f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages")
    unfinished = archive.with_name(f"{archive.name}.{os.getpid()}")
    try:
        # Light compression, because every executor waits for it to be unpacked.
        with tarfile.open(unfinished, "w:gz", compresslevel=1) as tar:
            settings = f"home = {PurePosixPath(python).parent}\ninclude-system-site-packages = false\n"
            _add(tar, "pyvenv.cfg", settings.encode())
            for name in ("python", "python3"):
                link = tarfile.TarInfo(f"bin/{name}")
                link.type, link.linkname = tarfile.SYMTYPE, python if name == "python" else "python"
                tar.addfile(link)
            with zipfile.ZipFile(wheel) as own:
                for name in own.namelist():
                    _add(tar, str(site / name), own.read(name))
            for package in packages:
                for goes_to, file in files_of(package):
                    tar.add(file, str(site / goes_to), recursive=False)
        unfinished.replace(archive)
    finally:
        unfinished.unlink(missing_ok=True)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = len(content), 0o644, 946_684_800
    tar.addfile(entry, io.BytesIO(content))


def make(archive: Path, python: str) -> None:
    """Build the archive unless it is up to date."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    stamp = archive.with_name(f".{archive.name}-stamp")
    with tempfile.TemporaryDirectory() as scratch:
        wheel = build_wheel(Path(scratch))
        packages = needed(wheel)
        digest = digest_of(python, packages)
        if archive.is_file() and stamp.is_file() and stamp.read_text() == digest:
            say(f"{archive} is ready")
            return
        stamp.unlink(missing_ok=True)
        say(f"packing pairbus and {len(packages)} packages of .venv")
        pack(archive, python, wheel, packages)
        stamp.write_text(digest)
    version = ".".join(map(str, sys.version_info[:2]))
    say(f"{archive} ({archive.stat().st_size / 1e6:.0f} MB) is for machines with Python {version} at {python}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Pack the syphon's Python environment for a Spark cluster.")
    parser.add_argument("--archive", type=Path, default=ARCHIVE, help="the file (default: build/environment.tar.gz)")
    parser.add_argument(
        "--python",
        default=os.path.realpath(sys.executable),
        metavar="PATH",
        help="where Python is on the cluster's machines (default: where it is on this one)",
    )
    options = parser.parse_args()
    if not options.python.startswith("/"):
        parser.error(f"--python must be an absolute path, not {options.python}")
    make(options.archive.resolve(), options.python)


if __name__ == "__main__":
    main()
