"""ModelHelper: a main net, the init net that initializes its parameters, and the lists of parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from netbuilder.graph.blob import BlobReference, GradientSlice
from netbuilder.graph.block_updates import BlockNets
from netbuilder.graph.gradients import Callback
from netbuilder.graph.html_tables import folded, net_html, table
from netbuilder.graph.net import Net
from netbuilder.graph.operators import IsOperator
from netbuilder.graph.shapes import infer_shapes
from netbuilder.model.helpers.inputs import db_input
from netbuilder.model.parameter_info import ParameterInfo
from netbuilder.model.parameters import ModelParameters
from netbuilder.proto import BlobError, GradientError, NetDef, NetError, OperatorDef, ShapeError
from netbuilder.proto.call_checks import checked
from netbuilder.proto.errors import counted
from netbuilder.proto.suggestions import did_you_mean, suggests_arguments

__all__ = ["DEFAULT_ARG_SCOPE", "ModelHelper"]


DEFAULT_ARG_SCOPE: Mapping[str, Any] = {"order": "NCHW", "use_cudnn": True, "cudnn_exhaustive_search": False}
"""Default arguments of layer helpers, unless the call, a scope or the model sets them."""

_INIT_MARK = "/param_init_net"  # suffix of the debug_info of operators that come from the init net, as in Caffe2

# Operators that a model made with allow_not_known_ops=False has as attributes.
_KNOWN_OPERATORS = frozenset(
    "Accuracy Adadelta Adagrad Adam Add AveragedLoss Cast Checkpoint ConstantFill Copy CopyCPUToGPU CopyGPUToCPU "
    "DequeueBlobs EnsureCPUOutput ExpandDims Flatten FlattenToVec LabelCrossEntropy LearningRate MakeTwoClass MatMul "
    "NCCLAllreduce NHWC2NCHW PRelu PackSegments Print ReduceFrontSum Scale ScatterWeightedSum Sigmoid Snapshot "
    "Softmax SoftmaxWithLoss SortedSegmentSum SparseAdadelta SparseAdagrad SquaredL2Distance Squeeze StopGradient "
    "Summarize Tanh Transpose UnpackSegments WeightedSum YellowFin".split()
)

Gradient = BlobReference | GradientSlice


class ModelHelper(ModelParameters):
    """A main net with its init net and its parameters.

    Operators are added as attributes, ``model.Softmax("x", "y")``, or through ``model.net``; layers with
    parameters through ``brew``.

    Args:
        name: name of the main net; the init net's name has the suffix "_init".
        init_params: initialize parameters. False makes a test model: it uses the parameters of another model, by
            name, and its init net never initializes one.
        allow_not_known_ops: whether all operators are attributes of the model; False: only common ones.
        skip_sparse_optim: exclude parameters with sparse gradients from the updates of optimizers.
        param_model: the model whose parameters this one shares. This model is then a test model too, except that
            its own init net initializes parameters that ``param_model`` does not have.
        arg_scope: arguments for all layer helpers, which take precedence over ``DEFAULT_ARG_SCOPE``.
        dtype: type in which plans store the main net's activations (see ``Net.set_activation_dtype``); None: float32.

    Attributes:
        net, param_init_net: the main net and the init net.
        params, weights, biases: the trained parameters, and those of them that are tagged as weights and biases.
        param_to_grad: parameter -> its gradient, after ``AddGradientOperators``.
        grad_map: blob -> its gradient.
        gradient_ops_added: whether the model has a backward pass.
        parameter_copies: for replicated parameters, copy -> the first copy, whose gradient is equal.
        block_nets: the nets of block-wise updates, after ``Parallelize_BMUF``.

    >>> from netbuilder.model import brew
    >>> model = ModelHelper("example")
    >>> fc = brew.fc(model, "data", "fc1", dim_in=4, dim_out=2)
    >>> [op.type for op in model.net.Proto().op], model.GetParams()
    (['FC'], [BlobReference("fc1_w"), BlobReference("fc1_b")])
    """

    net_class: type[Net] = Net  # class of the nets, unless the model shares the parameters of another one

    @suggests_arguments
    @checked("param_model")
    def __init__(
        self,
        name: str | None = None,
        init_params: bool = True,
        allow_not_known_ops: bool = True,
        skip_sparse_optim: bool = False,
        param_model: ModelHelper | None = None,
        arg_scope: Mapping[str, Any] | None = None,
        *,
        dtype: str | None = None,
    ) -> None:
        if param_model is not None and not isinstance(param_model, ModelHelper):
            raise TypeError(f"ModelHelper: param_model must be a ModelHelper, got {param_model!r}")
        if arg_scope is not None and not isinstance(arg_scope, Mapping):
            raise TypeError(f"ModelHelper: arg_scope must be a mapping of arguments, got {arg_scope!r}")
        self.name = name or "model"
        if param_model is not None:
            self.net_class = type(param_model.net)
        self.net: Net = self.net_class(self.name)
        if dtype is not None:
            self.net.set_activation_dtype(dtype)
        super().__init__(self.name, self._init_net(param_model), init_params=init_params, shared_with=param_model)
        if self.param_init_net is not getattr(param_model, "param_init_net", None):
            self.param_init_net.initializes = self.net
        self.allow_not_known_ops = allow_not_known_ops
        self.skip_sparse_optim = skip_sparse_optim
        self.param_to_grad: dict[BlobReference, Gradient] = {}
        self.parameter_copies: dict[str, str] = {}
        self.grad_map: dict[BlobReference, Gradient] = {}
        self.gradient_ops_added = False
        self._gradient_advice = "call AddGradientOperators first"
        self.block_nets: BlockNets | None = None
        self._updated: list[BlobReference] = []  # parameters for which an optimizer was built
        self._devices: list[int] = []
        self._arg_scope: dict[str, Any] = {**DEFAULT_ARG_SCOPE, **(arg_scope or {})}

    def _init_net(self, param_model: ModelHelper | None) -> Net:
        """Return the net that initializes the parameters that ``param_model``, if given, does not have."""
        return self.net_class(self.name + "_init")

    @property
    def arg_scope(self) -> dict[str, Any]:
        """The arguments of this model for all layer helpers."""
        return self._arg_scope

    def get_name(self) -> str:
        """Return the model's name."""
        return self.name

    def Proto(self) -> NetDef:
        """Return the main net's message itself, not a copy."""
        return self.net.Proto()

    def InitProto(self) -> NetDef:
        """Return the init net's message itself, not a copy."""
        return self.param_init_net.Proto()

    def shape(
        self, blob: str | BlobReference, inputs: Mapping[str | BlobReference, Any] | None = None
    ) -> tuple[int, ...]:
        """Return the shape of a blob of the main net, as far as it has been built.

        Args:
            blob: its name, which is not given the current name scope, or a reference.
            inputs: the shapes of the net's inputs, or arrays that have them (as for ``infer_shapes``).

        Raises:
            BlobError: the net has no such blob.
            ShapeError: the shape depends on an input that is not given, or on values; or shapes contradict each other.

        >>> from netbuilder.model import brew
        >>> model = ModelHelper("example_shape")
        >>> pooled = brew.max_pool(model, brew.conv(model, "data", "conv", 3, 8, 3, pad=1), "pool", kernel=2, stride=2)
        >>> model.shape(pooled, {"data": (16, 3, 32, 32)})
        (16, 8, 16, 16)
        """
        name = str(blob)
        known = {param: info.shape for param, info in self._infos.items() if info.shape is not None}
        found = infer_shapes([self.param_init_net, self.net], {**known, **(inputs or {})})
        if name in found.shapes:
            return found.shapes[name]
        if name not in found.unknown:
            every = [*found.shapes, *found.unknown]
            raise BlobError(f"model {self.name!r} has no blob {name!r}{did_you_mean(name, every)}")
        missing = [str(given) for given in self.net.external_inputs if str(given) in found.unknown]
        why = f"give those of {missing}, as inputs={{name: shape}}" if missing else "it depends on values"
        raise ShapeError(f"model {self.name!r}: the shape of blob {name!r} is not known; {why}")

    # Devices

    def GetDevices(self) -> list[int]:
        """Return the ids of the devices that the model was parallelized over.

        Raises:
            NetError: the model is not data-parallel.
        """
        if not self._devices:
            raise NetError(f"model {self.name!r} is on one device; call Parallelize to build it on several")
        return self._devices

    @property
    def replica_scopes(self) -> tuple[str, ...]:
        """The name scopes of the replicas, such as ``gpu_0/``; (): the model is on one device."""
        return tuple(f"{vars(self)['_device_prefix']}_{number}/" for number in self._devices)

    # Backward pass

    @suggests_arguments
    @checked("ys", "callbacks")
    def AddGradientOperators(
        self,
        ys: Iterable[Any] | Mapping[Any, Any],
        skip: int = 0,
        *,
        callbacks: Sequence[Callback] = (),
    ) -> dict[BlobReference, Gradient]:
        """Add the backward pass to the main net; arguments as for ``Net.AddGradientOperators``.

        Returns:
            The gradient of each blob that has one.

        Raises:
            GradientError: the model has a backward pass already, it cannot be built, or no loss is given.
            NetError: parameters are listed twice.
        """
        self._check_no_gradients()
        if isinstance(ys, (Sequence, Mapping)) and not ys:
            raise GradientError(f"model {self.name!r}: ys must be a list of at least one loss, got {ys!r}")
        return self._with_gradients(self.net.AddGradientOperators(ys, skip, callbacks=callbacks))

    def extend_backward(self, ops: Iterable[OperatorDef], gradients: Mapping[BlobReference, Gradient]) -> None:
        """Append to the main net a backward pass that has been built elsewhere.

        Args:
            ops: its operators.
            gradients: the gradient of each blob that has one.

        Raises:
            GradientError, NetError: as for ``AddGradientOperators``.
        """
        self._check_no_gradients()
        self.net.extend_ops(ops)
        self._with_gradients(dict(gradients))

    def _check_no_gradients(self) -> None:
        if self.gradient_ops_added:
            raise GradientError(f"model {self.name!r} has a backward pass already; it can be added only once")
        self.Validate()

    def _with_gradients(self, gradients: dict[BlobReference, Gradient]) -> dict[BlobReference, Gradient]:
        self.grad_map = gradients
        self.gradient_ops_added = True
        self.param_to_grad = self.get_param_to_grad(self.params)
        return self.grad_map

    @checked()
    def get_param_to_grad(self, params: Iterable[BlobReference]) -> dict[BlobReference, Gradient]:
        """Return the gradient of each of ``params`` that has one.

        Raises:
            GradientError: there is no backward pass yet.
        """
        self._require_gradients()
        return {p: self.grad_map[p] for p in params if p in self.grad_map}

    @checked()
    def GetOptimizationParamInfo(self, params: Iterable[BlobReference] | None = None) -> list[ParameterInfo]:
        """Return the parameters that optimizers update: those with a gradient.

        Args:
            params: only these; None: all trained parameters.

        Raises:
            GradientError: there is no backward pass yet.
        """
        self._require_gradients()
        infos = []
        for param in self.params if params is None else params:
            grad = self.param_to_grad.get(param)
            if grad is None or self.skip_sparse_optim and isinstance(grad, GradientSlice):
                continue
            info = self._infos.get(str(param))
            if info is None:
                info = self._infos[str(param)] = self._info_from_init(param)
            info.grad = grad
            infos.append(info)
        return infos

    def _require_gradients(self) -> None:
        if not self.gradient_ops_added:
            raise GradientError(f"model {self.name!r} has no backward pass yet; {self._gradient_advice}")

    # Whole nets

    def GetCompleteNet(self) -> Net:
        """Return a net that runs the init net's operators, marked as such, and then the main net's.

        Its executor is that of the main net.
        """
        return _complete_net(self.name + "_complete_net", self.param_init_net, self.net)

    @checked()
    def ConstructInitTrainNetfromNet(self, net: Net) -> None:
        """Replace init net and main net by the parts of a net of ``GetCompleteNet``, here or in Caffe2."""
        self.param_init_net, self.net = _split_complete_net(net)

    @checked()
    def RunAllOnGPU(self, gpu_id: int = 0, use_cudnn: bool = False) -> None:
        """Set the device of both nets to a GPU; arguments as for ``Net.RunAllOnGPU``."""
        self.param_init_net.RunAllOnGPU(gpu_id, use_cudnn)
        self.net.RunAllOnGPU(gpu_id, use_cudnn)

    # Readers

    def CreateDB(self, blob_out: str | BlobReference, db: str, db_type: str, **kwargs: Any) -> BlobReference:
        """Append the opening of a database to the init net; return the blob of its reader.

        Args:
            blob_out: name of the reader.
            db: the database's path.
            db_type: its format, such as "minidb" or "lmdb".
        """
        reader: BlobReference = self.param_init_net.CreateDB([], blob_out, db=db, db_type=db_type, **kwargs)
        return reader

    def TensorProtosDBInput(
        self, unused_blob_in: Any, blob_out: Any, batch_size: int, db: str, db_type: str, **kwargs: Any
    ) -> Any:
        """Read batches of tensors from a database; like ``brew.db_input``, with an additional unused argument."""
        return db_input(self, blob_out, batch_size, db, db_type, **kwargs)

    def __getattr__(self, op_type: str) -> Any:
        if op_type.startswith("_") or op_type == "net":
            raise AttributeError(op_type)
        if IsOperator(op_type) and not self.allow_not_known_ops and op_type not in _KNOWN_OPERATORS:
            raise AttributeError(
                f"model {self.name!r} was made with allow_not_known_ops=False, and {op_type} is not among the "
                f"operators that it then has: {sorted(_KNOWN_OPERATORS)}; use model.net.{op_type} instead"
            )
        if not IsOperator(op_type) and hasattr(Net, op_type):
            raise AttributeError(f"a ModelHelper has no attribute {op_type!r}; use model.net.{op_type}")
        return getattr(self.net, op_type)

    def _repr_html_(self) -> str:
        """A table of the parameters and the drawing of the net, for notebooks."""
        found, rows, total = infer_shapes([self.param_init_net]), [], 0
        for kind, blobs in (("trained", self.params), ("computed", self.GetComputedParams())):
            for blob in blobs:
                spec = found.spec(blob)
                total += 0 if spec is None else spec.size
                shape, count, dtype = ("?", "?", "?") if spec is None else (spec.shape, f"{spec.size:,}", spec.dtype)
                rows.append([blob, shape, count, dtype, kind])
        title = f"model {self.name}: {counted(len(rows), 'parameter')}, {total:,} elements"
        parameters = folded(title, table(["parameter", "shape", "elements", "type", ""], rows), unfolded=True)
        return parameters + net_html(self.net.Proto(), init=self.param_init_net.Proto(), unfolded=False)

    def __repr__(self) -> str:
        parameters, operators = counted(len(self.params), "parameter"), counted(len(self.net.Proto().op), "operator")
        return f"ModelHelper({self.name!r}, {parameters}, {operators})"


def _complete_net(name: str, init_net: Net, main_net: Net) -> Net:
    joined = init_net.Clone(name)
    for op in joined.Proto().op:
        op.debug_info += _INIT_MARK
    joined.AppendNet(main_net)
    proto, main = joined.Proto(), main_net.Proto()
    if main.HasField("type"):
        proto.type = main.type
    if main.HasField("num_workers"):
        proto.num_workers = main.num_workers
    return joined


def _split_complete_net(net: Net) -> tuple[Net, Net]:
    """Return the init net and the main net of a complete net."""
    init_ops: list[int] = []
    main_ops: list[int] = []
    for index, op in enumerate(net.Proto().op):
        (init_ops if op.debug_info.endswith(_INIT_MARK) else main_ops).append(index)
    init_net, main_net = (
        net.Clone(f"{net.Name()}/{name}", op_id_mask=ops, update_external_list=True)
        for name, ops in (("generated_param_init_net", init_ops), ("generated_net", main_ops))
    )
    return init_net, main_net
