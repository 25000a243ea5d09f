"""The wheels that a Databricks cluster lacks, in build/wheelhouse, and a check that they are complete.

They are pairbus's own wheel, the pinned wheel of azure-servicebus, and Proton's, which PyPI offers as source only and
which is compiled here once. The runtime has everything else that the syphon imports. Wheels that are up to date are
kept, so a second run takes a moment. `make wheelhouse` runs this with the Python of .venv.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from email.parser import HeaderParser
from pathlib import Path
from typing import NoReturn

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "wheelhouse"
PROTON = "python-qpid-proton"
#: Downloaded from the index unchanged.
READY_MADE = ("azure-servicebus",)
#: The tag of Proton built against the stable ABI; Proton itself requires Python 3.9.
PROTON_TAG = "cp39-abi3"
#: The runtime in conf/databricks.yml: Python, C library, and versions of the packages that the syphon needs.
CLUSTER_PYTHON = "3.12"
CLUSTER_GLIBC = (2, 39)
CLUSTER: Mapping[str, str] = {
    "azure-core": "1.34.0",
    "azure-identity": "1.20.0",
    "cffi": "1.17.1",
    "isodate": "0.6.1",
    "pandas": "2.2.3",
    "pyarrow": "19.0.1",
    "typing-extensions": "4.12.2",
}
#: Libraries that Proton links to if it finds their headers. The syphon uses Python's TLS, so they would only
#: be a further requirement for the cluster.
_NOT_WANTED = (b"libssl.so", b"libcrypto.so", b"libsasl2.so")


def say(text: str) -> None:
    print(f"pairbus: {text}", file=sys.stderr, flush=True)


def give_up(reason: str) -> NoReturn:
    say(reason)
    sys.exit(1)


def pinned(constraints: str) -> dict[str, str]:
    """Return the pinned version of each package."""
    lines = [Requirement(line) for line in constraints.splitlines() if line and not line.startswith("#")]
    return {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in lines}


def pip(*arguments: str, environment: Mapping[str, str] | None = None) -> None:
    run = [sys.executable, "-m", "pip", *arguments, "--quiet", "--disable-pip-version-check", "--no-input"]
    if (code := subprocess.run(run, cwd=ROOT, env=environment).returncode) != 0:
        if code < 0 or code == 130:
            sys.exit(130)
        give_up("pip failed (see above); correct that and run make wheelhouse again")


def find(folder: Path, name: str, version: str) -> Path | None:
    """Return the wheel of this version of a package, or None if the folder lacks it."""
    for wheel in sorted(folder.glob("*.whl")):
        found, is_version, _, _ = parse_wheel_filename(wheel.name)
        if (found, str(is_version)) == (canonicalize_name(name), version):
            return wheel
    return None


def build_pairbus(into: Path, *, isolated: bool = True) -> None:
    options = ["--build-constraint=constraints.txt"] if isolated else ["--no-build-isolation"]
    pip("wheel", "--no-deps", *options, f"--wheel-dir={into}", str(ROOT))


def build_proton(into: Path, version: str) -> None:
    """Compile Proton for the stable ABI, without the optional libraries that it would link to.

    pip's cache is not used: its wheel is for this Python only, and may be linked to OpenSSL.
    """
    with tempfile.TemporaryDirectory() as empty:
        environment = {**os.environ, "PKG_CONFIG_LIBDIR": empty, "PKG_CONFIG_PATH": empty}
        pip(
            "wheel",
            "--no-deps",
            "--no-cache-dir",
            f"--no-binary={PROTON}",
            "--build-constraint=constraints.txt",
            f"--config-settings=--build-option=--py-limited-api={PROTON_TAG.partition('-')[0]}",
            f"--wheel-dir={into}",
            f"{PROTON}=={version}",
            environment=environment,
        )


def fetch(into: Path, name: str, version: str) -> None:
    """Download a wheel for the cluster's Python, whichever Python runs here."""
    pip(
        "download",
        "--no-deps",
        "--only-binary=:all:",
        f"--python-version={CLUSTER_PYTHON}",
        f"--dest={into}",
        f"{name}=={version}",
    )


def why_not_portable(name: str, extensions: Mapping[str, bytes]) -> str | None:
    """Return the reason why a wheel of Proton cannot run on the cluster, or None if it can."""
    if PROTON_TAG not in name:
        return f"{name} is not tagged {PROTON_TAG}"
    for file, content in extensions.items():
        if not file.endswith(".abi3.so"):
            return f"{file} in {name} is not built against Python's stable ABI"
        if linked := [library.decode() for library in _NOT_WANTED if library in content]:
            return f"{file} in {name} needs {', '.join(linked)}, which the cluster may not have"
        versions = [(int(major), int(minor)) for major, minor in re.findall(rb"GLIBC_(\d+)\.(\d+)", content)]
        if (newest := max(versions, default=(0, 0))) > CLUSTER_GLIBC:
            return f"{file} in {name} needs glibc {newest[0]}.{newest[1]}, and the cluster has 2.{CLUSTER_GLIBC[1]}"
    return None if extensions else f"{name} has no extension"


def check_proton(wheel: Path) -> None:
    """Exit with a message unless the wheel can run on the cluster, and runs here."""
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        extensions = {name: archive.read(name) for name in archive.namelist() if name.endswith(".so")}
        if (reason := why_not_portable(wheel.name, extensions)) is not None:
            wheel.unlink()
            give_up(f"{reason}: removed; build it on a machine like the cluster's")
        archive.extractall(folder)
        code = f"import sys; sys.path.insert(0, {folder!r}); import cproton_ffi, proton; print(proton.__file__)"
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        if run.returncode != 0 or not run.stdout.startswith(folder):
            give_up(f"{wheel.name} cannot be imported: {(run.stderr or run.stdout).strip()}")


def requirements_of(wheel: Path) -> list[Requirement]:
    """Return the requirements of a wheel on the cluster, without its extras."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        header = HeaderParser().parsestr(archive.read(metadata).decode())
    needed = [Requirement(text) for text in header.get_all("Requires-Dist") or []]
    there = {"python_version": CLUSTER_PYTHON, "sys_platform": "linux", "platform_system": "Linux", "extra": ""}
    return [each for each in needed if each.marker is None or each.marker.evaluate(there)]


def missing(needed: Iterable[Requirement], brought: Mapping[str, str]) -> list[str]:
    """Return the requirements that neither the wheelhouse nor the cluster meets."""
    return [
        f"{each} ({'the cluster has ' + brought[name] if name in brought else 'the cluster has none'})"
        for each in needed
        if (name := canonicalize_name(each.name)) not in brought
        or not each.specifier.contains(brought[name], prereleases=True)
    ]


def source_digest(root: Path) -> str:
    """Return a digest of the files that pairbus's wheel is built from."""
    digest = hashlib.sha256()
    files = [root / "pyproject.toml", root / "README.md", root / "LICENSE"]
    files += sorted(file for file in (root / "src").rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    for file in files:
        digest.update(f"{file.relative_to(root)}\0{file.stat().st_size}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def fill(folder: Path) -> list[Path]:
    """Build or download missing wheels, remove all others, and return the wheels by name."""
    pins = pinned((ROOT / "constraints.txt").read_text())
    stamp, digest = folder / ".pairbus-stamp", source_digest(ROOT)
    own = next(iter(folder.glob("pairbus-*.whl")), None) if stamp.is_file() and stamp.read_text() == digest else None
    proton = find(folder, PROTON, pins[PROTON])
    fetched = {name: find(folder, name, pins[name]) for name in READY_MADE}
    with tempfile.TemporaryDirectory(dir=folder) as name:
        new = Path(name)
        if proton is None:
            say(f"compiling {PROTON} {pins[PROTON]} for Python's stable ABI (half a minute, once)")
            build_proton(new, pins[PROTON])
        for package in [package for package, wheel in fetched.items() if wheel is None]:
            say(f"fetching {package} {pins[package]}")
            fetch(new, package, pins[package])
        if own is None:
            say("building the wheel of pairbus")
            build_pairbus(new)
        kept = {wheel for wheel in (own, proton, *fetched.values()) if wheel is not None}
        for old in set(folder.glob("*.whl")) - kept:
            old.unlink()
        for wheel in new.glob("*.whl"):
            shutil.move(wheel, folder / wheel.name)
    stamp.write_text(digest)
    return sorted(folder.glob("*.whl"))


def told(wheels: Sequence[Path]) -> str:
    """Return a requirements file for these wheels, with names and versions but no host."""
    parts = [parse_wheel_filename(wheel.name) for wheel in wheels]
    return "".join(f"{name}=={version}\n" for name, version, _, _ in parts)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the wheels that a Databricks cluster lacks.")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="output folder (default: build/wheelhouse)")
    folder: Path = parser.parse_args().folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        say(f"Proton's wheel will be for this machine ({sys.platform}, {platform.machine()}); Databricks runs Linux")
    wheels = fill(folder)
    (proton,) = [wheel for wheel in wheels if wheel.name.startswith("python_qpid_proton-")]
    check_proton(proton)
    in_folder = {
        str(name): str(version) for name, version, _, _ in (parse_wheel_filename(each.name) for each in wheels)
    }
    needed = [requirement for wheel in wheels for requirement in requirements_of(wheel)]
    if lacking := missing(needed, {**CLUSTER, **in_folder}):
        give_up(f"requirements that neither the wheels nor the cluster meet: {'; '.join(lacking)}")
    (folder / "requirements.txt").write_text(told(wheels))
    say(f"{folder} has what Databricks' runtime lacks: {', '.join(wheel.name for wheel in wheels)}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        say("interrupted; run make wheelhouse again to continue")
        sys.exit(130)
