"""The parts of a MetaNetDef: nets, plans and lists of blobs by key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from netbuilder.caffe2.missing import names_of
from netbuilder.exchange.predictor_exporter import PredictorExportMeta, get_meta_net_def
from netbuilder.graph.blob import blob_name
from netbuilder.proto import Argument, BlobError, MetaNetDef, NetDef, NetError, PlanDef

__all__ = [
    "AddBlobs",
    "AddModelIdArg",
    "AddNet",
    "AddPlan",
    "GetApplicationSpecificInfo",
    "GetApplicationSpecificInfoDict",
    "GetArgumentByName",
    "GetBlobs",
    "GetBlobsByTypePrefix",
    "GetBlobsOrder",
    "GetNet",
    "GetNetOriginal",
    "GetPlan",
    "GetPlanOriginal",
    "ReplaceBlobs",
    "SetAOTConfig",
    "SetBlobsOrder",
    "SetPreLoadBlobs",
    "SetRequestOnlyEmbeddings",
    "SetTensorBoundShapes",
    "create_predict_init_net",
    "create_predict_net",
    "get_comp_name",
    "to_first_match_dict",
]

__getattr__ = names_of(__name__)

_MODEL_ID = "model_id"


def get_comp_name(string: str, name: str | None) -> str:
    """Return a key with the predictor's name, if any, as its suffix."""
    return f"{string}_{name}" if name else string


def to_first_match_dict(kv_list: Iterable[Any]) -> dict[str, Any]:
    """Return the values of entries by key; the first one if a key occurs twice."""
    found: dict[str, Any] = {}
    for entry in kv_list:
        found.setdefault(entry.key, entry.value)
    return found


def create_predict_net(predictor_export_meta: PredictorExportMeta) -> NetDef:
    """Return the predict net of the file."""
    return _made(predictor_export_meta, predictor_export_meta.predict_net_name())


def create_predict_init_net(ws: Any, predictor_export_meta: PredictorExportMeta) -> NetDef:
    """Return the net that creates blobs of the right shapes; ``ws`` is ignored."""
    return _made(predictor_export_meta, predictor_export_meta.predict_init_name())


def _made(meta: PredictorExportMeta, key: str) -> NetDef:
    net: NetDef = to_first_match_dict(get_meta_net_def(meta).nets)[key]
    return net


# Nets and plans.


def AddNet(meta_net_def: MetaNetDef, net_name: str, net_def: NetDef) -> None:
    """Append a net under a key."""
    meta_net_def.nets.add(key=net_name).value.CopyFrom(net_def)


def AddPlan(meta_net_def: MetaNetDef, plan_name: str, plan_def: PlanDef) -> None:
    """Append a plan under a key."""
    meta_net_def.plans.add(key=plan_name).value.CopyFrom(plan_def)


def GetNetOriginal(meta_net_def: MetaNetDef, key: str) -> NetDef | None:
    """Return the first net under a key, or None."""
    return to_first_match_dict(meta_net_def.nets).get(key)


def GetPlanOriginal(meta_net_def: MetaNetDef, key: str) -> PlanDef | None:
    """Return the first plan under a key, or None."""
    return to_first_match_dict(meta_net_def.plans).get(key)


def GetNet(meta_net_def: MetaNetDef, key: str) -> NetDef | None:
    """Return the first net under a key, or None; the model id is set as its argument."""
    net = GetNetOriginal(meta_net_def, key)
    if net is not None:
        AddModelIdArg(meta_net_def, net)
    return net


def GetPlan(meta_net_def: MetaNetDef, key: str) -> PlanDef | None:
    """Return the first plan under a key, or None; the model id is set as an argument of its nets."""
    plan = GetPlanOriginal(meta_net_def, key)
    for net in plan.network if plan is not None else ():
        AddModelIdArg(meta_net_def, net)
    return plan


def GetArgumentByName(net_def: NetDef, arg_name: str) -> Argument | None:
    """Return a net's argument of this name, or None."""
    return next((argument for argument in net_def.arg if argument.name == arg_name), None)


def AddModelIdArg(meta_net_def: MetaNetDef, net_def: NetDef) -> None:
    """Set a net's argument ``model_id`` to the model id, if that is a whole number."""
    text = meta_net_def.modelInfo.modelId
    if not text.isdigit():
        return
    argument = GetArgumentByName(net_def, _MODEL_ID) or net_def.arg.add(name=_MODEL_ID)
    argument.i = int(text)


# Blobs.


def AddBlobs(meta_net_def: MetaNetDef, blob_name: str, blob_def: Iterable[Any]) -> None:
    """Append blobs to the list under a key, which is created if it does not exist."""
    entry = _blobs(meta_net_def, blob_name)
    (entry if entry is not None else meta_net_def.blobs.add(key=blob_name)).value.extend(_names(blob_def))


def ReplaceBlobs(meta_net_def: MetaNetDef, blob_name: str, blob_def: Iterable[Any]) -> None:
    """Replace the list under a key.

    Raises:
        NetError: there is no such key.
    """
    entry = _blobs(meta_net_def, blob_name)
    if entry is None:
        raise NetError(
            f"the MetaNetDef has no blobs under {blob_name!r}, only {[each.key for each in meta_net_def.blobs]}"
        )
    entry.value[:] = _names(blob_def)


def GetBlobs(meta_net_def: MetaNetDef, key: str) -> Sequence[str]:
    """Return the list under a key; [] if there is none."""
    entry = _blobs(meta_net_def, key)
    return list(entry.value) if entry is not None else []


def GetBlobsByTypePrefix(meta_net_def: MetaNetDef, blob_type_prefix: str) -> list[str]:
    """Return the blobs of all lists whose keys begin with the prefix, each once."""
    lists = (entry.value for entry in meta_net_def.blobs if entry.key.startswith(blob_type_prefix))
    return list(dict.fromkeys(name for names in lists for name in names))


def _blobs(meta_net_def: MetaNetDef, key: str) -> Any:
    return next((entry for entry in meta_net_def.blobs if entry.key == key), None)


def _names(blobs: Iterable[Any]) -> list[str]:
    if isinstance(blobs, (str, bytes)):
        raise BlobError(f"the blobs must be a list, got {blobs!r}")
    return [blob_name(blob) for blob in blobs]


# The rest.


def SetBlobsOrder(meta_net_def: MetaNetDef, blobs_order: Iterable[str]) -> None:
    """Set the order in which blobs are loaded."""
    meta_net_def.blobsOrder[:] = list(blobs_order)


def GetBlobsOrder(meta_net_def: MetaNetDef) -> Sequence[str]:
    """Return the order in which blobs are loaded."""
    return meta_net_def.blobsOrder


def SetPreLoadBlobs(meta_net_def: MetaNetDef, pre_load_blobs: Iterable[str]) -> None:
    """Set the blobs that are loaded first."""
    meta_net_def.preLoadBlobs[:] = list(pre_load_blobs)


def SetRequestOnlyEmbeddings(meta_net_def: MetaNetDef, request_only_embeddings: Iterable[str]) -> None:
    """Set the embeddings that only requests use."""
    meta_net_def.requestOnlyEmbeddings[:] = list(request_only_embeddings)


def SetTensorBoundShapes(meta_net_def: MetaNetDef, tensor_bound_shapes: Any) -> None:
    """Set the bounds of shapes, a message TensorBoundShapes."""
    meta_net_def.tensorBoundShapes.CopyFrom(tensor_bound_shapes)


def SetAOTConfig(meta_net_def: MetaNetDef, aot_config: Any) -> None:
    """Set the options of ahead-of-time compilation, a message AOTConfig; stored only."""
    meta_net_def.aotConfig.CopyFrom(aot_config)


def GetApplicationSpecificInfo(meta_net_def: MetaNetDef, key: str) -> str | None:
    """Return the application's value under a key, or None."""
    return GetApplicationSpecificInfoDict(meta_net_def).get(key)


def GetApplicationSpecificInfoDict(meta_net_def: MetaNetDef) -> dict[str, str]:
    """Return the application's values by key."""
    return {entry.key: entry.value for entry in meta_net_def.applicationSpecificInfo}
