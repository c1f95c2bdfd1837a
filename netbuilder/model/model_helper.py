"""ModelHelper: a net, the net that makes its parameters, and the list of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from netbuilder.graph.blob import BlobReference, GradientSlice
from netbuilder.graph.net import Net
from netbuilder.graph.operators import IsOperator
from netbuilder.model.complete_net import complete_net, split_complete_net
from netbuilder.model.helpers.inputs import db_input
from netbuilder.model.parameter_info import ParameterInfo
from netbuilder.model.parameters import ModelParameters
from netbuilder.proto import GradientError, NetDef, NetError

__all__ = ["DEFAULT_ARG_SCOPE", "ModelHelper"]

DEFAULT_ARG_SCOPE: Mapping[str, Any] = {"order": "NCHW", "use_cudnn": True, "cudnn_exhaustive_search": False}
"""What layer helpers are given when neither the call, nor a scope, nor the model says otherwise."""

# What a model made with allow_not_known_ops=False takes through its attributes.
_KNOWN_OPERATORS = frozenset(
    "Accuracy Adadelta Adagrad Adam Add AveragedLoss Cast Checkpoint ConstantFill Copy CopyCPUToGPU CopyGPUToCPU "
    "DequeueBlobs EnsureCPUOutput ExpandDims Flatten FlattenToVec LabelCrossEntropy LearningRate MakeTwoClass MatMul "
    "NCCLAllreduce NHWC2NCHW PRelu PackSegments Print ReduceFrontSum Scale ScatterWeightedSum Sigmoid Snapshot "
    "Softmax SoftmaxWithLoss SortedSegmentSum SparseAdadelta SparseAdagrad SquaredL2Distance Squeeze StopGradient "
    "Summarize Tanh Transpose UnpackSegments WeightedSum YellowFin".split()
)

Gradient = BlobReference | GradientSlice


class ModelHelper(ModelParameters):
    """A main net with its init net, and what is known about its parameters.

    Operators are added by attribute, ``model.Softmax("x", "y")``, or to ``model.net``; layers with
    parameters by ``brew``.

    Args:
        name: of the main net; in that of the init net "_init" follows it.
        init_params: make the first values of parameters. False makes a test model: it uses, by name, the
            parameters that another model makes, and its init net never makes one.
        allow_not_known_ops: let every operator be called as an attribute, or else only common ones.
        skip_sparse_optim: leave parameters with sparse gradients out of what optimizers update.
        param_model: the model whose parameters this one shares. It too is then a test model, except that
            parameters which ``param_model`` has not are made by its own init net.
        arg_scope: arguments for all layer helpers, over the defaults ``DEFAULT_ARG_SCOPE``.
        dtype: how plans keep the main net's activations in memory (see ``Net.set_activation_dtype``); None: as float32.

    Attributes:
        net, param_init_net: the main net and the init net.
        params, weights, biases: the parameters that are trained, and those tagged as weights and biases.
        param_to_grad: gradient of each parameter that has one, after ``AddGradientOperators``.
        grad_map: gradient of each blob that has one.
        gradient_ops_added: whether the backward pass is there.
        parameter_copies: the other copies of replicated parameters, each with the name of the first one,
            whose gradient equals theirs.

    >>> from netbuilder.model import brew
    >>> model = ModelHelper("example")
    >>> fc = brew.fc(model, "data", "fc1", dim_in=4, dim_out=2)
    >>> [op.type for op in model.net.Proto().op], model.GetParams()
    (['FC'], [BlobReference("fc1_w"), BlobReference("fc1_b")])
    """

    net_class: type[Net] = Net  # of the nets of a model that shares no other model's parameters

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
        self._updated: list[BlobReference] = []  # those that an optimizer was built for
        self._devices: list[int] = []
        self._arg_scope: dict[str, Any] = {**DEFAULT_ARG_SCOPE, **(arg_scope or {})}

    def _init_net(self, param_model: ModelHelper | None) -> Net:
        """Return the net that makes the parameters which ``param_model``, if there is one, does not have."""
        return self.net_class(self.name + "_init")

    @property
    def arg_scope(self) -> dict[str, Any]:
        """The arguments that this model gives to all layer helpers."""
        return self._arg_scope

    def get_name(self) -> str:
        """Return the model's name, as it was given."""
        return self.name

    def Proto(self) -> NetDef:
        """Return the main net's message (the net itself, not a copy)."""
        return self.net.Proto()

    def InitProto(self) -> NetDef:
        """Return the init net's message (the net itself, not a copy)."""
        return self.param_init_net.Proto()

    # Devices

    def GetDevices(self) -> list[int]:
        """Return the ids of the devices that the model was parallelized over.

        Raises:
            NetError: it was not.
        """
        if not self._devices:
            raise NetError(f"model {self.name!r} is on one device; Parallelize puts it on several")
        return self._devices

    # Backward pass

    def AddGradientOperators(self, *args: Any, **kwargs: Any) -> dict[BlobReference, Gradient]:
        """Add the backward pass to the main net; arguments as for ``Net.AddGradientOperators``.

        Returns:
            The gradient of each blob that has one.

        Raises:
            GradientError: it has been added before, or cannot be built; no loss is given.
            NetError: parameters are listed twice.
        """
        if self.gradient_ops_added:
            raise GradientError(f"model {self.name!r}: the backward pass is there already; it is added once a model")
        self.Validate()
        ys = args[0] if args else kwargs.get("ys")
        if isinstance(ys, (Sequence, Mapping)) and not ys:
            raise GradientError(f"model {self.name!r}: there is no loss to take gradients of; give a list of losses")
        self.grad_map = self.net.AddGradientOperators(*args, **kwargs)
        self.gradient_ops_added = True
        self.param_to_grad = self.get_param_to_grad(self.params)
        return self.grad_map

    def get_param_to_grad(self, params: Iterable[BlobReference]) -> dict[BlobReference, Gradient]:
        """Return the gradient of each of ``params`` that has one.

        Raises:
            GradientError: there is no backward pass yet.
        """
        self._require_gradients()
        return {p: self.grad_map[p] for p in params if p in self.grad_map}

    def GetOptimizationParamInfo(self, params: Iterable[BlobReference] | None = None) -> list[ParameterInfo]:
        """Return the parameters that an optimizer updates: those that have a gradient.

        Args:
            params: consider only these; None: all trained ones.

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
            raise GradientError(f"model {self.name!r} has no backward pass yet; call AddGradientOperators first")

    # Whole nets

    def GetCompleteNet(self) -> Net:
        """Return one net that makes the parameters and then does what the main net does."""
        return complete_net(self.name + "_complete_net", self.param_init_net, self.net)

    def ConstructInitTrainNetfromNet(self, net: Net) -> None:
        """Take init net and main net from a net that ``GetCompleteNet`` made."""
        self.param_init_net, self.net = split_complete_net(net)

    def RunAllOnGPU(self, *args: Any, **kwargs: Any) -> None:
        """Put both nets on a GPU; arguments as for ``Net.RunAllOnGPU``."""
        self.param_init_net.RunAllOnGPU(*args, **kwargs)
        self.net.RunAllOnGPU(*args, **kwargs)

    # Readers

    def CreateDB(self, blob_out: str | BlobReference, db: str, db_type: str, **kwargs: Any) -> BlobReference:
        """Let the init net open a database; returns the blob of its reader.

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
        """Read batches of tensors from a database; as ``brew.db_input``, with an argument that is not used."""
        return db_input(self, blob_out, batch_size, db, db_type, **kwargs)

    def __getattr__(self, op_type: str) -> Any:
        if op_type.startswith("_") or op_type == "net":
            raise AttributeError(op_type)
        if IsOperator(op_type) and not self.allow_not_known_ops and op_type not in _KNOWN_OPERATORS:
            raise AttributeError(
                f"model {self.name!r} was made with allow_not_known_ops=False, and {op_type} is none of the operators "
                f"it then takes: {sorted(_KNOWN_OPERATORS)}; model.net.{op_type} adds it all the same"
            )
        if not IsOperator(op_type) and hasattr(Net, op_type):
            raise AttributeError(f"a ModelHelper has no attribute {op_type!r}; the net has: model.net.{op_type}")
        return getattr(self.net, op_type)

    def __repr__(self) -> str:
        return f"ModelHelper({self.name!r}, {len(self.params)} parameters, {len(self.net.Proto().op)} operators)"
