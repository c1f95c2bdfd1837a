"""Public names of the last release still work; those that have been renamed, with a DeprecationWarning."""

import importlib
import inspect
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from netbuilder import Net, NetError, Workspace, _renamed
from netbuilder.model import ModelHelper
from netbuilder.ops.core.contexts import Deferred, Prepared
from netbuilder.ops.core.half import require_one_float_type
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.math.sum import Sum
from netbuilder.proto import NetDef
from netbuilder.runtime.plan.options import PlanOptions
from netbuilder.runtime.values.blob import EdgeContext

RECORD = Path(__file__).parent / "recorded" / "public_names.txt"

# Why a name does not work any more -> such names.
GONE = {
    "steps that only Parallelize took, which share their work in another way now": """
        netbuilder.parallel.accumulate_rows.Kept
        netbuilder.parallel.accumulate_rows.add_rows
        netbuilder.parallel.accumulate_rows.keeps_rows
        netbuilder.parallel.accumulate_rows.sparse_gradients
        netbuilder.parallel.accumulate_rows.take_rows
        netbuilder.parallel.replicate.check_losses(losses,scope,builder)
        netbuilder.parallel.shares.deal
        netbuilder.parallel.shares.dealt
    """,
    "recognized gradients and shared blobs by how their names look; the record of the replicas says which they are": """
        netbuilder.passes.reductions.NEAR_COPY
        netbuilder.passes.share_memory.shares_memory
    """,
    "of other types, as the CHANGELOG says": """
        netbuilder.passes.share_memory.LiveBlob
        netbuilder.passes.share_memory.share_memory(net,may_share,keep,sizes,prefix,pools)
        netbuilder.passes.share_memory.shared_names(blobs,prefix,pools)
    """,
    "steps of building gradients, given by position": """
        netbuilder.graph.backward.BackwardPass.found
        netbuilder.graph.backward.BackwardPass.made
        netbuilder.graph.gradient_shares.add_up(blob,shares,base_if_free,debug_info)
    """,
    "steps of plans and profiles, which take objects that only these have": """
        netbuilder.runtime.profile_memory.memory_of(net,recorder,parameters)
        netbuilder.runtime.turns.bind_turning
    """,
    "used by the compatibility layer alone": """
        netbuilder.graph.lenient.warn_ignored(taker,name,text)
        netbuilder.graph.net_records.NetRecords
        netbuilder.model.rnn.params
        netbuilder.passes.operator_order.reordered
        netbuilder.passes.pools.least_memory(blobs,given)
    """,
    "set by the cells of the library": """
        netbuilder.model.rnn.lstm.LSTMCell.normalises_gates
        netbuilder.model.rnn.lstm.LayerNormLSTMCell.normalises_gates
        netbuilder.model.rnn.milstm.LayerNormMILSTMCell.normalises_gates
    """,
    "used by one module alone, and part of it now": """
        netbuilder.model.arg_scope.scope_arguments
        netbuilder.zoo.resnet.add_stem
    """,
    "replaced by PlanContext.compile_segment": "netbuilder.ops.contexts.PlanContext.held_kernel",
    "a class for type checkers, without members; the classes of contexts have the old name": """
        netbuilder.ops.contexts.PlanContext.does
    """,
}


def recorded() -> Iterator[tuple[str, list[str]]]:
    """Yield each module of the release with its names, as tests/public_names.py describes them."""
    for block in RECORD.read_text().rstrip("\n").replace("\n ", "\t").split("\n"):
        module, *names = block.split("\t")
        yield module, names


def accepts(function, parameters: str) -> bool:
    try:
        known = set(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # some functions in C have none
        return True
    return known | old_arguments(function) >= set(filter(None, parameters.split(",")))


def old_arguments(function) -> set[str]:
    return set(getattr(function, "renamed_arguments", ()))


def declared(cls: type) -> set[str]:
    """Fields of a class and its bases, and the names that their methods use, so those they assign to ``self``."""
    names = old_arguments(cls.__init__)
    for base in cls.__mro__:
        names.update(vars(base).get("__annotations__", ()))
        for function in filter(inspect.isfunction, vars(base).values()):
            names.update(inspect.unwrap(function).__code__.co_names)
    return names


def missing(module: str, description: str) -> Iterator[str]:
    described, *members = description.split(" ")
    name, call, parameters = described.rstrip(")").partition("(")
    try:
        value = getattr(importlib.import_module(module), name)
    except AttributeError:
        yield f"{module}.{name}"
        return
    if call and not accepts(value, parameters):
        yield f"{module}.{described}"
    for member in members:
        name_of_member, call, parameters = member.rstrip(")").partition("(")
        try:
            found = inspect.getattr_static(value, name_of_member)
        except AttributeError:
            if name_of_member not in declared(value):
                yield f"{module}.{name}.{name_of_member}"
        else:
            function = getattr(found, "__func__", found)
            if call and inspect.isfunction(function) and not accepts(function, parameters):
                yield f"{module}.{name}.{member}"


def test_names_of_the_last_release():
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for module, names in recorded():
            try:
                importlib.import_module(module)
            except ModuleNotFoundError:
                found.append(module)
            else:
                found += [text for name in names for text in missing(module, name)]
    assert sorted(found) == sorted(name for names in GONE.values() for name in names.split())


class Renamed:
    old = _renamed.RenamedMember("present")

    def present(self):
        return 3


def test_renamed_member():
    with pytest.warns(
        DeprecationWarning, match=r"^Renamed.old is present now; the old name will be removed in the next"
    ):
        assert Renamed().old() == 3
    with pytest.warns(DeprecationWarning, match="Renamed.old is present now"):
        assert Renamed.old is Renamed.present


def test_renamed_arguments():
    @_renamed.renamed_arguments(old="present", gone=None)
    def function(*, present=0):
        return present

    assert function(present=2) == 2
    with pytest.warns(DeprecationWarning, match=r"^function\(old=...\) is present now; the old name will be removed"):
        assert function(old=5) == 5
    with pytest.warns(DeprecationWarning, match=r"^function\(gone=...\) has no effect any more; the argument will be"):
        assert function(gone=5) == 0
    with pytest.warns(DeprecationWarning), pytest.raises(TypeError, match="both 'old' and 'present'"):
        function(old=5, present=2)


def test_prepared():
    recipe = Deferred(lambda: None, ())
    with pytest.warns(DeprecationWarning, match=r"Prepared\(later=...\) is deferred now"):
        kernel = Prepared([], [], lambda inputs, outputs, scratch: None, later={0: recipe})
    assert kernel.deferred == {0: recipe}
    with pytest.warns(DeprecationWarning, match="Prepared.later is deferred now"):
        assert kernel.later is kernel.deferred
    assert not kernel.capturable
    with pytest.warns(DeprecationWarning, match=r"Deferred\(kept=...\) is saved now"):
        recipe = Deferred(lambda: None, (), kept={})
    with pytest.warns(DeprecationWarning, match="Deferred.kept is saved now"):
        assert recipe.kept is recipe.saved


def test_options_and_contexts():
    options = PlanOptions(engines=(), without=frozenset({"reuse"}))
    with pytest.warns(DeprecationWarning, match="PlanOptions.does is enabled now"):
        assert not options.does("reuse")
    with pytest.warns(DeprecationWarning, match="PlanOptions.allows is uses_engine now"):
        assert not options.allows("ONEDNN")
    with pytest.warns(DeprecationWarning, match="EdgeContext.does is enabled now"):
        assert EdgeContext().does("reuse")
    workspace = Workspace()
    net = workspace.net(workspace.create_net(Net("empty")))
    with pytest.warns(DeprecationWarning, match="RuntimeNet.setting is options now"):
        assert net.setting is net.options


def test_types_of_inputs():
    half, single = (TensorSpec((3,), np.dtype(t)) for t in ("float16", "float32"))
    with pytest.warns(DeprecationWarning, match=r"require_one_float_type\(single_beside_half=...\) is mixed_half now"):
        require_one_float_type(Sum(), single_beside_half=True, X=half, scale=single)


def test_functions_of_nets_and_models():
    with pytest.warns(DeprecationWarning, match="netbuilder.graph.net.seed_operators is no longer public"):
        from netbuilder.graph.net import seed_operators
    net = NetDef()
    for blob in "ab":
        net.op.add(type="UniformFill", output=[blob])
    seed_operators(net, 7)
    assert [op.device_option.random_seed for op in net.op] == [7, 8]

    with pytest.warns(DeprecationWarning, match="is no longer public"):
        from netbuilder.model.model_helper import complete_net, split_complete_net
    model = ModelHelper("two_nets")
    model.param_init_net.ConstantFill([], "w", shape=[1])
    model.net.Relu("w", "y")
    init_net, main_net = split_complete_net(complete_net("both", model.param_init_net, model.net))
    assert [op.type for op in init_net.Proto().op] == ["ConstantFill"]
    assert [op.type for op in main_net.Proto().op] == ["Relu"]
    with pytest.warns(DeprecationWarning, match=r"Clone\(keep_schema=...\) has no effect"):
        net = Net("net").Clone("copy", keep_schema=True)
    with pytest.raises(NetError, match="sequence_seed or seed_on_op_def"):
        net.set_rand_seed(3, sequence_seed=True, seed_on_op_def=True)
