"""The public names: each is there, none costs an import that is not needed, and errors carry facts."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pickle
import re
import subprocess
import sys

import pytest
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusError

import pairbus
from pairbus import errors

#: Two of them are made on first use, since they are errors of the SDK as well.
ERRORS = {name: getattr(errors, name) for name in errors.__all__}


def heavy(code: str) -> list[str]:
    """Return the heavy packages that some code imports in a fresh Python."""
    ask = "import json, sys; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{ask}"], capture_output=True, text=True, check=True)
    return [name for name in json.loads(done.stdout) if name in {"azure", "cproton_ffi", "proton", "pyspark", "uamqp"}]


@pytest.mark.parametrize("name", pairbus.__all__)
def test_every_public_name_is_there(name: str) -> None:
    """Each name of `__all__` is there, under that name, from a module of pairbus, and has a docstring."""
    value = getattr(pairbus, name)
    assert value.__name__ == name
    assert value.__module__.startswith("pairbus.")
    assert inspect.getdoc(value)
    assert getattr(pairbus, name) is value


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("pairbus.config", "LedgerPlaces NamespaceReference Namespaces SyphonConfig"),
        ("pairbus.cost", "forecast"),
        ("pairbus.domain.envelope", "park restore facts message_id Restored Facts EnvelopeError"),
        ("pairbus.domain.sqlfilter", "parse_filter parse_action SqlFilter SqlAction SqlSyntaxError SqlEvaluationError"),
        ("pairbus.localbus", "LocalBus LocalBusError"),
        ("pairbus.localbus.pytest_plugin", "localbus"),
        ("pairbus.spark", "syphon Syphon SyphonError BatchSummary Ledger Verification verify spark_session"),
        ("pairbus.spark", "backlog_sequence_numbers"),
        ("pairbus.spark.testing", "local_spark syphon_config"),
    ],
)
def test_a_documented_import_stays_where_it_is(module: str, names: str) -> None:
    """Names that the guides and the CHANGELOG give a path keep it, wherever their code lies."""
    found = importlib.import_module(module)
    assert [name for name in names.split() if not hasattr(found, name)] == []


def test_the_list_of_public_names_is_in_order() -> None:
    """Each once, by name, and every one of them is shown by `dir`."""
    assert sorted(set(pairbus.__all__)) == pairbus.__all__
    assert {*pairbus.__all__, "cost", "__version__"} <= set(dir(pairbus))


def test_a_star_import_gives_the_public_names() -> None:
    """All of them and nothing else."""
    names: dict[str, object] = {}
    exec("from pairbus import *", names)
    assert set(names) - {"__builtins__"} == set(pairbus.__all__)


def test_the_names_that_the_checker_sees_are_the_ones_that_are_imported() -> None:
    """`__all__`, the table of homes and the imports for type checkers tell the same names."""
    (checked,) = [node for node in ast.parse(inspect.getsource(pairbus)).body if isinstance(node, ast.If)]
    imports = [node for node in checked.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: node.module for node in imports for alias in node.names}
    assert homes == pairbus._HOMES
    assert sorted(homes) == pairbus.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    """As with any module, and an import of it fails as any other."""
    with pytest.raises(AttributeError, match="'pairbus' has no attribute 'pair_namespace'"):
        pairbus.pair_namespace  # noqa: B018
    with pytest.raises(ImportError, match="pair_namespace"):
        exec("from pairbus import pair_namespace")


@pytest.mark.parametrize(
    "code",
    [
        "import pairbus",
        "import pairbus; dir(pairbus); pairbus.__all__; pairbus.__version__",
        "import pairbus; hasattr(pairbus, 'nothing')",
        "from pairbus import State",
        "import pairbus; pairbus.cost.forecast(messages=1)",
        "from pairbus.cost import forecast",
    ],
)
def test_what_needs_no_sdk_imports_none(code: str) -> None:
    """`import pairbus` is cheap: no SDK, no Proton, no Spark, until the use of a name that needs one."""
    assert heavy(code) == []


@pytest.mark.parametrize("module", ["errors", "spark.source"])
def test_processes_of_spark_need_no_sdk(module: str) -> None:
    """Their imports delay a drain: only sending and querying depths import the SDK."""
    assert "azure" not in heavy(f"import pairbus.{module}")


def test_errors_have_no_other_names() -> None:
    """An unknown name is an attribute error, as with any module; every class made there is in the list."""
    with pytest.raises(AttributeError, match=r"'pairbus\.errors' has no attribute 'ParkingError'"):
        errors.ParkingError  # noqa: B018
    made = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, Exception) and value.__module__ == errors.__name__
    }
    assert made <= set(errors.__all__)
    assert {value.__module__ for value in ERRORS.values()} == {errors.__name__}
    assert set(errors.__all__) <= set(dir(errors))


def test_a_sender_needs_the_sdk_and_neither_proton_nor_spark() -> None:
    """A service that only sends installs the SDK and nothing else."""
    assert heavy("from pairbus import *") == ["azure"]


def test_localbus_needs_no_sdk() -> None:
    """A test suite that only uses the broker does not import the SDK."""
    assert "azure" not in heavy("import pairbus.localbus")


# --- errors ------------------------------------------------------------------------------------------------------


def tree() -> list[tuple[int, str]]:
    """The tree that the module's docstring draws: how deep, and which class."""
    drawn = re.findall(r"^ {4}((?:[│ ]   )*(?:[├└]── )?)(\w+Error)\b", errors.__doc__ or "", re.MULTILINE)
    return [(len(branch) // 4, name) for branch, name in drawn]


def test_every_error_is_drawn_in_the_modules_tree() -> None:
    """Each class once, and none that is not there."""
    names = [name for _, name in tree()]
    assert sorted(names) == sorted(ERRORS)


def test_the_tree_is_the_one_of_the_classes() -> None:
    """A class is drawn under its first base."""
    above: list[str] = []
    for depth, name in tree():
        del above[depth:]
        assert ERRORS[name].__bases__[0].__name__ == (above[-1] if above else "Exception")
        above.append(name)


def test_what_the_tree_says_in_brackets_is_so() -> None:
    """ "(also a …)" names a second base, and every second base is named."""
    lines = {re.search(r"\w+Error", line).group(): line for line in (errors.__doc__ or "").splitlines() if "──" in line}
    for name, line in lines.items():
        said = re.search(r"\(also (?:an? |the SDK's )(\w+)", line)
        others = [base.__name__ for base in ERRORS[name].__bases__[1:]]
        assert ([said.group(1)] if said else []) == others


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_every_error_is_public_and_explained(name: str) -> None:
    """It can be caught as `pairbus.<name>` and as `PairbusError`, and has a docstring of its own."""
    assert getattr(pairbus, name) is ERRORS[name]
    assert issubclass(ERRORS[name], pairbus.PairbusError)
    assert ERRORS[name].__dict__["__doc__"]


def test_errors_of_the_package_are_all_of_them() -> None:
    """No error is public that the module does not have."""
    assert {name for name in pairbus.__all__ if name.endswith("Error")} == set(ERRORS)


@pytest.mark.parametrize(
    "kind", [pairbus.PairbusError, pairbus.OptionError, pairbus.PairingError, pairbus.NotSupportedError]
)
def test_an_error_says_its_text(kind: type[Exception]) -> None:
    """The text is the text, whatever the second base makes of it."""
    assert str(kind("what happened")) == "what happened"


def test_a_provisioning_error_carries_its_reasons() -> None:
    """Queue by queue, in a copy of its own."""
    reasons = {"contoso/x-servicebus-transfer/0": "quota"}
    error = pairbus.ProvisioningError("none", reasons)
    reasons.clear()
    assert (str(error), error.reasons) == ("none", {"contoso/x-servicebus-transfer/0": "quota"})
    assert isinstance(error, pairbus.PairingError)


def test_a_closed_error_names_both_halves() -> None:
    """It is a ValueError, as the SDK's own for a closed handler."""
    error = pairbus.PairedNamespaceClosedError("closed", primary="contoso", secondary="fabrikam")
    assert (str(error), error.primary, error.secondary) == ("closed", "contoso", "fabrikam")
    assert isinstance(error, ValueError)


def test_a_not_parkable_error_carries_sizes_and_messages() -> None:
    """It is caught where the SDK's size error is; attributes that do not apply are None."""
    messages = ["a", "b"]
    error = pairbus.NotParkableError("too large", messages, size=300, limit=256, added=44)
    messages.clear()
    assert (str(error), error.messages) == ("too large", ["a", "b"])
    assert (error.size, error.limit, error.added, error.property_name) == (300, 256, 44, None)
    assert isinstance(error, MessageSizeExceededError)
    taken = pairbus.NotParkableError("taken", property_name="x-ms-path")
    assert (taken.messages, taken.size, taken.property_name) == ([], None, "x-ms-path")


def test_a_backlog_unavailable_error_carries_what_was_not_accepted() -> None:
    """The messages themselves, in their order, and why each queue refused; it is caught as the SDK's error."""
    messages, reasons = [object(), object()], {"contoso/x-servicebus-transfer/0": "quota"}
    error = pairbus.BacklogUnavailableError("none left", messages, reasons)
    kept = list(messages)
    messages.clear()
    reasons.clear()
    assert str(error) == "none left"
    assert len(error.messages) == 2
    assert all(mine is given for mine, given in zip(error.messages, kept, strict=True))
    assert error.reasons == {"contoso/x-servicebus-transfer/0": "quota"}
    assert isinstance(error, ServiceBusError)


def test_not_supported_is_not_implemented() -> None:
    """It can be caught as Python's own."""
    assert issubclass(pairbus.NotSupportedError, NotImplementedError)


@pytest.mark.parametrize(
    "error",
    [
        errors.OptionError("no"),
        errors.ProvisioningError("no", {"contoso/x-servicebus-transfer/0": "gone"}),
        errors.PairedNamespaceClosedError("closed", primary="a", secondary="b"),
        errors.NotParkableError("too large", ["m"], size=3, limit=2, added=1, property_name="x"),
        errors.BacklogUnavailableError("none left", ["m"], {"q": "full"}),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_pickling(error: errors.PairbusError) -> None:
    """A pool of processes hands errors over by pickle: class, text and facts arrive."""
    try:
        raise error
    except errors.PairbusError as raised:
        twin = pickle.loads(pickle.dumps(raised))
    assert type(twin) is type(error)
    assert str(twin) == str(error)
    for name in ("reasons", "primary", "secondary", "messages", "size", "limit", "added", "property_name"):
        assert getattr(twin, name, None) == getattr(error, name, None)
