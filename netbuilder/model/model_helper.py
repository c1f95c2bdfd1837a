"""ModelHelper: a net, the net that makes its parameters, and the list of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from netbuilder.graph.blob import BlobReference, GradientSlice
from netbuilder.graph.net import Net
from netbuilder.graph.operators import IsOperator
from netbuilder.graph.scope import SEPARATOR, CurrentNameScope
from netbuilder.graph.source import warn_user
from netbuilder.model.complete_net import complete_net, split_complete_net
from netbuilder.model.helpers.inputs import db_input
from netbuilder.model.initializers import ExternalInitializer
from netbuilder.model.parameter_info import ParameterInfo, ParameterTags
from netbuilder.model.parameter_sharing import parameter_name
from netbuilder.proto import GradientError, NetDef, NetError, ShapeError
from netbuilder.proto.arguments import arguments

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

Tags = str | Iterable[str] | None
Parameter = BlobReference
Gradient = BlobReference | GradientSlice


class ModelHelper:
    """A main net with its init net, and what is known about its parameters.

    Operators are added by attribute, ``model.Softmax("x", "y")``, or to ``model.net``; layers with
    parameters by ``brew``.

    Args:
        name: of the main net; the init net gets "_init" behind it.
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
        self.net = Net(self.name)
        if dtype is not None:
            self.net.set_activation_dtype(dtype)
        self.param_init_net = Net(self.name + "_init")
        self.init_params = init_params
        self.allow_not_known_ops = allow_not_known_ops
        self.skip_sparse_optim = skip_sparse_optim
        self.param_to_grad: dict[Parameter, Gradient] = {}
        self.parameter_copies: dict[str, str] = {}
        self.grad_map: dict[BlobReference, Gradient] = {}
        self.gradient_ops_added = False
        self.weights: list[Parameter] = []
        self.biases: list[Parameter] = []
        self._updated: list[Parameter] = []  # those that an optimizer was built for
        self._devices: list[int] = []
        self._arg_scope: dict[str, Any] = {**DEFAULT_ARG_SCOPE, **(arg_scope or {})}
        # Shared, not copied: a parameter made through either model is one of both.
        self.params: list[Parameter] = [] if param_model is None else param_model.params
        self._computed_params: list[Parameter] = [] if param_model is None else param_model._computed_params
        self._infos: dict[str, ParameterInfo] = {} if param_model is None else param_model._infos
        self._others = frozenset(self._infos).union(map(str, [*self.params, *self._computed_params]))

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

    # Parameters

    def create_param(
        self, param_name: str | BlobReference, shape: Sequence[int], initializer: Any, tags: Tags = None
    ) -> BlobReference:
        """Make a parameter, or return the one that is there under this name.

        Args:
            param_name: a string, under the current name scope and what ``ParameterSharing`` makes of it,
                or a reference with the full name.
            shape: extents, in elements.
            initializer: makes the first value; not used by a test model.
            tags: of ``ParameterTags``.

        Raises:
            TypeError: ``param_name`` is neither a string nor a reference, or ``initializer`` makes no parameters.
            ShapeError: ``shape`` is no shape, or the parameter exists with another one.
        """
        if isinstance(param_name, BlobReference):
            name = BlobReference(str(param_name))
        elif isinstance(param_name, str):
            name = parameter_name(param_name)
        else:
            raise TypeError(f"a parameter's name is a string or a BlobReference, got {param_name!r}")
        if shape is not None and any(not hasattr(extent, "__index__") or extent < 0 for extent in shape):
            raise ShapeError(
                f"model {self.name!r}: the shape of parameter {str(name)!r} must be whole numbers, got {shape!r}"
            )
        known = self._infos.get(str(name))
        if known is not None:
            if shape is not None and known.shape is not None and list(shape) != list(known.shape):
                raise ShapeError(
                    f"model {self.name!r}: parameter {known.name!r} has shape {list(known.shape)}, asked for again "
                    f"with {list(shape)}; give the layer another name or scope"
                )
            return known.blob
        maker = initializer if self.init_params else ExternalInitializer()
        if not hasattr(maker, "create_param"):
            raise TypeError(
                f"model {self.name!r}, parameter {str(name)!r}: the initializer must have create_param, as Initializer "
                f'("XavierFill") has; got {initializer!r}'
            )
        info = maker.create_param(param_name=name, init_net=self.param_init_net, shape=shape)
        self._infos[info.name] = info
        self._list(info.blob, _tags(tags))
        return info.blob

    def AddParameter(self, param: BlobReference, tags: Tags = None) -> None:
        """Make a blob known as a parameter.

        A test model takes the operator that makes it out of its init net, with a warning: the value is the
        trained one's.

        Args:
            param: the blob, as the init net's operator returned it.
            tags: of ``ParameterTags``; with COMPUTED_PARAM it is one that is never trained.

        Raises:
            TypeError: ``param`` is not a blob reference.
        """
        if not isinstance(param, BlobReference):
            raise TypeError(
                f"model {self.name!r}: a parameter is given as the BlobReference that its operator returned, "
                f"got {param!r}"
            )
        name = str(param)
        if name not in self._others:
            self._list(param, _tags(tags))
        if not self.init_params or name in self._others:
            self._leave_to_others(name)
        ops = self.param_init_net.Proto().op
        if name not in self._infos and len(ops) and name in ops[-1].output:
            self._infos[name] = self._info_from_init(param)

    def _list(self, param: Parameter, tags: set[str]) -> None:
        (self._computed_params if ParameterTags.COMPUTED_PARAM in tags else self.params).append(param)
        if ParameterTags.WEIGHT in tags:
            self.weights.append(param)
        if ParameterTags.BIAS in tags:
            self.biases.append(param)

    def _leave_to_others(self, name: str) -> None:
        ops = self.param_init_net.Proto().op
        for index in range(len(ops) - 1, -1, -1):
            if name in ops[index].output:
                warn_user(
                    f"model {self.name!r} shares parameter {name!r} with the model that trains it: "
                    f"{ops[index].type} is taken out of its init net, which would overwrite the trained value"
                )
                self._infos[name] = self._info_from_init(param=BlobReference(name, self.param_init_net))
                del ops[index]
                return

    def get_param_info(self, param: BlobReference) -> ParameterInfo | None:
        """Return what is known about a parameter, None if it is not one of this model's.

        Raises:
            TypeError: ``param`` is not a blob reference.
        """
        if not isinstance(param, BlobReference):
            raise TypeError(f"model {self.name!r}: a parameter is given as a BlobReference, got {param!r}")
        info = self._infos.get(str(param))
        if info is None and (param in self.params or param in self._computed_params):
            info = self._infos[str(param)] = self._info_from_init(param)
        return info

    def _info_from_init(self, param: Parameter) -> ParameterInfo:
        name = str(param)
        for op in reversed(self.param_init_net.Proto().op):
            if name in op.output:
                shape = arguments(op).get("shape") if not op.input else None
                return ParameterInfo(None, param, shape=shape)
        return ParameterInfo(None, param)

    def GetParams(self, namescope: str | None = None, top_scope: bool = False) -> list[BlobReference]:
        """Return the trained parameters in a name scope.

        Args:
            namescope: the scope; "" is all; None: the current one.
            top_scope: take only the first level of the scope.
        """
        scope = _scope(namescope)
        if top_scope:
            first, separator, _ = scope.partition(SEPARATOR)
            scope = first + separator
        return _within(self.params, scope)

    def GetComputedParams(self, namescope: str | None = None) -> list[BlobReference]:
        """Return the parameters that operators compute, such as running means, in a name scope (as ``GetParams``)."""
        return _within(self._computed_params, _scope(namescope))

    def GetAllParams(self, namescope: str | None = None) -> list[BlobReference]:
        """Return trained and computed parameters in a name scope (as ``GetParams``)."""
        return self.GetParams(namescope) + self.GetComputedParams(namescope)

    def Validate(self) -> None:
        """Check the lists of parameters.

        Raises:
            NetError: some are listed twice; the message names each once.
        """
        twice = {str(p) for p, n in Counter([*self.params, *self._computed_params]).items() if n > 1}
        if twice:
            made = [op.debug_info for op in self.InitProto().op if op.debug_info and not twice.isdisjoint(op.output)]
            raise NetError(
                f"model {self.name!r}: duplicate parameters {sorted(twice)}; a layer of the same name was made twice "
                "in one name scope, or AddParameter was called twice"
                + (f"; their values are made at {', '.join(dict.fromkeys(made))}" if made else "")
            )

    def GetDevices(self) -> list[int]:
        """Return the ids of the devices that the model was parallelised over.

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


def _tags(tags: Tags) -> set[str]:
    if tags is None:
        return set()
    if isinstance(tags, str):
        return {tags}
    if isinstance(tags, Iterable):
        return set(tags)
    raise TypeError(f"a parameter's tags are a string of ParameterTags or several, got {tags!r}")


def _scope(namescope: str | None) -> str:
    if namescope is None:
        return CurrentNameScope()
    return namescope if not namescope or namescope.endswith(SEPARATOR) else namescope + SEPARATOR


def _within(params: Sequence[Parameter], scope: str) -> list[Parameter]:
    return [p for p in params if str(p).startswith(scope)] if scope else list(params)
