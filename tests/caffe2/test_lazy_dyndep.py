"""Libraries of operators that are named now and needed later."""

import pytest

from netbuilder.caffe2.python import core, dyndep, lazy, lazy_dyndep, workspace


@pytest.fixture
def library(tmp_path):
    path = tmp_path / "operators.so"
    path.write_bytes(b"no library")
    lazy_dyndep.RegisterOpsLibrary(str(path))
    yield str(path)
    lazy_dyndep.SetErrorHandler(None)
    lazy_dyndep.GetImportedOpsLibraries()


def fail(error):
    raise ValueError(f"handled: {error}")


@pytest.mark.parametrize(
    "trigger",
    [
        core.RefreshRegisteredOperators,
        lambda: workspace.CreateNet(core.Net("late")),
        lazy_dyndep.GetImportedOpsLibraries,
    ],
)
def test_the_error_comes_when_operators_are_needed_and_once(library, trigger):
    lazy_dyndep.SetErrorHandler(fail)
    with pytest.raises(ValueError, match=f"handled: operator library '{library}': compiled operators of Caffe2 cannot"):
        trigger()
    trigger()


def test_without_a_handler_the_log_tells(library, caplog):
    core.RefreshRegisteredOperators(trigger_lazy=False)
    assert not caplog.records
    core.RefreshRegisteredOperators()
    assert "cannot be loaded" in caplog.text


def test_a_name_of_no_file_is_ignored():
    lazy_dyndep.SetErrorHandler(fail)
    lazy_dyndep.RegisterOpsLibrary("@/caffe2/caffe2/distributed:file_store_handler_ops")
    core.RefreshRegisteredOperators()
    assert lazy_dyndep.GetImportedOpsLibraries() == dyndep.GetImportedOpsLibraries()


def test_functions_that_wait(monkeypatch):
    calls = []
    monkeypatch.setattr("netbuilder.caffe2.python.lazy._registered", [])
    lazy.RegisterLazyImport(lambda: calls.append(1))
    core.TriggerLazyImport()
    workspace.TriggerLazyImport()
    assert calls == [1, 1]
