"""Old names of modules, functions, members and arguments, which work with a DeprecationWarning for one version."""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

__all__ = ["RenamedMember", "install", "moved_names", "renamed_arguments"]

T = TypeVar("T", bound=Callable[..., Any])

# Packages whose modules have moved into subpackages.
_FOLDERS = ("netbuilder.ops", "netbuilder.runtime")

# Old name -> new name, of modules and of packages with all their modules.
RENAMED = {
    "netbuilder.passes.blob_devices": "netbuilder.graph.blob_devices",
    "netbuilder.ops.absent": "netbuilder.ops.core.unsupported",
    "netbuilder.ops.rows": "netbuilder.ops.core.indexing",
    "netbuilder.ops.grouped_places": "netbuilder.ops.core.segmented_search",
    "netbuilder.ops.bounds": "netbuilder.ops.math.rounding",
    "netbuilder.ops.bounded_activations": "netbuilder.ops.activations.piecewise_activations",
    "netbuilder.ops.assigned": "netbuilder.ops.arrange.assign",
    "netbuilder.ops.like_another": "netbuilder.ops.arrange.sample_as",
    "netbuilder.ops.fixed_axes": "netbuilder.ops.windows.conv_pool_nd",
    "netbuilder.ops.planar": "netbuilder.ops.images.normalize_planar_yuv",
    "netbuilder.ops.criteria": "netbuilder.ops.losses.margin_losses",
    "netbuilder.ops.measures": "netbuilder.ops.losses.metrics",
    "netbuilder.ops.picked_segments": "netbuilder.ops.segments.sparse_segments",
    "netbuilder.ops.recurrent_backward": "netbuilder.ops.recurrent.backward",
    "netbuilder.ops.recurrent_derived": "netbuilder.ops.recurrent.derived",
    "netbuilder.ops.recurrent_forward": "netbuilder.ops.recurrent.forward",
    "netbuilder.ops.recurrent_internal": "netbuilder.ops.recurrent.internal",
    "netbuilder.ops.recurrent_kernels": "netbuilder.ops.recurrent.loop",
    "netbuilder.ops.recurrent_links": "netbuilder.ops.recurrent.links",
    "netbuilder.ops.recurrent_one_by_one": "netbuilder.ops.recurrent.one_by_one",
    "netbuilder.ops.recurrent_prepared": "netbuilder.ops.recurrent.network",
    "netbuilder.ops.recurrent_products": "netbuilder.ops.recurrent.products",
    "netbuilder.ops.recurrent_projections": "netbuilder.ops.recurrent.projections",
    "netbuilder.ops.recurrent_steps": "netbuilder.ops.recurrent.steps",
    "netbuilder.ops.recurrent_table": "netbuilder.ops.recurrent.table",
    "netbuilder.ops.recurrent_units": "netbuilder.ops.recurrent.units",
    "netbuilder.ops.recurrent_units_bound": "netbuilder.ops.recurrent.units_bound",
    "netbuilder.ops.recurrent_versions": "netbuilder.ops.recurrent.versions",
    "netbuilder.runtime.turns": "netbuilder.runtime.values.buffer_ring",
    "netbuilder.runtime.static_run": "netbuilder.runtime.plan.static_segment",
    "netbuilder.runtime.setting": "netbuilder.runtime.plan.options",
    "netbuilder.runtime.optimisations": "netbuilder.runtime.plan.optimizations",
    "netbuilder.runtime.fuse_updates": "netbuilder.runtime.plan.update_fusion",
    "netbuilder.runtime.update_kernel": "netbuilder.runtime.plan.fused_update",
    "netbuilder.runtime.reuse": "netbuilder.runtime.plan.memory_plan",
    "netbuilder.runtime.demand": "netbuilder.runtime.plan.dead_outputs",
    "netbuilder.runtime.plain": "netbuilder.runtime.plan.plain_kernels",
    "netbuilder.runtime.beside": "netbuilder.runtime.execute.threads",
    "netbuilder.runtime.records": "netbuilder.caffe2.record_values",
    "netbuilder.runtime.execute.record_values": "netbuilder.caffe2.record_values",
    "netbuilder.jobs": "netbuilder.caffe2.jobs",
    "netbuilder.graph.lenient": "netbuilder.caffe2.lenient",
    "netbuilder.graph.net_records": "netbuilder.caffe2.net_records",
    "netbuilder.graph.records": "netbuilder.caffe2.records",
    "netbuilder.runtime.call_profile": "netbuilder.runtime.profile.call",
    "netbuilder.runtime.profile_record": "netbuilder.runtime.profile.record",
    "netbuilder.runtime.profile_table": "netbuilder.runtime.profile.table",
    "netbuilder.runtime.profile_trace": "netbuilder.runtime.profile.trace",
    "netbuilder.runtime.profile_memory": "netbuilder.runtime.profile.memory",
    "netbuilder.runtime.limits": "netbuilder.runtime.profile.roofline",
    "netbuilder.ops.engines.onednn.later": "netbuilder.ops.engines.onednn.deferred_gradients",
    "netbuilder.ops.engines.onednn.places": "netbuilder.ops.engines.onednn.arguments",
    "netbuilder.ops.engines.onednn.choices": "netbuilder.ops.engines.onednn.autotune",
    "netbuilder.caffe2.taken_over": "netbuilder.caffe2.reexports",
    "netbuilder.caffe2.standin": "netbuilder.caffe2.import_alias",
    "netbuilder.caffe2.children": "netbuilder.caffe2.subprocess_hook",
    "netbuilder.caffe2.reasons": "netbuilder.caffe2.missing_names",
    "netbuilder.caffe2.absent": "netbuilder.caffe2.missing",
    "netbuilder.passes.operator_order": "netbuilder.caffe2.operator_order",
    "netbuilder.passes.pools": "netbuilder.caffe2.assignments",
    "netbuilder.passes.tensor_cores": "netbuilder.caffe2.tensor_cores",
    "netbuilder.passes.tensor_train": "netbuilder.caffe2.tensor_train",
    "netbuilder.optimizers.gradient_clipping": "netbuilder.optimizers.build",
    "netbuilder.optimizers.weight_decay": "netbuilder.optimizers.build",
    "netbuilder.parallel.caffe2_view": "netbuilder.parallel.caffe2_attributes",
    "netbuilder.parallel.shared_model": "netbuilder.parallel.build",
    "netbuilder.parallel.synchronise": "netbuilder.parallel.synchronize",
    "netbuilder.zoo.dense": "netbuilder.zoo.layers",
    "netbuilder.zoo.head": "netbuilder.zoo.layers",
    "netbuilder.zoo.normalised": "netbuilder.zoo.layers",
    "netbuilder.zoo.normalized": "netbuilder.zoo.layers",
    "netbuilder.passes.devices": "netbuilder.graph.devices",
    "netbuilder.model.complete_net": "netbuilder.model.model_helper",
    "netbuilder.model.hierarchy": "netbuilder.ops.losses.hierarchical_softmax",
    "netbuilder.model.undo": "netbuilder.model.rollback",
    "netbuilder.parallel.snapshot": "netbuilder.model.rollback",
    "netbuilder.graph.seeding": "netbuilder.graph.net",
    "netbuilder.model.arg_scope": "netbuilder.model.brew",
    "netbuilder.runtime.step_blobs": "netbuilder.caffe2.step_blobs",
    "netbuilder.graph.constant": "netbuilder.graph.operators",
    "netbuilder.data.image_color": "netbuilder.data.image_transform",
    "netbuilder.graph.unknown": "netbuilder.graph.suggestions",
    "netbuilder.graph.managed": "netbuilder.graph.context_stack",
    "netbuilder.graph.collection": "netbuilder.data.gc_paused",
    "netbuilder.graph.gc_paused": "netbuilder.data.gc_paused",
    "netbuilder.model.seq2seq.traced": "netbuilder.model.seq2seq.backtrace",
    "netbuilder.model.rnn.sized": "netbuilder.model.rnn.projected_cell",
    "netbuilder.tools.training.watch": "netbuilder.tools.training.sanity_warnings",
    "netbuilder.tools.training.limit": "netbuilder.tools.training.step_timeout",
    "netbuilder.tools.training.phases": "netbuilder.tools.training.step_timing",
    "netbuilder.tools.bench.sides": "netbuilder.tools.bench.processes",
}


def install() -> None:
    """Install the finders of old module names."""
    # First, so that modules of a renamed package are not imported a second time through the package's path.
    sys.meta_path.insert(0, _OldNames(_renamed))
    sys.meta_path.append(_OldNames(_in_a_folder))  # last, for names that no other finder knows


class _OldNames:
    """Finds modules by old names. The import machinery is imported on first use, because that takes 25 ms."""

    def __init__(self, present_name: Callable[[str], str | None]) -> None:
        self._present_name = present_name

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        present = self._present_name(fullname)
        if present is None:
            return None
        from netbuilder._modules import AliasFinder

        warnings.warn(
            f"the module {fullname} is {present} now; the old name will be removed in the next version",
            DeprecationWarning,
            stacklevel=2,
        )
        return AliasFinder(lambda name: present).find_spec(fullname)


def moved_names(old: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module with names that have been moved or renamed.

    Args:
        old: name of the module.
        homes: old name -> module that has it now, "module:name" if it has a new name, ":name" in the same module.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {old!r} has no attribute {name!r}")
        module, _, present = homes[name].partition(":")
        module, present = module or old, present or name
        what = "is no longer public; it" if present.startswith("_") else f"is {module}.{present} now; the old name"
        warnings.warn(f"{old}.{name} {what} will be removed in the next version", DeprecationWarning, stacklevel=2)
        return getattr(importlib.import_module(module), present)

    return find


class RenamedMember:
    """An old name of an attribute or a method: ``old = RenamedMember("present")`` in the class.

    Reading it warns and returns the present member.
    """

    def __init__(self, present: str) -> None:
        self._present = present
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        _warn_of_member(f"{owner.__name__}.{self._name}", self._present)
        return getattr(owner if instance is None else instance, self._present)


def renamed_arguments(**present: str | None) -> Callable[[T], T]:
    """Return a decorator that lets a function, or the constructor of a class, take arguments by their old names.

    Args:
        present: old name -> present name; None: the argument is ignored.
    """

    def decorate(target: T) -> T:
        either: Any = target
        function = either.__init__ if isinstance(target, type) else either

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for old in [name for name in present if name in kwargs]:
                _warn_of_member(f"{either.__name__}({old}=...)", present[old])
                value, name = kwargs.pop(old), present[old]
                if name in kwargs:
                    raise TypeError(f"{either.__name__} got both {old!r} and {name!r}, its present name")
                if name is not None:
                    kwargs[name] = value
            return function(*args, **kwargs)

        result: Any = call
        result.renamed_arguments = present
        if isinstance(target, type):
            either.__init__ = result
            return target
        return result

    return decorate


def _warn_of_member(old: str, present: str | None) -> None:
    what = f"is {present} now; the old name" if present else "has no effect any more; the argument"
    warnings.warn(f"{old} {what} will be removed in the next version", DeprecationWarning, stacklevel=3)


def _renamed(name: str) -> str | None:
    """Return the new name of a module in ``RENAMED``, or in a package that is in ``RENAMED``."""
    if not name.startswith("netbuilder."):
        return None
    package, _, module = name.rpartition(".")
    return RENAMED.get(name) or (f"{RENAMED[package]}.{module}" if package in RENAMED else None)


def _in_a_folder(name: str) -> str | None:
    """Return the new name of a module that has moved into a subpackage of its package."""
    package, _, module = name.rpartition(".")
    if package not in _FOLDERS:
        return None
    import pkgutil
    from importlib.util import find_spec

    for folder in pkgutil.iter_modules(importlib.import_module(package).__path__):
        present = f"{package}.{folder.name}.{module}"
        if folder.ispkg and find_spec(present) is not None:
            return present
    return None
