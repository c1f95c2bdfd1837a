"""Predictor: a net with its parameters, fed by name and run."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from netbuilder.data.blob_values import as_tensor, is_numeric
from netbuilder.data.gc_paused import collection_paused
from netbuilder.engines.gpu import gpu
from netbuilder.exchange.classification import Classifier, Prediction
from netbuilder.exchange.fills import fill_values
from netbuilder.exchange.image_preparation import class_names, image_preparation
from netbuilder.exchange.net_pool import NetPool, check_threads
from netbuilder.exchange.predictor_names import find_inputs, find_outputs
from netbuilder.exchange.trust import check_fills, check_harmless
from netbuilder.graph.blob_devices import place_operators
from netbuilder.graph.html_tables import folded, net_html, table
from netbuilder.graph.observability import ALL, OUTPUTS, stored
from netbuilder.graph.shapes import infer_shapes
from netbuilder.graph.versions import reads_of
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.passes.constant_operators import constant_part
from netbuilder.passes.fold_batch_norm import fold_batch_norm, training_batch_norms
from netbuilder.passes.join_parts import join_parts
from netbuilder.proto import (
    PROTO_CUDA,
    ArgumentError,
    BlobError,
    DeviceError,
    DeviceOption,
    NetDef,
    NetError,
    OperatorDef,
    OperatorError,
    ShapeError,
    files,
)
from netbuilder.proto.arguments import make_op
from netbuilder.proto.call_checks import checked
from netbuilder.proto.errors import counted
from netbuilder.proto.suggestions import did_you_mean
from netbuilder.runtime import Workspace
from netbuilder.runtime.plan.observable import requested_blobs

__all__ = ["Predictor", "check_names"]

_log = logging.getLogger("netbuilder")
_MOST_MORE = 64 << 20  # bytes


class Predictor:
    """A predict net that is ready to run, in its own workspace, also by several threads at the same time.

    Args:
        init_net: fills the parameters; it runs once, in the constructor.
        predict_net: computes the outputs.
        inputs: blobs that ``run`` is given; None: those that ``predictor_names.find_inputs`` finds, usually the
            external inputs that the init net does not fill.
        outputs: blobs that ``run`` returns; None: the external outputs, or, if the net lists none, the results that
            no operator reads.
        specs: shape and type of inputs, if known; the first extent is the batch and may differ.
        device: runs all operators of both nets; None: each runs on its own device option.
        workspace: None: a new one.
        fold: fold batch normalizations in test mode into the weights before them, or make them an AffineChannel (see
            ``passes.fold_batch_norm``), for speed; results are the same up to rounding. No normalization is folded in a
            net that has one in training mode. LayerNorm, RMSNorm and Attention take the place of their parts, with the
            constants among these as they are now (see ``join``). Operators that read only parameters
            run once, in the constructor, unless their results need 64 MiB more than what they replace. Parameters that
            nothing reads then are not in the workspace; give False to feed them later.
        observable: blobs that can be fetched from the workspace after a run, in addition to inputs, outputs and
            parameters: a list of names, or "outputs" for no others but those that the net stores
            (``Net.set_observable``); "all" or None, or "activations": those, and nothing is folded.
        parameters: arrays by name, in addition to those that the init net fills.
        adopt: use read-only arrays among ``parameters`` as they are, see ``Workspace.feed``, in place of copies.
        join: where nets are folded, apply ``passes.join_parts``; give False if it has been, with these shapes.
        threads: how many threads at most compute at the same time, each with memory of its own for the activations;
            others wait. None: as many as there are cores. See ``NetPool`` for nets whose runs take turns.
        trusted: allow all operators. If not, an init net may hold only fills (``trust.FILLS``), and a predict net no
            operators that do more than compute in memory (``trust.check_harmless``).

    A predictor can be pickled, with its parameters.

    ``images`` (``ImagePreparation``) is the preprocessing of images, ``classes`` the names of the classes, if the
    predictor was saved with them; otherwise they are None and ().

    Raises:
        NetError: a net is invalid, a parameter is not filled, or there is no output; or a net holds operators that are
            allowed only if ``trusted``.
        BlobError: an input, an output or a name in ``observable`` is not in the net.
        DeviceError: the device is not available.

    >>> from netbuilder.proto.arguments import make_op
    >>> init_net = NetDef(op=[make_op("GivenTensorFill", [], ["w"], shape=[2], values=[1.0, 2.0])])
    >>> net = NetDef(name="net", op=[make_op("Add", ["x", "w"], ["y"], broadcast=1)])
    >>> net.external_input.extend(["x", "w"])
    >>> net.external_output.append("y")
    >>> Predictor(init_net, net).run(x=np.float32([[1, 1]]))
    {'y': array([[2., 3.]], dtype=float32)}
    """

    @collection_paused()
    @checked("threads")
    def __init__(
        self,
        init_net: NetDef,
        predict_net: NetDef,
        *,
        inputs: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        specs: Mapping[str, TensorSpec] | None = None,
        device: DeviceOption | None = None,
        workspace: Workspace | None = None,
        fold: bool = True,
        observable: str | Iterable[Any] | None = OUTPUTS,
        parameters: Mapping[str, Any] | None = None,
        adopt: bool = False,
        join: bool = True,
        threads: int | None = None,
        trusted: bool = False,
    ) -> None:
        check_threads(threads, "Predictor")
        self.workspace = workspace if workspace is not None else Workspace()
        before = set(self.workspace.blobs())
        self._net = NetDef()
        self._net.CopyFrom(predict_net)
        filled, rest = _split(init_net)
        if not trusted:
            check_fills(rest.op, f"init net {init_net.name!r}")
            check_harmless(predict_net, f"predict net {predict_net.name!r}")
        if device is None:
            _check_gpus(predict_net, rest)
        else:
            place_operators(self._net, device)
            place_operators(rest, device)
        found = find_inputs(predict_net, init_net, filled, parameters or ()) if inputs is None else inputs
        filled |= parameters or {}
        self.inputs = tuple(found)
        self.outputs = tuple(dict.fromkeys(outputs if outputs is not None else find_outputs(predict_net)))
        self.specs = dict(specs or {})
        self.images = image_preparation(predict_net)
        self.classes = class_names(predict_net)
        made = {blob for op in init_net.op for blob in op.output}.union(parameters or ())
        check_names(self._net, made, self.inputs, self.outputs)
        homes = _homes(self._net)
        for name, value in filled.items():
            if name not in self.inputs:
                self.workspace.feed(name, value, homes.get(name), adopt=adopt)
        needed = [op for op in rest.op if not op.output or not set(op.output) <= set(self.inputs)]
        if needed:
            self.workspace.run_net_once(NetDef(name=rest.name, op=needed))
        kind, names = (ALL, []) if observable is None else requested_blobs(self._net, observable)
        further = stored(self._net)[1] if observable == OUTPUTS else names
        observable = [*self.outputs, *further] if kind == OUTPUTS else kind
        constants = made.difference(self.inputs)
        normalizes = any(op.type == "SpatialBN" for op in self._net.op)
        if fold and normalizes and not isinstance(observable, str) and not training_batch_norms(self._net):
            constants = self._fold(constants, observable, before, device, filled)
        if fold and self.inputs and not isinstance(observable, str):
            if join and any(op.type in ("Softmax", "ReduceMean") for op in self._net.op):
                constants = self._join(constants, observable, device, filled)
            constants = self._run_once(constants, observable, before)
        read = constants.intersection(blob for op in self._net.op for blob in op.input)
        self._create = partial(_create, observable=observable, constants=read)
        create = partial(self._create, net=self._net, inputs=self.inputs)
        create(self.workspace)
        kept = constants.intersection([*(blob for op in self._net.op for blob in reads_of(op)), *self.outputs])
        self.pool = NetPool(self.workspace, self._net, create, kept, threads)
        self._parameters = kept
        self._options = {"observable": observable, "threads": threads, "trusted": trusted}
        _log.info("predictor %r runs on %s", self._net.name, _where(self._net))

    def __repr__(self) -> str:
        return f"Predictor({self._net.name!r}, inputs={list(self.inputs)}, outputs={list(self.outputs)})"

    def _repr_html_(self) -> str:
        """Tables of the inputs and outputs, and the drawing of the net, for notebooks."""
        specs = {name: spec for name in self._parameters if (spec := self.workspace.spec(name)) is not None}
        elements = sum(spec.size for spec in specs.values())
        specs.update(self.specs)
        rows = [["input", name, *_shape_and_type(self.specs.get(name))] for name in self.inputs]
        shapes = infer_shapes([self._net], specs)
        rows += [["output", name, *_shape_and_type(shapes.spec(name))] for name in self.outputs]
        if self.images is not None:
            rows.append(["images", self.images, "", ""])
        if self.classes:
            rows.append(["classes", f"{len(self.classes)}: {', '.join(self.classes[:10])}", "", ""])
        title = f"predictor {self._net.name}: {counted(len(self._parameters), 'parameter')}, {elements:,} elements"
        body = table(["", "", "shape", "type"], rows)
        return folded(title, body, unfolded=True) + net_html(self._net, specs=specs, inputs=self.inputs, unfolded=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the net as it runs (after folding), the parameters and the options, for other processes."""
        workspace = self.workspace
        for name in self._parameters:
            if workspace.spec(name) is None:
                raise NetError(
                    f"predictor {self._net.name!r} cannot be pickled: blob {name!r} is an object; send the folder of "
                    "the predictor, and load it in the other process (load_predictor)"
                )
        values = {name: workspace.fetch(name) for name in sorted(self._parameters)}
        own = {name: getattr(workspace, name) for name in ("engines", "threads", "seed", "without")}
        names = {"inputs": self.inputs, "outputs": self.outputs, "specs": self.specs}
        return _unpickled, (self._net.SerializeToString(), values, own, {**names, **self._options})

    def _fold(
        self,
        parameters: Collection[str],
        kept: Sequence[str],
        before: Collection[str],
        device: DeviceOption | None,
        filled: Mapping[str, Any],
    ) -> set[str]:
        """Fold normalizations; return the parameters of the new net, which replace the old ones in the workspace.

        Args:
            parameters: of the net before folding.
            kept: blobs that must not be folded away.
            before: blobs that the workspace had before, and that must stay in it.
            filled: values of parameters, which need not be fetched.
        """
        outputs = list(self._net.external_output)
        self._net.external_output[:] = dict.fromkeys([*outputs, *kept])
        old = {
            name: filled[name] if isinstance(filled.get(name), np.ndarray) else self.workspace.fetch(name)
            for name in parameters
            if self.workspace.spec(name) is not None
        }
        self._net, new = fold_batch_norm(self._net, old, affine=True)
        self._net.external_output[:] = outputs
        for name in new.keys() - old.keys():
            self.workspace.feed(name, new[name], device)
        gone = old.keys() - new.keys()
        for name in gone.difference(before):
            self.workspace.remove(name)
        return {*parameters, *new}.difference(gone)

    def _run_once(self, parameters: set[str], kept: Sequence[str], before: Collection[str]) -> set[str]:
        """Run the operators that read only parameters; return the parameters of the net without them.

        Args:
            parameters: of the net.
            kept: blobs that the net must make.
            before: blobs that the workspace had before, and that must stay in it.
        """
        part = constant_part(self._net, parameters, {*kept, *self.inputs, *self._net.external_output, *before})
        if part is None:
            return parameters
        read = {blob for op in part.rest.op for blob in reads_of(op)}
        gone = parameters.intersection(blob for op in part.once.op for blob in op.input) - read - set(kept)
        workspace, freed = self.workspace, gone.difference(before)
        try:
            workspace.run_net_once(part.once)
        except (DeviceError, NetError, OperatorError) as error:  # it is the same error when the predictor runs
            _log.debug("predictor %r: its constant operators do not run: %s", self._net.name, error)
            fits = False
        else:
            fits = self._bytes(part.made) <= self._bytes(freed) + _MOST_MORE
        for name in [*part.between, *(freed if fits else part.made)]:
            workspace.remove(name)
        if not fits:
            return parameters
        self._net = part.rest
        return {*parameters, *part.made} - gone

    def _bytes(self, names: Iterable[str]) -> float:
        """Return the bytes of tensors; infinity if one of the blobs is none."""
        specs = [self.workspace.spec(name) for name in names]
        return sum(math.inf if spec is None else spec.nbytes for spec in specs)

    def _join(
        self, parameters: Collection[str], kept: Sequence[str], device: DeviceOption | None, filled: Mapping[str, Any]
    ) -> set[str]:
        """Put LayerNorm, RMSNorm and Attention in place of their parts; return the parameters, with further ones."""
        known: dict[str, Any] = {}
        for name in {blob for op in self._net.op for blob in op.input}.intersection(parameters):
            spec = self.workspace.spec(name)
            if spec is not None and spec.size > 1 and spec.dtype.kind == "f":  # only their shapes matter
                known[name] = np.broadcast_to(np.zeros((), spec.dtype), spec.shape)
            elif spec is not None:
                known[name] = filled[name] if isinstance(filled.get(name), np.ndarray) else self.workspace.fetch(name)
        self._net, new = join_parts(self._net, known, self.specs, keep=kept, open_batch=True)
        for name in new.keys() - known.keys():
            self.workspace.feed(name, new[name], device)
        return {*parameters, *new}

    @property
    def net(self) -> NetDef:
        """A copy of the predict net after folding."""
        copy = NetDef()
        copy.CopyFrom(self._net)
        return copy

    def run(self, values: Mapping[str, Any] | None = None, /, **inputs: Any) -> dict[str, Any]:
        """Return the outputs for one batch.

        Args:
            values: the inputs by name, for names that are not Python identifiers.
            inputs: the inputs by name. Lists are converted to the type of the input, arrays must have it.

        Returns:
            The outputs by name, as NumPy arrays.

        Raises:
            BlobError: an input is missing or unknown.
            TypeError: an input is given without its name.
            ShapeError: the type or shape of an input is not that of the saved predictor.
            NetError, OperatorError: an operator failed.
        """
        if values is not None and not isinstance(values, Mapping):
            if all(name.isidentifier() for name in self.inputs):
                named = ", ".join(f"{name}=..." for name in self.inputs)
            else:
                named = "{" + ", ".join(f"{name!r}: ..." for name in self.inputs) + "}"
            raise TypeError(
                f"predictor {self._net.name!r} takes {list(self.inputs)}, got a value without a name, of type "
                f"{type(values).__name__}; give inputs by name: run({named})"
            )
        given = {**(values or {}), **inputs}
        if given.keys() != set(self.inputs):
            missing = [name for name in self.inputs if name not in given]
            unknown = [name for name in given if name not in self.inputs]
            raise BlobError(
                f"predictor {self._net.name!r} takes the inputs {list(self.inputs)}"
                + (f"; missing: {missing}" if missing else "")
                + (f"; unknown: {unknown}{did_you_mean(str(unknown[0]), missing)}" if unknown else "")
            )
        return self._outputs({name: self._checked(name, value) for name, value in given.items()})

    def _outputs(self, arrays: Mapping[str, Any], preprocessing: OperatorDef | None = None) -> dict[str, Any]:
        """Run the net, after an operator that computes its input from what is given, if any; return the outputs."""
        seat = self.pool.take()
        try:
            workspace, name = seat.workspace, self._net.name
            if preprocessing is not None:
                name += "/preprocessed"
                if seat.preprocessing != preprocessing:
                    self._create_preprocessed(preprocessing, name, workspace)
                    seat.preprocessing = preprocessing
            for blob, array in arrays.items():
                workspace.feed(blob, array)
            workspace.run_net(name)
            return {name: workspace.fetch(name) for name in self.outputs}
        finally:
            self.pool.give_back(seat)

    def _create_preprocessed(self, preprocessing: OperatorDef, name: str, workspace: Workspace) -> None:
        """Create the net preceded by a preprocessing operator; it replaces the one with another such operator."""
        net = NetDef()
        net.CopyFrom(self._net)
        net.name = name
        net.ClearField("op")
        net.op.extend([preprocessing, *self._net.op])
        made = set(preprocessing.output)
        net.external_input[:] = [*preprocessing.input, *(blob for blob in self._net.external_input if blob not in made)]
        inputs = [*preprocessing.input, *(blob for blob in self.inputs if blob not in made)]
        self._create(workspace, net=net, inputs=inputs, overwrite=True)

    def reads_on_gpu(self, name: str) -> bool:
        """Whether the first operator that reads an input is on a GPU."""
        home = _homes(self._net).get(name)
        return home is not None and home.device_type == PROTO_CUDA

    def run_pixels(
        self,
        pixels: np.ndarray[Any, Any],
        *,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        channels_last: bool = False,
    ) -> dict[str, Any]:
        """Return the outputs for one batch of images, which the device that reads the only input normalizes.

        On a GPU that uploads a quarter of the bytes. Results are those of ``run`` with the normalized images, in 16
        bits up to rounding.

        Args:
            pixels: (N, H, W, C), uint8, with channels in the order of the input.
            mean, std: ``(pixel - mean) / std``: one number, or one for each channel; std is positive.
            channels_last: the input is (N, H, W, C); else (N, C, H, W).

        Raises:
            ShapeError: the pixels are of another kind, or the input has another shape.
            ArgumentError: the predictor has no input, or several, or a number is out of range.
            OperatorError: an operator failed.
        """
        what = f"predictor {self._net.name!r}: run_pixels"
        if len(self.inputs) != 1:
            raise ArgumentError(f"{what} needs one input, for the images; the predictor has {list(self.inputs)}")
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 4:
            found = f"{pixels.dtype} {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
            raise ShapeError(f"{what}: pixels must be an array (N, H, W, C) of uint8, got {found}")
        (name,), (count, height, width, channels) = self.inputs, pixels.shape
        shape = pixels.shape if channels_last else (count, channels, height, width)
        self._checked(name, np.broadcast_to(np.float32(0), shape))
        preprocessing = make_op(
            "NormalizeImages", [f"{name}/pixels"], [name], mean=[*map(float, mean)], std=[*map(float, std)],
            order="NHWC" if channels_last else "NCHW",
        )  # fmt: skip
        if (home := _homes(self._net).get(name)) is not None:
            preprocessing.device_option.CopyFrom(home)
        return self._outputs({preprocessing.input[0]: pixels}, preprocessing)

    def prepare(self, images: Any) -> np.ndarray[Any, Any]:
        """Return images as a batch for the input, prepared as the predictor stores it (``images``).

        Args:
            images: an image or a list of them: each a path, the bytes of an image file, or pixels (H, W, 3) or (H, W),
                uint8, red, green, blue, as an image of Pillow has them.

        Returns:
            float32, (N, C, H, W), or (N, H, W, C) for an input with the channels last.

        Raises:
            OSError, ParseError: a file cannot be read, or is no image.
            ArgumentError: the predictor has no input of images, or several; or pixels are of another kind.
        """
        classifier = Classifier.of(self)
        return np.stack([classifier.prepare(image) for image in _listed(images)])

    @checked("top", "batch")
    def classify(self, images: Any, top: int = 5, *, batch: int = 32) -> list[list[Prediction]]:
        """Return the classes with the highest scores of images, by the first output.

        Args:
            images: as for ``prepare``.
            top: how many classes.
            batch: how many images run at a time.

        Returns:
            for each image its classes, the likeliest first: their numbers, names and scores.

        Raises:
            as ``prepare``.
        """
        if top < 1 or batch < 1:
            raise ArgumentError(f"classify: top and batch must be at least 1, got {top} and {batch}")
        classifier, given = Classifier.of(self), _listed(images)
        found: list[list[Prediction]] = []
        for start in range(0, len(given), batch):
            arrays = [classifier.prepare_to_classify(image) for image in given[start : start + batch]]
            found += classifier.classify(arrays, top)
        return found

    def _checked(self, name: str, value: Any) -> Any:
        """Return an input as an array of the type and shape of the saved predictor, if these are known."""
        spec = self.specs.get(name)
        array = value if is_numeric(value) else self._converted(name, value, spec)
        if spec is None:
            return array
        if array.dtype != spec.dtype and array.dtype.kind in "iu" and spec.dtype.kind in "iu":
            array = self._narrowed(name, array, spec)
        if array.dtype != spec.dtype:
            raise ShapeError(
                f"{self._what(name)} must have elements of type {spec.dtype}, got {array.dtype}; convert it with "
                ".astype"
            )
        if array.ndim != spec.ndim or array.shape[1:] != spec.shape[1:]:
            raise ShapeError(
                f"{self._what(name)} must have the shape ({', '.join(['batch', *map(str, spec.shape[1:])])}), got "
                f"{array.shape}"
            )
        return array

    def _converted(self, name: str, value: Any, spec: TensorSpec | None) -> Any:
        """Return an input as an array; what is none yet, such as a list, gets the type of ``spec``."""
        given = as_tensor(value, self._what(name))
        if spec is None or isinstance(value, np.ndarray) or spec.dtype == given.dtype:
            return given
        if given.dtype.kind in "SUO":
            raise ShapeError(f"{self._what(name)} must have elements of type {spec.dtype}, got text: {value!r:.80}")
        if given.dtype.kind == "f" and spec.dtype.kind in "iu":
            raise ShapeError(f"{self._what(name)} must have whole numbers, of type {spec.dtype}, got {value!r:.80}")
        return given if given.dtype.kind in "iu" and spec.dtype.kind in "iu" else np.asarray(value, spec.dtype)

    def _narrowed(self, name: str, array: Any, spec: TensorSpec) -> Any:
        """Return whole numbers as those of the type of ``spec``, such as int64 as int32."""
        held = np.iinfo(spec.dtype)
        if array.size and not held.min <= array.min() <= array.max() <= held.max:
            raise ShapeError(
                f"{self._what(name)} must have whole numbers from {held.min} to {held.max}, of type {spec.dtype}, got "
                f"{array.min()} to {array.max()}"
            )
        return array.astype(spec.dtype)

    def _what(self, name: str) -> str:
        return f"predictor {self._net.name!r}: input {name!r}"


def _listed(images: Any) -> Sequence[Any]:
    """Return images as a list; a single one is not iterated over."""
    return images if isinstance(images, (list, tuple)) else [images]


def _unpickled(net: bytes, values: Mapping[str, Any], workspace: Any, options: Any) -> Predictor:
    """Return the predictor that was pickled."""
    proto = files.parse(net, NetDef)
    return Predictor(NetDef(), proto, parameters=values, workspace=Workspace(**workspace), fold=False, **options)


def _create(
    workspace: Workspace, *, net: NetDef, inputs: Iterable[str], observable: Any, constants: Collection[str],
    overwrite: bool = False,
) -> None:  # fmt: skip
    """Create the net of a predictor in a workspace with its parameters."""
    for name in inputs:
        workspace.make(name)
    workspace.create_net(net, overwrite, observable=observable, constants=constants)


def _shape_and_type(spec: TensorSpec | None) -> tuple[Any, Any]:
    return ("?", "?") if spec is None else (spec.shape, spec.dtype)


def check_names(net: NetDef, filled: Collection[str], inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Check that the inputs and outputs of a predictor match its nets.

    Args:
        net: the predict net.
        filled: blobs that the init net makes.
        inputs, outputs: blobs that are fed and fetched.

    Raises:
        NetError: the net reads a blob that is neither fed nor filled, or no output is named.
        BlobError: an input or output is not in the net.
    """
    known = {*filled, *inputs}
    read: set[str] = set()
    for op in net.op:
        if missing := [blob for blob in op.input if blob not in known]:
            raise NetError(
                f"predictor {net.name!r}: {missing} are neither inputs ({list(inputs)}) nor filled by the init net"
            )
        known.update(op.output)
        read.update(op.input)
    if not outputs:
        raise NetError(f"predictor {net.name!r}: the net declares no external output; name the outputs")
    if unknown := [name for name in inputs if name not in read]:
        raise BlobError(
            f"predictor {net.name!r}: no operator reads the inputs {unknown}"
            f"{did_you_mean(unknown[0], read.difference(filled))}"
        )
    if unknown := [name for name in outputs if name not in known]:
        made = [blob for op in net.op for blob in op.output]
        raise BlobError(
            f"predictor {net.name!r}: no operator makes the outputs {unknown}{did_you_mean(unknown[0], made)}"
        )


def _split(init_net: NetDef) -> tuple[dict[str, Any], NetDef]:
    """Return the tensors that an init net holds, and a net with its other operators."""
    filled: dict[str, Any] = {}
    rest = NetDef(name=init_net.name or "init")
    for op in init_net.op:
        value = fill_values(op)
        if value is None:
            rest.op.append(op)
        else:
            filled[op.output[0]] = value
    return filled, rest


def _check_gpus(*nets: NetDef) -> None:
    """Check that the GPUs that nets name can be used.

    Raises:
        DeviceError: one cannot; the message says how to run the nets on the CPU.
    """
    options = [op.device_option if op.HasField("device_option") else net.device_option for net in nets for op in net.op]
    for number in sorted({option.device_id for option in options if option.device_type == PROTO_CUDA}):
        try:
            gpu(number)
        except DeviceError as error:
            raise DeviceError(
                f"the predictor needs GPU {number}: give device=make_device_option(PROTO_CPU, 0) (on a command line: "
                f"--cpu) to run it on the CPU; {error}"
            ) from error


def _homes(net: NetDef) -> dict[str, DeviceOption]:
    """Return for each blob the device of the first operator that reads it."""
    homes: dict[str, DeviceOption] = {}
    for op in net.op:
        for blob in op.input:
            homes.setdefault(blob, op.device_option if op.HasField("device_option") else net.device_option)
    return homes


def _where(net: NetDef) -> str:
    def word(op: OperatorDef) -> str:
        device = op.device_option if op.HasField("device_option") else net.device_option
        return "the CPU" if device.device_type != 1 else f"GPU {device.device_id}"

    return " and ".join(sorted({word(op) for op in net.op}))
