"""The Databricks bundle: Databricks' own classes accept it, it holds no secret, and its Spark is new enough.

Nothing of this ran on Databricks: what can be told offline is told here.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from databricks.bundles.jobs import DataSecurityMode, Job, JobPermission, JobRunAs

from pairbus.config.syphon_config import SyphonConfig

ROOT = Path(__file__).resolve().parents[3]
BUNDLE = ROOT / "conf" / "databricks.yml"
TEXT = BUNDLE.read_text()
GUIDE = (ROOT / "docs" / "databricks.md").read_text()
CONTENT: dict[str, Any] = yaml.safe_load(TEXT)
JOBS: dict[str, Any] = CONTENT["resources"]["jobs"]
#: Runtimes with long-term support that are new enough → the Spark in them.
LTS = {"17.3.x-scala2.13": (4, 0), "18.x-scala2.13": (4, 1)}
NEWER: dict[str, list[str]] = json.loads((ROOT / "tests" / "data" / "spark_since_4_0.json").read_text())
OUR_CODE = [*sorted((ROOT / "src" / "pairbus" / "spark").rglob("*.py")), *sorted((ROOT / "jobs").glob("*.py"))]


def texts(value: Any) -> Iterator[str]:
    """Every text in a tree of lists and mappings, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield key
            yield from texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from texts(each)


# --- the bundle --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", JOBS)
def test_databricks_own_classes_take_the_job(key: str) -> None:
    """No field is unknown, none has the wrong type."""
    assert Job.from_dict(JOBS[key]).as_dict()


def test_a_misspelt_field_would_be_found() -> None:
    """The check above has teeth: it looks into nested parts."""
    job = yaml.safe_load(TEXT)["resources"]["jobs"]["syphon_scheduled"]
    job["tasks"][0]["max_retry"] = 3
    with pytest.raises(ValueError, match="max_retry"):
        Job.from_dict(job)


def test_the_bundles_other_parts_are_ones_that_bundles_have() -> None:
    """Nothing beside jobs is checked by Databricks' classes, so it is kept to few well-known parts."""
    assert set(CONTENT) == {"bundle", "variables", "sync", "resources", "targets"}
    assert all({"description"} <= set(each) <= {"description", "default"} for each in CONTENT["variables"].values())
    assert [name for name, target in CONTENT["targets"].items() if target.get("default")] == ["dev"]
    parts = {"default", "mode", "workspace", "run_as", "permissions", "resources"}
    assert all(set(target) <= parts for target in CONTENT["targets"].values())


def test_who_is_told_of_failures_must_be_said() -> None:
    """A default would be deployed by somebody, and the failures of that job go nowhere; bundle and guide show how."""
    required = {name for name, variable in CONTENT["variables"].items() if "default" not in variable}
    assert required == {"told_of_failures", "failure_webhook"}
    commands = re.findall(r"databricks bundle (?:validate|deploy) .*", TEXT + GUIDE)
    assert len(commands) == 4
    assert all(f"--var {name}=" in command for command in commands for name in required)
    assert not re.search(r"contoso|0{8}-", TEXT)


def test_production_is_in_the_hands_of_one_identity() -> None:
    """Whoever can write to the bundle's folder decides what runs with the secrets: not every user of the workspace."""
    production = CONTENT["targets"]["prod"]
    assert production["mode"] == "production"
    assert production["workspace"]["root_path"].startswith("/Workspace/Users/${workspace.current_user.userName}/")
    principal = {"service_principal_name": "${var.service_principal}"}
    assert JobRunAs.from_dict(production["run_as"]).as_dict() == principal
    # Of a target: the CLI gives them to the folder and to each job.
    (permission,) = production["permissions"]
    assert JobPermission.from_dict(permission).as_dict() == {**principal, "level": "CAN_MANAGE"}


def test_every_variable_is_defined_and_used() -> None:
    """`${var.…}` leads somewhere, and nothing can be set that has no effect."""
    used = set(re.findall(r"\$\{var\.(\w+)\}", TEXT))
    assert used == set(CONTENT["variables"])


def test_there_is_a_continuous_and_a_scheduled_variant_and_one_of_them_runs() -> None:
    """Each is the same job but for how it is started; deploying starts one."""
    continuous, scheduled = JOBS["syphon_continuous"], JOBS["syphon_scheduled"]
    assert continuous["continuous"] == {"pause_status": "UNPAUSED"}
    assert scheduled["schedule"]["pause_status"] == "PAUSED"
    assert continuous["tasks"][0]["spark_python_task"]["parameters"][-1] == "--continuous"
    assert scheduled["tasks"][0]["spark_python_task"]["parameters"][-1] == "--once"
    for shared in ("job_clusters", "tags", "email_notifications", "webhook_notifications"):
        assert continuous[shared] == scheduled[shared]


def test_trying_the_bundle_out_starts_nothing() -> None:
    """The development target says for itself what its mode does only where nothing is said."""
    changed = CONTENT["targets"]["dev"]["resources"]["jobs"]
    assert changed == {"syphon_continuous": {"continuous": {"pause_status": "PAUSED"}}}


@pytest.mark.parametrize("key", JOBS)
def test_each_job_runs_alone_and_tells_of_failures(key: str) -> None:
    """One run at a time, mail and webhook on failure, tags to find its costs by."""
    job = Job.from_dict(JOBS[key])
    assert job.max_concurrent_runs == 1
    assert JOBS[key]["email_notifications"]["on_failure"]
    assert JOBS[key]["webhook_notifications"]["on_failure"]
    assert job.tags["product"] == "pairbus"


def test_failures_are_retried_as_each_kind_of_job_allows() -> None:
    """A continuous job is started again by Databricks and takes no retries of its own; the other one retries."""
    assert "max_retries" not in JOBS["syphon_continuous"]["tasks"][0]
    assert JOBS["syphon_scheduled"]["tasks"][0]["max_retries"] > 0


@pytest.mark.parametrize("key", JOBS)
def test_the_cluster_is_dedicated_and_its_runtime_an_lts_with_spark_4(key: str) -> None:
    """Standard mode would isolate foreachBatch and tasks; a runtime without long-term support would end too soon."""
    (cluster,) = JOBS[key]["job_clusters"]
    spec = cluster["new_cluster"]
    assert LTS[spec["spark_version"]] >= (4, 0)
    assert DataSecurityMode(spec["data_security_mode"]) is DataSecurityMode.DATA_SECURITY_MODE_DEDICATED
    assert spec["spark_conf"]["spark.speculation"] == "false"
    assert JOBS[key]["tasks"][0]["job_cluster_key"] == cluster["job_cluster_key"]


@pytest.mark.parametrize("key", JOBS)
def test_what_the_task_runs_is_there(key: str) -> None:
    """The same jobs/drain.py as for spark-submit, uploaded with the bundle, and the wheels of make wheelhouse."""
    (task,) = JOBS[key]["tasks"]
    file = (BUNDLE.parent / task["spark_python_task"]["python_file"]).resolve()
    assert file == ROOT / "jobs" / "drain.py"
    assert file.is_file()
    assert file.parent in [(BUNDLE.parent / path).resolve() for path in CONTENT["sync"]["paths"]]
    (library,) = task["libraries"]
    wheels = BUNDLE.parent / library["whl"]
    assert wheels.parent.resolve() == ROOT / "build" / "wheelhouse"
    assert wheels.name == "*.whl"


def test_the_configuration_is_uploaded_with_the_bundle() -> None:
    """The default of `config` is the example's place once the bundle's folder is in the workspace."""
    default = CONTENT["variables"]["config"]["default"]
    assert default == f"${{workspace.file_path}}/{(BUNDLE.parent / 'pairbus.toml').relative_to(ROOT)}"
    assert "." in CONTENT["sync"]["paths"]


# --- secrets -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", JOBS)
def test_environment_variables_are_references_to_secrets(key: str) -> None:
    """No value stands in the bundle, and the configuration's references are all there."""
    variables = JOBS[key]["job_clusters"][0]["new_cluster"]["spark_env_vars"]
    assert all(re.fullmatch(r"\{\{secrets/[\w.-]+/[\w.-]+\}\}", value) for value in variables.values())
    config = SyphonConfig.load(ROOT / "conf" / "pairbus.toml")
    needed = {each.connection for each in (config.primary, config.secondary, config.event_hubs) if each is not None}
    assert {f"env:{name}" for name in variables} == needed


def test_no_secret_is_literal() -> None:
    """Nothing in the bundle looks like a key, a token or a connection string, and a secret is named nowhere else."""
    assert not re.search(r"SharedAccess|Endpoint=|AccountKey|sig=|dapi[0-9a-f]{8}|password|[A-Za-z0-9+/]{40,}=", TEXT)
    for job in JOBS.values():
        spec = job["job_clusters"][0]["new_cluster"]
        elsewhere = [text for text in texts({**job, "job_clusters": {**spec, "spark_env_vars": None}}) if "{{" in text]
        assert elsewhere == []


# --- nothing newer than Spark 4.0 --------------------------------------------------------------------------------


def newer_than_4_0(source: str) -> list[str]:
    """What a module takes from pyspark that 4.0 lacks; an import that is guarded against that does not count."""
    tree = ast.parse(source)
    guarded = {
        id(each)
        for node in ast.walk(tree)
        if isinstance(node, ast.If | ast.Try) and is_guard(node)
        for part in node.body
        for each in ast.walk(part)
    }
    found: list[str] = []
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name in NEWER["modules"]]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "pyspark":
            module = node.module or ""
            found += [module] if module in NEWER["modules"] else []
            found += [f"{module}.{alias.name}" for alias in node.names if alias.name in NEWER["names"]]
            found += [f"{module}.{alias.name}" for alias in node.names if f"{module}.{alias.name}" in NEWER["modules"]]
        elif isinstance(node, ast.Attribute) and node.attr in NEWER["members"] and not is_self(node.value):
            found.append(f".{node.attr}")
    return found


def is_guard(node: ast.AST) -> bool:
    """`try: … except ImportError`, or `if TYPE_CHECKING`."""
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    caught = [handler.type for handler in node.handlers] if isinstance(node, ast.Try) else []
    return any(isinstance(kind, ast.Name) and kind.id in ("ImportError", "ModuleNotFoundError") for kind in caught)


def is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


@pytest.mark.parametrize("path", OUR_CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_our_code_uses_nothing_that_spark_4_0_lacks(path: Path) -> None:
    """17.3 LTS has Spark 4.0: what 4.1 and 4.2 added would fail there, and only there."""
    assert newer_than_4_0(path.read_text()) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import pyspark.sql.streaming.datasource", ["pyspark.sql.streaming.datasource"]),
        ("from pyspark.sql.datasource import DataSource, ReadLimit", ["pyspark.sql.datasource.ReadLimit"]),
        ("from pyspark.sql.streaming import datasource", ["pyspark.sql.streaming.datasource"]),
        (
            "from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow",
            ["pyspark.sql.streaming.datasource", "pyspark.sql.streaming.datasource.SupportsTriggerAvailableNow"],
        ),
        ("def f(df):\n    return df.zipWithIndex()", [".zipWithIndex"]),
        ("try:\n    from pyspark.sql.datasource import ReadLimit\nexcept ImportError:\n    ReadLimit = None", []),
        ("from pyspark.sql.datasource import DataSource\nfrom pyspark.sql import functions\nfunctions.col('a')", []),
    ],
)
def test_what_is_newer_is_found(source: str, found: list[str]) -> None:
    """The check above has teeth, and lets alone what 4.0 has and what is guarded."""
    assert newer_than_4_0(source) == found


def test_latest_offset_can_be_called_as_every_spark_calls_it() -> None:
    """4.0 and 4.1 call `latestOffset()`, 4.2 may call it with a start and a limit."""
    for path in OUR_CODE:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name == "latestOffset":
                names = [argument.arg for argument in node.args.args]
                assert names == ["self", "start", "limit"], path
                assert len(node.args.defaults) == 2, path
