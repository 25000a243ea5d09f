"""make wheelhouse: what goes into it, that it is enough, and that pairbus' own wheel is whole. Nothing is compiled."""

from __future__ import annotations

import ast
import re
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.from_file import module_from

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "src" / "pairbus"
PROTON_WHEEL = "python_qpid_proton-0.40.0-cp39-abi3-linux_x86_64.whl"
#: What a module's first names lead to: a package of the runtime or of the wheelhouse.
PACKAGES = {
    "azure.core": "azure-core",
    "azure.identity": "azure-identity",
    "azure.servicebus": "azure-servicebus",
    "cproton": "python-qpid-proton",
    "cproton_ffi": "python-qpid-proton",
    "isodate": "isodate",
    "pandas": "pandas",
    "proton": "python-qpid-proton",
    "pyarrow": "pyarrow",
}
#: Databricks' own, and what only older Pythons need.
BUILT_IN = {"delta", "py4j", "pyspark", "tomli"}


@pytest.fixture
def tool() -> ModuleType:
    return module_from("tools/wheelhouse.py")


def make_wheel(path: Path, *requires: str) -> Path:
    name, version = path.name.split("-")[:2]
    with zipfile.ZipFile(path, "w") as archive:
        lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {each}" for each in requires)]
        archive.writestr(f"{name}-{version}.dist-info/METADATA", "\n".join(lines) + "\n\nA text: with a colon\n")
    return path


# --- Proton ------------------------------------------------------------------------------------------------------


def test_a_portable_wheel_of_proton(tool: ModuleType) -> None:
    """Tagged for the stable ABI, built against it, and linked to the C library only."""
    assert tool.why_not_portable(PROTON_WHEEL, {"cproton_ffi.abi3.so": b"\0libc.so.6\0GLIBC_2.34\0"}) is None


@pytest.mark.parametrize(
    ("name", "file", "content", "said"),
    [
        (PROTON_WHEEL.replace("cp39-abi3", "cp311-cp311"), "cproton_ffi.abi3.so", b"", "not tagged cp39-abi3"),
        (PROTON_WHEEL, "cproton_ffi.cpython-311-x86_64-linux-gnu.so", b"", "not built against Python's stable ABI"),
        (PROTON_WHEEL, "cproton_ffi.abi3.so", b"\0libssl.so.3\0libcrypto.so.3\0", "needs libssl.so, libcrypto.so"),
        (PROTON_WHEEL, "cproton_ffi.abi3.so", b"\0GLIBC_2.4\0GLIBC_2.41\0", "needs glibc 2.41"),
    ],
)
def test_a_wheel_of_proton_that_would_fail_on_the_cluster(
    tool: ModuleType, name: str, file: str, content: bytes, said: str
) -> None:
    """It is told here and not by an ImportError in a task: another Python's, OpenSSL's, or a newer C library's."""
    assert said in tool.why_not_portable(name, {file: content})


def test_a_wheel_of_proton_without_its_extension_is_none(tool: ModuleType) -> None:
    """A build that left the C part out is found."""
    assert "has no extension" in tool.why_not_portable(PROTON_WHEEL, {})


def test_a_wheel_that_does_not_fit_is_removed(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that the next run builds it again instead of trusting its name."""
    wheel = make_wheel(tmp_path / PROTON_WHEEL)
    with pytest.raises(SystemExit):
        tool.check_proton(wheel)
    assert not wheel.exists()
    assert "has no extension: removed" in capsys.readouterr().err


# --- enough ------------------------------------------------------------------------------------------------------


def test_what_wheels_need_is_told_without_extras_and_other_pythons(tool: ModuleType, tmp_path: Path) -> None:
    """Only what the cluster's Python would ask for."""
    wheel = make_wheel(
        tmp_path / "thing-1.0-py3-none-any.whl",
        "azure-core>=1.28.0",
        "pyspark==4.2.0; extra == 'spark'",
        "tomli; python_version < '3.11'",
        "pywin32; sys_platform == 'win32'",
    )
    assert [str(each) for each in tool.requirements_of(wheel)] == ["azure-core>=1.28.0"]


def test_what_is_missing_is_told_with_what_the_cluster_has(tool: ModuleType) -> None:
    """A package the runtime lacks, and one it has too old."""
    needed = [Requirement(text) for text in ("Azure_Core>=1.28", "isodate>=0.7", "lark")]
    brought = {"azure-core": "1.34.0", "isodate": "0.6.1"}
    assert tool.missing(needed, brought) == ["isodate>=0.7 (the cluster has 0.6.1)", "lark (the cluster has none)"]


def imports(path: Path) -> set[str]:
    """Absolute names of everything that a module imports and that is not for type checkers only."""
    package = ["pairbus", *path.relative_to(SOURCE).parts[:-1]]
    tree = ast.parse(path.read_text())
    unused = {
        id(each)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for each in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in unused:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def reached() -> set[str]:
    """What the syphon, on Spark or not, imports from outside, by way of every module of pairbus that it uses."""
    waiting = [SOURCE / "config.py", *(SOURCE / "syphon").rglob("*.py"), *(SOURCE / "spark").rglob("*.py")]
    seen: set[Path] = set()
    outside: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        for name in imports(path):
            first, *rest = name.split(".")
            if first != "pairbus":
                outside.add(name)
                continue
            for depth in range(len(rest) + 1):
                below = SOURCE.joinpath(*rest[:depth])
                waiting += [below / "__init__.py", below.with_suffix(".py")]
    return outside


def test_all_that_the_syphon_imports_is_on_the_cluster(tool: ModuleType) -> None:
    """It is Python's, Databricks', the runtime's or the wheelhouse's: no lark, and no SDK of event hubs."""
    brought = {*tool.CLUSTER, *tool.READY_MADE, tool.PROTON}
    for name in sorted(reached()):
        first = name.partition(".")[0]
        if first in sys.stdlib_module_names or first in BUILT_IN:
            continue
        package = PACKAGES.get(first) or PACKAGES.get(".".join(name.split(".")[:2]))
        assert package in brought, f"{name} is neither in the wheelhouse nor known to be in the runtime"


def test_the_runtime_satisfies_the_spark_extra(tool: ModuleType) -> None:
    """What the extra asks for beyond Spark itself and the wheelhouse is there in a fitting version."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    extra = [*extras["spark"], *extras["syphon"]]  # the one takes the other along
    assert "pairbus[syphon]" in extra
    pins = tool.pinned((ROOT / "constraints.txt").read_text())
    brought = {**tool.CLUSTER, tool.PROTON: pins[tool.PROTON]}
    needed = [Requirement(text) for text in extra]
    asked = [each for each in needed if each.name not in ("pairbus", "pyspark", "delta-spark", "tomli")]
    assert asked
    assert tool.missing(asked, brought) == []


def test_what_the_wheelhouse_takes_is_pinned(tool: ModuleType) -> None:
    """Two clusters set up on different days have the same wheels."""
    pins = tool.pinned("# a comment\n\nazure-core==1.41.0\ntomli==2.5.0; python_version < '3.11'\n")
    assert pins == {"azure-core": "1.41.0", "tomli": "2.5.0"}
    assert {tool.PROTON, *tool.READY_MADE} <= set(tool.pinned((ROOT / "constraints.txt").read_text()))


def test_the_wheelhouse_is_for_the_runtime_of_the_bundle(tool: ModuleType) -> None:
    """The table of what the cluster has is 17.3 LTS's; another runtime in the bundle needs another look at it."""
    bundle = yaml.safe_load((ROOT / "conf" / "databricks.yml").read_text())
    (version,) = {
        cluster["new_cluster"]["spark_version"]
        for job in bundle["resources"]["jobs"].values()
        for cluster in job["job_clusters"]
    }
    assert (version, tool.CLUSTER_PYTHON) == ("17.3.x-scala2.13", "3.12")


# --- the folder --------------------------------------------------------------------------------------------------


def test_wheels_are_found_by_name_and_version(tool: ModuleType, tmp_path: Path) -> None:
    """Another version, or a package whose name only begins alike, is not taken for it."""
    for name in (
        PROTON_WHEEL,
        "azure_servicebus-7.14.0-py3-none-any.whl",
        "azure_servicebus_more-7.15.0-py3-none-any.whl",
    ):
        make_wheel(tmp_path / name)
    assert tool.find(tmp_path, "python-qpid-proton", "0.40.0") == tmp_path / PROTON_WHEEL
    assert tool.find(tmp_path, "azure-servicebus", "7.15.0") is None


def test_only_what_is_not_right_is_made_again(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run makes nothing; a changed source makes pairbus' wheel anew, and old versions leave."""
    made: list[str] = []

    def make(into: Path, name: str, version: str, tag: str = "py3-none-any") -> None:
        made.append(name)
        make_wheel(into / f"{name.replace('-', '_')}-{version}-{tag}.whl")

    monkeypatch.setattr(tool, "build_pairbus", lambda into: make(into, "pairbus", "0.1.0"))
    monkeypatch.setattr(
        tool, "build_proton", lambda into, version: make(into, tool.PROTON, version, "cp39-abi3-linux_x86_64")
    )
    monkeypatch.setattr(tool, "fetch", make)
    digest = ["as it was"]
    monkeypatch.setattr(tool, "source_digest", lambda root: digest[0])
    make_wheel(tmp_path / "azure_servicebus-7.0.0-py3-none-any.whl")

    wheels = tool.fill(tmp_path)
    assert made == [tool.PROTON, "azure-servicebus", "pairbus"]
    assert [canonicalize_name(wheel.name.partition("-")[0]) for wheel in wheels] == sorted(made)
    assert tool.fill(tmp_path) == wheels
    assert len(made) == 3
    digest[0] = "changed"
    assert tool.fill(tmp_path) == wheels
    assert made[3:] == ["pairbus"]


def test_a_changed_source_is_noticed(tool: ModuleType, tmp_path: Path) -> None:
    """Any file of the package counts, byte code does not."""
    (tmp_path / "src" / "pairbus" / "__pycache__").mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE", "src/pairbus/a.py"):
        (tmp_path / name).write_text("as it was")
    before = tool.source_digest(tmp_path)
    (tmp_path / "src" / "pairbus" / "__pycache__" / "a.pyc").write_text("new")
    assert tool.source_digest(tmp_path) == before
    (tmp_path / "src" / "pairbus" / "a.py").write_text("changed")
    assert tool.source_digest(tmp_path) != before


def test_the_requirements_file_names_no_host(tool: ModuleType, tmp_path: Path) -> None:
    """Names and exact versions, so that any index, or `--no-index --find-links`, will do."""
    wheels = [tmp_path / "azure_servicebus-7.15.0-py3-none-any.whl", tmp_path / PROTON_WHEEL]
    assert tool.told(wheels) == "azure-servicebus==7.15.0\npython-qpid-proton==0.40.0\n"


def test_pairbus_wheel_is_whole(tool: ModuleType, tmp_path: Path) -> None:
    """Every module is in it, the grammar and the marker for type checkers too, and nothing that is not the package."""
    tool.build_pairbus(tmp_path, isolated=False)
    (wheel,) = tmp_path.glob("*.whl")
    assert re.fullmatch(r"pairbus-[\d.]+-py3-none-any\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        assert archive.getinfo("pairbus/spark/quick-python").external_attr >> 16 & 0o111  # Spark starts it
    expected = {
        str(file.relative_to(ROOT / "src"))
        for file in SOURCE.rglob("*")
        if file.is_file() and (file.suffix in (".py", ".lark", ".typed") or file.name == "quick-python")
    }
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert {str(each) for each in tool.requirements_of(wheel)} == {"azure-core>=1.30", "azure-servicebus<7.16,>=7.15"}
