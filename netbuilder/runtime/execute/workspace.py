"""Workspaces: named blobs, and the nets that run over them."""

from __future__ import annotations

import inspect
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from netbuilder.data.blob_values import as_tensor, is_blob_object, is_numeric
from netbuilder.data.gc_paused import collection_paused
from netbuilder.engines.arrays import trim_heap
from netbuilder.engines.engine import array_engine, release_kernels
from netbuilder.engines.gpu import gpu
from netbuilder.engines.layouts import HOST, Location
from netbuilder.graph.blob import blob_name
from netbuilder.graph.checks import check_net, require_sound
from netbuilder.graph.defuse import undefined_inputs
from netbuilder.graph.html_tables import folded, table
from netbuilder.graph.listing import shown_name
from netbuilder.graph.message import message_of
from netbuilder.graph.net import Net
from netbuilder.graph.observability import ALL
from netbuilder.graph.source import warn_user
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import (
    PROTO_CUDA,
    BlobError,
    DeviceError,
    DeviceOption,
    NetDef,
    NetError,
    OperatorDef,
    PlanDef,
    ShapeError,
)
from netbuilder.proto.call_checks import checked, is_number, is_whole
from netbuilder.proto.depth import deep_nets
from netbuilder.proto.errors import bytes_text, counted, unsaid_cause
from netbuilder.proto.suggestions import did_you_mean, suggests_arguments
from netbuilder.runtime.execute.conflicts import init_conflict, require_own_counters
from netbuilder.runtime.execute.net import Clock, RuntimeNet
from netbuilder.runtime.execute.steps import run_plan
from netbuilder.runtime.plan.optimizations import Switch
from netbuilder.runtime.plan.options import NET_OPTIONS, FindNan, PlanOptions, check_find_nan, default_threads
from netbuilder.runtime.values.arena import Arena
from netbuilder.runtime.values.blob import Blob, Generation
from netbuilder.runtime.values.placeholder import PLACEHOLDER, is_placeholder
from netbuilder.runtime.values.uses import FEED, FETCH, RUN, Uses, this_plan, this_thread, together, using

__all__ = ["Workspace"]


class _Unseeded:
    """A random seed, the process that drew it, and how many nets have drawn from each random stream."""

    def __init__(self) -> None:
        self.seed = int.from_bytes(os.urandom(4), "little")
        self.process = os.getpid()
        self.counts: dict[str, int] = defaultdict(int)


class Workspace:
    """Named blobs, and nets that read and write them.

    Args:
        engines: the library engines that operators may use ("ONEDNN"); None: all that are available, (): NumPy alone.
        threads: number of threads that a net may use; None: OMP_NUM_THREADS, or the number of cores.
        seed: of all random operators; the same seed gives the same numbers. None: 0, or the parent's.
        without: groups of optimizations that are off (see ``runtime.plan.optimizations``), unless a net is created with
            others; a list, or one string of names separated by commas.
        parent: a workspace whose blobs can be read and written here. A name stands for the parent's blob if the parent
            has one when the name is first used; other blobs, and nets, are this workspace's own. The default for
            engines, threads, seed and ``without`` is the parent's value.

    Raises:
        NetError: an argument is out of range.

    A workspace must be used by one thread at a time; different threads can use different workspaces concurrently. Two
    threads that feed, run or fetch the same blobs at the same time get a NetError that names both.

    >>> ws = Workspace()
    >>> ws.feed("x", np.float32([1.0, -2.0]))
    >>> from netbuilder.proto.arguments import make_op
    >>> ws.run_operator_once(make_op("Relu", ["x"], ["y"]))
    >>> ws.fetch("y").tolist()
    [1.0, 0.0]
    """

    @suggests_arguments
    @checked("engines", "threads", "seed", "without")
    def __init__(
        self,
        *,
        engines: tuple[str, ...] | None = None,
        threads: int | None = None,
        seed: int | None = None,
        without: str | Iterable[Switch] | None = None,
        parent: Workspace | None = None,
    ) -> None:
        if parent is not None and not isinstance(parent, Workspace):
            raise NetError(f"Workspace: parent must be a Workspace, got {parent!r}")
        if seed is not None and not hasattr(seed, "__index__"):
            raise NetError(f"Workspace: seed must be a whole number, got {seed!r}")
        given = {"engines": engines, "threads": threads, "without": without}
        base = PlanOptions(threads=default_threads(), owner="Workspace") if parent is None else parent.options
        self.options: PlanOptions = replace(base, **{name: value for name, value in given.items() if value is not None})
        """The options of the nets that are created without others, see ``PlanOptions.of_net``."""
        self._seed: int | None = seed
        self._unseeded: _Unseeded | None = None
        self.parent = parent
        # The folder that relative paths of operators start from.
        self.root_folder: str = "." if parent is None else parent.root_folder
        self.generation: Generation = Generation() if parent is None else parent.generation
        self.uses: Uses = Uses() if parent is None else parent.uses
        self._blobs: dict[str, Blob] = {}
        self.arena = Arena()
        self._nets: dict[str, RuntimeNet] = {}
        self._init_nets: dict[str, Any] = {}  # of those, the init nets of models: the Net objects

    @property
    def engines(self) -> tuple[str, ...] | None:
        """The library engines that operators may use; None: all that are available."""
        return self.options.engines

    @property
    def threads(self) -> int:
        """Number of threads that a net may use."""
        return self.options.threads

    @property
    def without(self) -> frozenset[Switch]:
        """What is switched off of the optimizations."""
        return self.options.without

    @property
    def seed(self) -> int:
        """The seed of all random operators that have none of their own; nets planned from now on use a new value."""
        if self._seed is not None:
            return self._seed
        if self.parent is not None:
            return self.parent.seed
        return 0 if self._unseeded is None else self._unseeded.seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self._seed = seed

    def draw_anew(self) -> None:
        """Draw other numbers in every run of the program and for every net, as Caffe2 does, unless there is a seed.

        A seed is one that was given when the workspace was made, or set since. ``reset`` ends this. A workspace that
        has a parent draws as its parent does.
        """
        if self.parent is None:
            self._unseeded = _Unseeded()

    def count_draws(self, streams: Collection[str]) -> int:
        """Count a net that draws from these random streams; return how many nets before it must draw other numbers."""
        if self._seed is not None:
            return 0
        if self.parent is not None:
            return self.parent.count_draws(streams)
        if self._unseeded is None or not streams:
            return 0
        if self._unseeded.process != os.getpid():  # a fork: it would draw what its parent and siblings do
            self.draw_anew()
        counts = self._unseeded.counts
        earlier = max(counts[stream] for stream in streams)
        counts.update(dict.fromkeys(streams, earlier + 1))
        return earlier

    def _repr_html_(self) -> str:
        """A table of the blobs, for notebooks."""
        rows, total = [], 0
        for name in self.blobs():
            spec = self.get(name).spec
            total += 0 if spec is None else spec.nbytes
            what = ["", "", ""] if spec is None else [spec.shape, spec.dtype, bytes_text(spec.nbytes)]
            rows.append([name, *what])
        title = f"workspace: {counted(len(rows), 'blob')}, {bytes_text(total)}; nets: {', '.join(self._nets) or 'none'}"
        return folded(title, table(["blob", "shape", "type", "size"], rows), unfolded=True)

    def __repr__(self) -> str:
        return f"Workspace({len(self._blobs)} blobs, {len(self._nets)} nets)"

    # Blobs.

    def feed(
        self, name: str, value: Any, device: DeviceOption | None = None, *, unnamed: bool = False, adopt: bool = False
    ) -> None:
        """Set a blob.

        Args:
            name: the blob; made if it does not exist.
            value: an array of any dtype (also strings), on the host or a GPU, of NumPy, CuPy or another library
                (through ``__array__``, the buffer protocol or DLPack, such as a PyTorch tensor); a number, list,
                string or bytes; or an object that operators share (a queue, a reader, a counter).
            device: where to store the array; None: where the blob is stored, or the host.
            unnamed: allow the empty name, as Caffe2 does.
            adopt: use an array on the host as it is in place of a copy, if it is read-only, contiguous and aligned to
                64 bytes. Nobody may change its memory afterwards; nets that write the blob copy it first.

        Raises:
            NetError: the name is empty, the value is None, of another type, or of a dtype that blobs cannot hold, or
                another thread uses the blob at this moment.
            TypeError: the name is not a string or BlobReference, or ``device`` is not a DeviceOption.
            DeviceError: the device does not exist.
        """
        name = blob_name(name)
        if not name and not unnamed:
            raise NetError("a blob needs a name; got an empty one")
        if value is None:
            raise NetError(f"blob {name!r}: None cannot be fed; remove the blob instead (Workspace.remove)")
        if is_numeric(value):
            pass
        elif hasattr(value, "__cuda_array_interface__"):
            value = array_engine((PROTO_CUDA, 0)).adopt(value)
            if value.dtype.kind not in "biuf":
                raise NetError(
                    f"blob {name!r}: arrays of dtype {value.dtype} cannot be fed; convert them to integers, "
                    "floating-point numbers or bool"
                )
        elif not isinstance(value, (str, bytes)) and (isinstance(value, np.ndarray) or not is_blob_object(value)):
            value = as_tensor(value, f"blob {name!r}")
        location: Location | None = None
        if device is not None:
            if not isinstance(device, DeviceOption):
                raise TypeError(f"blob {name!r}: device must be a DeviceOption, got {device!r}")
            location = HOST if device.device_type != PROTO_CUDA else (PROTO_CUDA, device.device_id)
            if location != HOST:
                gpu(device.device_id)  # raise before any state changes
        self.generation.fed.add(name)
        blob = self.make(name)
        if blob.used_by:
            with using(blob.used_by, FEED, blob):
                blob.store(value, location, adopt=adopt)
            return
        use, now = (this_thread(), this_plan(), FEED, blob), self.uses.now
        now.append(use)
        try:
            if now[0] is not use:
                self.uses.check(use)
            blob.store(value, location, adopt=adopt)
        finally:
            now.remove(use)

    def fetch(self, name: str) -> Any:
        """Return a copy of a blob's value: a NumPy array in plain order, bytes, or the object.

        Raises:
            BlobError: there is no such blob, it holds no value yet, or it is not observable in the net that makes it.
            NetError: another thread changes it at this moment.
        """
        blob = self.get(str(name))
        if blob.is_empty:
            why = blob.why_empty() if blob.hidden_by else "holds no value yet; run the net that makes it"
            raise BlobError(f"blob {str(name)!r} {why}")
        use, now = (this_thread(), this_plan(), FETCH, blob), self.uses.now
        now.append(use)
        try:
            if now[0] is not use:
                self.uses.check(use)
            return blob.fetch()
        finally:
            now.remove(use)

    def spec(self, name: str) -> TensorSpec | None:
        """Return shape and dtype of a blob; None if its value is not a tensor."""
        spec = self.get(str(name)).spec
        return spec.plain if spec is not None else None

    def has(self, name: str) -> bool:
        """Whether a blob of that name exists."""
        return self.find(str(name)) is not None

    def blobs(self) -> list[str]:
        """Return the names of all blobs, the parent's too, sorted."""
        own = list(self._blobs)
        return sorted(own) if self.parent is None else sorted({*own, *self.parent.blobs()})

    def remove(self, name: str) -> None:
        """Remove a blob.

        Raises:
            BlobError: there is no such blob, or it is the parent's.
        """
        self.get(str(name))
        if str(name) not in self._blobs:
            raise BlobError(f"blob {str(name)!r} is the parent workspace's; remove it there")
        del self._blobs[str(name)]
        self._forget_plans()

    def make(self, name: str) -> Blob:
        """Return the blob of that name; if it does not exist, make an empty one."""
        blob = self.find(name)
        if blob is None:
            if not isinstance(name, str):
                raise self._no_name(name)
            blob = self._blobs.setdefault(name, Blob(name, self.generation))
        return blob

    @checked()
    def share(self, arrays: Mapping[str, Any]) -> list[Any]:
        """Make arrays, which may overlap in memory, the values of blobs without a copy (see ``Blob.share``).

        Returns the arrays that the blobs now have.
        """
        return [
            self.make(name).share(array, HOST if isinstance(array, np.ndarray) else (PROTO_CUDA, array.device.id))
            for name, array in arrays.items()
        ]

    @checked()
    def share_blobs(self, other: Workspace, names: Iterable[str]) -> None:
        """Have blobs of another workspace in this new one, too: a value that is fed to one is the other's.

        Nets of both may read them at the same time; an error is raised for a feed in the meantime.
        """
        for name in names:
            blob = self._blobs[name] = other.get(name)
            blob.share_with(self.generation, (other.uses, self.uses))

    def find(self, name: str) -> Blob | None:
        """Return the blob of that name, None if there is none."""
        try:
            blob = self._blobs.get(name)
        except TypeError:  # it has no hash
            raise self._no_name(name) from None
        return blob if blob is not None or self.parent is None else self.parent.find(name)

    def get(self, name: str) -> Blob:
        """Return the blob of that name.

        Raises:
            BlobError: there is none; the message suggests the blobs of replicas, or blobs with similar names.
        """
        blob = self.find(name)
        if blob is None:
            if not isinstance(name, str):
                raise self._no_name(name)
            known_names = [*self._blobs, *(self.parent.blobs() if self.parent is not None else ())]
            raise BlobError(
                f"no blob {name!r} in the workspace, which has {counted(len(known_names), 'blob')}"
                f"{did_you_mean(name, known_names)}"
            )
        return blob

    @staticmethod
    def _no_name(name: Any) -> BlobError:
        return BlobError(f"the name of a blob must be a string, got {name!r}")

    def reset(self) -> None:
        """Remove all blobs and nets, and free their memory, including cached primitives that nobody else uses."""
        self._blobs.clear()
        for name in list(self._nets):
            self.delete_net(name)
        self._unseeded = None
        self.generation.number += 1
        release_kernels()
        trim_heap()

    def _forget_plans(self) -> None:
        self.generation.number += 1
        for net in self._nets.values():
            net.forget_plans()

    # Nets.

    @checked()
    def create_net(
        self,
        net: Any,
        overwrite: bool = False,
        *,
        shares_counter: bool = False,
        check: bool | Literal["warn"] = False,
        clock: Clock | None = None,
        **options: Any,
    ) -> str:
        """Take a snapshot of a net and make it ready to run; return its name.

        Args:
            net: a Net or NetDef.
            overwrite: replace a net of that name.
            shares_counter: allow an iteration counter that a created net with other parameters counts up too.
            check: check the net first (see ``netbuilder.graph.checks.check_net``), with the shapes of the blobs that
                have values: raise an error for findings, or, with "warn", give a warning for each.
            clock: of another net, for one that counts its runs together with it.
            options: by name, see ``PlanOptions`` (dtype, engines, memory_budget, observable, without, ...); None stands
                for the default: what the net stores, or the workspace's.

        Raises:
            NetError: a net of that name exists, the net is wrong, it counts the iterations of another model, or
                ``check`` found something.
            BlobError: the net has no blob of a name in ``observable`` or ``constants``.
        """
        for name in options:
            if name not in NET_OPTIONS:
                hint = did_you_mean(name, [*inspect.signature(self.create_net).parameters, *NET_OPTIONS])
                raise TypeError(f"Workspace.create_net: got an unexpected keyword argument {name!r}{hint}")
        proto = message_of(net)
        if proto.name in self._nets and not overwrite:
            raise NetError(f"net {proto.name!r} exists already; give overwrite=True to replace it, or another name")
        if not shares_counter:
            require_own_counters(proto, [made.proto for name, made in self._nets.items() if name != proto.name])
        self.check_net(proto, check)
        with collection_paused(), deep_nets():
            if options.get("observable_default") is None:
                options["observable_default"] = getattr(net, "observes", None)
            made = RuntimeNet(proto, self, self.options.of_net(proto, **options), clock=clock)
        for op in proto.op:
            for name in op.output:
                self.make(name)
        self.delete_net(proto.name)
        self._nets[proto.name] = made
        if getattr(net, "initializes", None) is not None:
            self._init_nets[proto.name] = net
        return str(proto.name)

    @checked()
    def check_net(self, net: Any, check: bool | Literal["warn"] = True) -> None:
        """Check a net for ``netbuilder.graph.checks.Rule``, with the shapes of the blobs that have values.

        Args:
            net: a Net or NetDef; nothing of it runs.
            check: True: an error for findings; "warn": a warning for each; False: nothing.

        Raises:
            NetError: there are findings, or ``check`` is none of these values.
        """
        proto = message_of(net)
        if check not in (True, False, "warn"):
            raise NetError(f"net {proto.name!r}: check must be True, False or 'warn', got {check!r}")
        blobs = {name: self.find(name) for name in proto.external_input} if check else {}
        specs = {name: blob.spec.plain for name, blob in blobs.items() if blob is not None and blob.spec is not None}
        if check is True:
            require_sound(proto, inputs=specs, available=self.blobs())
        elif check:
            for finding in check_net(proto, inputs=specs, available=self.blobs()):
                warn_user(str(finding))

    def run_net(
        self,
        name: Any,
        iterations: int = 1,
        *,
        wait: bool = True,
        time_limit: float | None = None,
        overwrite: bool = False,
        find_nan: FindNan = False,
    ) -> None:
        """Run a created net; ``net(name).cancel()`` in another thread ends the run.

        Args:
            name: its name, or the Net, NetDef or model that it was created from.
            iterations: number of runs.
            wait: wait until all GPUs have finished; if False, a later call may raise an error of a GPU. A fetch waits
                for its blob in any case.
            time_limit: seconds after which the runs end with an error, see ``RuntimeNet.run``; None: no limit.
            overwrite: run the init net of a model for evaluation even over trained parameters.
            find_nan: raise an error at the first operator whose result is NaN or infinite ("nan": only NaN), in these
                runs, which take several times as long; see ``RuntimeNet``.

        Raises:
            NotFiniteError: ``find_nan`` has found something.
            NetError: there is no such net, an operator failed, ``iterations`` is not a whole number of 0 or more,
                ``time_limit`` is not positive, an init net would overwrite what another model trains, or another
                thread uses blobs of the net at this moment.
            CancelledError: the run was cancelled, or its time limit has passed.
        """
        net = self._nets.get(name) if isinstance(name, str) else None
        if net is None:
            net = self._net(name)
        if type(iterations) is not int and not is_whole(iterations) or iterations < 0:
            raise NetError(f"net {net.name!r}: iterations must be a whole number, 0 or more, got {iterations!r}")
        if time_limit is not None and not (is_number(time_limit) and time_limit > 0):
            raise NetError(f"net {net.name!r}: time_limit must be a positive number of seconds, got {time_limit!r}")
        if find_nan is not False:
            check_find_nan(find_nan, f"net {net.name!r}")
        if self._init_nets and not overwrite and net.name in self._init_nets:
            self._refuse_overwriting(self._init_nets[net.name])
        try:
            net.run(iterations, time_limit=time_limit, find_nan=find_nan)
        except ShapeError as error:
            if names := self._placeholders(net.proto):
                raise ShapeError(
                    f"{error}; {names} hold the placeholder, one 0, of the init net of an exported predictor: feed them"
                ) from error.__cause__
            raise
        if net.gpus and wait:
            net.finish()

    def _placeholders(self, net: NetDef) -> list[str]:
        """Return the inputs of a net that have not been fed since an exported predictor's init net ran."""
        found = {name: blob for name in undefined_inputs(net.op) if (blob := self.find(name)) and not blob.is_empty}
        small = {name: blob for name, blob in found.items() if blob.spec and blob.spec.shape == PLACEHOLDER.shape}
        return [name for name, blob in small.items() if is_placeholder(blob.fetch())]

    def _net(self, name: Any) -> RuntimeNet:
        # Of a model, the net: the model's own name may equal that of another model's net. Asking a Net for what it has
        # not takes milliseconds, in which it looks for similar names.
        main: Any = None if isinstance(name, Net) else getattr(name, "net", None)
        named: Any = main if hasattr(main, "Name") else name
        text = str(named.Name()) if hasattr(named, "Name") else getattr(name, "name", None) or shown_name(str(name))
        net = self._nets.get(text)
        if net is None:
            known = ", ".join(map(repr, sorted(self._nets))) or "none"
            unique = ""
            if any(other.removeprefix(f"{text}_").isdigit() for other in self._nets):
                unique = "; names of nets are unique in a process, so that the second one of a name has a number: "
                unique += "use model.net.Name()"
            hint = unique or did_you_mean(text, self._nets)
            raise NetError(f"no net {text!r} in the workspace; create it first (created: {known}){hint}")
        return net

    @checked("find_nan")
    def run_net_once(self, net: Any, *, overwrite: bool = False, find_nan: FindNan = False) -> None:
        """Run a net without creating it in the workspace.

        Args:
            net: a Net or NetDef.
            overwrite: run the init net of a model for evaluation even over trained parameters.
            find_nan: see ``run_net``.

        Raises:
            NotFiniteError: ``find_nan`` has found something.
            NetError: the net is wrong, an operator failed, or it is the init net of a model that has no backward
                pass, and would overwrite blobs that a created net trains or, of a parallel model, any that hold a
                value.
        """
        proto = message_of(net)
        if not overwrite:
            self._refuse_overwriting(net)
        with deep_nets():
            made = RuntimeNet(proto, self, self.options.of_net(proto, observable_default=ALL, find_nan=find_nan))
        use, now = (this_thread(), this_plan(), RUN, made), self.uses.now
        now.append(use)
        try:
            self.uses.check(use)
            made.run_first()
            made.finish()
        except (NetError, DeviceError) as error:
            raise error.with_traceback(None) from unsaid_cause(error)
        finally:
            now.remove(use)
            self.generation.fed.update(blob for op in proto.op for blob in op.output)
            made.forget_plans()  # whose values are reference cycles, and would keep the buffers of blobs that change

    def _refuse_overwriting(self, net: Any) -> None:
        """Raise NetError if ``net`` is the init net of a model for evaluation and would overwrite trained blobs."""
        holding = (blob for blob in self.blobs() if not self.get(blob).is_empty)
        if message := init_conflict(net, holding, [made.proto for made in self._nets.values()]):
            raise NetError(message)

    @checked()
    def run_operator_once(self, op: OperatorDef) -> None:
        """Run one operator."""
        net = NetDef(name=op.name or op.type)
        net.op.add().CopyFrom(op)
        self.run_net_once(net)

    @checked()
    def run_operators_once(self, ops: Iterable[OperatorDef]) -> None:
        """Run operators in order."""
        for op in ops:
            self.run_operator_once(op)

    def run_plan(self, plan: Any) -> None:
        """Create the nets of a plan and run its steps."""
        with together():
            run_plan(self, message_of(plan, PlanDef))

    def delete_net(self, name: str) -> None:
        """Remove a created net and free the memory of its plans; unknown names are ignored."""
        name = shown_name(str(name))
        net = self._nets.pop(name, None)
        self._init_nets.pop(name, None)
        if net is not None:
            net.forget_plans()

    def nets(self) -> list[str]:
        """Return the names of the created nets, sorted."""
        return sorted(self._nets)

    def net(self, name: Any) -> RuntimeNet:
        """Return a created net.

        Raises:
            NetError: there is no such net.
        """
        return self._net(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.blobs())

    def __contains__(self, name: object) -> bool:
        return self.has(str(name))
