"""The models: each with random weights, at real width where that fits, with two layers if it is a language model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Case", "all_cases"]

Built = tuple[Any, tuple[Any, ...]]


@dataclass(frozen=True)
class Case:
    """One model, exported in one way.

    Args:
        name: ``library/model``.
        build: returns the module, in prediction, and its example inputs.
        dynamo: which exporter: of ``torch.export`` (true), or of TorchScript.
        opset: version of ONNX's operators.
    """

    name: str
    build: Callable[[], Built]
    dynamo: bool
    opset: int

    @property
    def title(self) -> str:
        return f"{self.name}{'' if self.dynamo else ' script'} {self.opset}"


_TORCHVISION = {
    "alexnet": 64, "vgg11_bn": 32, "squeezenet1_1": 64, "resnet18": 64, "resnet50": 64, "wide_resnet50_2": 64,
    "resnext50_32x4d": 64, "densenet121": 64, "googlenet": 64, "inception_v3": 80, "shufflenet_v2_x1_0": 64,
    "mnasnet1_0": 64, "mobilenet_v2": 64, "mobilenet_v3_small": 64, "mobilenet_v3_large": 64, "efficientnet_b0": 64,
    "efficientnet_v2_s": 64, "regnet_x_400mf": 64, "regnet_y_400mf": 64, "convnext_tiny": 64, "vit_b_16": 224,
    "vit_b_32": 224, "swin_t": 64, "swin_v2_t": 64, "maxvit_t": 224,
}  # fmt: skip
_SEGMENTATION = {"fcn_resnet50": 64, "deeplabv3_resnet50": 64, "deeplabv3_mobilenet_v3_large": 64,
                 "lraspp_mobilenet_v3_large": 64}  # fmt: skip
_VIDEO = {"r3d_18": 48, "mc3_18": 48, "r2plus1d_18": 48, "s3d": 224, "swin3d_t": 64, "mvit_v1_b": 224, "mvit_v2_s": 224}
_DETECTION = ("fasterrcnn_resnet50_fpn", "fasterrcnn_mobilenet_v3_large_320_fpn", "maskrcnn_resnet50_fpn",
              "keypointrcnn_resnet50_fpn", "retinanet_resnet50_fpn", "fcos_resnet50_fpn", "ssd300_vgg16",
              "ssdlite320_mobilenet_v3_large")  # fmt: skip
_TIMM = {
    "resnet26d": 64, "resnetv2_50": 64, "resnest14d": 64, "seresnet18": 64, "ecaresnet26t": 64, "skresnet18": 64,
    "res2net50_26w_4s": 64, "dla34": 64, "dpn48b": 64, "hrnet_w18_small": 64, "vovnet39a": 64, "cspresnet50": 64,
    "darknet53": 64, "mobilenetv3_small_100": 64, "mobilenetv4_conv_small": 64, "mobileone_s0": 64, "fbnetc_100": 64,
    "tinynet_e": 64, "ghostnet_100": 64, "lcnet_050": 64, "repvgg_a0": 64, "rexnet_100": 64, "hardcorenas_a": 64,
    "efficientnet_b0": 64, "tf_efficientnet_b0": 64, "tf_efficientnetv2_b0": 64, "mixnet_s": 64, "spnasnet_100": 64,
    "convnext_atto": 64, "convnextv2_atto": 64, "convmixer_768_32": 32, "edgenext_xx_small": 64,
    "inception_next_atto": 64,
    "vit_tiny_patch16_224": 224, "vit_small_patch32_224": 224, "deit_tiny_patch16_224": 224,
    "deit3_small_patch16_224": 224, "beit_base_patch16_224": 224, "eva02_tiny_patch14_224": 224, "cait_xxs24_224": 224,
    "xcit_nano_12_p16_224": 224, "swin_tiny_patch4_window7_224": 224, "swinv2_cr_tiny_224": 224,
    "swin_s3_tiny_224": 224, "twins_svt_small": 224, "pvt_v2_b0": 64, "poolformer_s12": 64, "poolformerv2_s12": 64,
    "caformer_s18": 64, "maxvit_rmlp_pico_rw_256": 256, "maxxvit_rmlp_nano_rw_256": 256, "coatnet_nano_rw_224": 224,
    "coatnet_rmlp_nano_rw_224": 224, "coat_tiny": 224, "mvitv2_tiny": 224, "levit_128s": 224, "mobilevit_xxs": 64,
    "mobilevitv2_050": 64, "efficientformer_l1": 224, "efficientformerv2_s0": 224, "efficientvit_b0": 64,
    "fastvit_t8": 64, "repvit_m0_9": 64, "tiny_vit_5m_224": 224, "crossvit_tiny_240": 240, "convit_tiny": 224,
    "tnt_s_legacy_patch16_224": 224, "visformer_tiny": 224, "volo_d1_224": 224, "mixer_s32_224": 224,
    "gmlp_s16_224": 224, "resmlp_12_224": 224, "pnasnet5large": 96, "nasnetalarge": 96, "nf_resnet26": 64,
    "dm_nfnet_f0": 64, "eca_nfnet_l0": 64, "nf_regnet_b1": 64, "gcresnet33ts": 64, "lambda_resnet26t": 64,
    "botnet26t_256": 256, "halonet26t": 256, "bat_resnext26ts": 256, "sequencer2d_s": 224, "focalnet_tiny_srf": 64,
    "hiera_tiny_224": 224, "davit_tiny": 224, "gcvit_xxtiny": 224, "nest_tiny_jx": 224, "nextvit_small": 64,
    "starnet_s1": 64, "mambaout_femto": 64, "hgnet_tiny": 64, "samvit_base_patch16_224": 224, "swiftformer_xs": 224,
    "shvit_s1": 224, "selecsls42": 64, "tresnet_m": 64, "xception41": 96, "legacy_xception": 96, "inception_v4": 96,
    "inception_resnet_v2": 96, "rdnet_tiny": 64, "ese_vovnet19b_dw": 64, "regnetz_b16": 64, "semnasnet_075": 64,
}  # fmt: skip
_GROUPED = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 1376}
_FULL = {**_GROUPED, "num_key_value_heads": 8}
_GPT_J = {"n_layer": 2, "n_embd": 512, "n_head": 8, "rotary_dim": 32}
_RELATIVE = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
_TOKENS = {"pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2}
_BOTH_WAYS = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 512, "encoder_attention_heads": 8,
              "decoder_attention_heads": 8}  # fmt: skip
_TEXT: dict[str, dict[str, Any]] = {
    "Bert": {},
    "Albert": {"embedding_size": 128},
    "Roberta": {},
    "XLMRoberta": {},
    "Electra": {"embedding_size": 128},
    "Deberta": {**_RELATIVE, "max_relative_positions": 64},
    "DebertaV2": {**_RELATIVE, "position_buckets": 32},
    "ModernBert": {"global_attn_every_n_layers": 2, "local_attention": 16, **_TOKENS},
    "DistilBert": {"dim": 768, "n_layers": 2, "n_heads": 12},
    "MobileBert": {},
    "SqueezeBert": {},
    "MPNet": {},
    "Camembert": {},
    "Ernie": {},
    "ConvBert": {},
    "RoFormer": {},
    "Funnel": {"block_sizes": [1, 1]},
    "FNet": {},
    "XLNet": {"n_layer": 2, "d_model": 256, "n_head": 4},
    "MegatronBert": {"hidden_size": 768, "num_attention_heads": 12},
    "Splinter": {},
    "LayoutLM": {},
    "GPT2": {"n_layer": 2},
    "GPTNeo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]], "hidden_size": 768, "num_heads": 12},
    "GPTNeoX": {"hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048},
    "GPTJ": _GPT_J,
    "CodeGen": _GPT_J,
    "Bloom": {"n_layer": 2, "hidden_size": 256, "n_head": 4},
    "OPT": {"word_embed_proj_dim": 768},
    "Falcon": {"hidden_size": 512, "num_attention_heads": 8},
    "Llama": {**_GROUPED, "num_key_value_heads": 4},
    "Mistral": {**_GROUPED, "head_dim": 64},
    "Qwen2": _GROUPED,
    "Qwen3": _GROUPED,
    "Phi": {"hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048},
    "Phi3": {**_FULL, "pad_token_id": 0},
    "Gemma": {**_GROUPED, "head_dim": 64},
    "Gemma2": {**_GROUPED, "head_dim": 64},
    "StableLm": _FULL,
    "Gemma3Text": {**_GROUPED, "head_dim": 64, "layer_types": ["sliding_attention", "full_attention"]},
    "Olmo": _FULL,
    "Olmo2": {**_FULL, "pad_token_id": 0},
    "SmolLM3": {**_GROUPED, "pad_token_id": 0},
    "Qwen3Moe": {**_GROUPED, "moe_intermediate_size": 256, "num_experts": 4, "num_experts_per_tok": 2},
    "GptOss": {**_GROUPED, "head_dim": 64, "num_local_experts": 4, "num_experts_per_tok": 2},
    "Cohere": _FULL,
    "Starcoder2": _GROUPED,
    "T5": {"num_layers": 2, "num_decoder_layers": 2},
    "MT5": {"num_layers": 2, "num_decoder_layers": 2},
    "Bart": {**_BOTH_WAYS, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048},
    "Pegasus": _BOTH_WAYS,
    "Marian": {**_BOTH_WAYS, "pad_token_id": 0, "decoder_start_token_id": 0},
}
_TOWER = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
_PATCHES = {**_TOWER, "image_size": 32, "patch_size": 8}
_CONVNET = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None, "backbone_config": {
    "model_type": "resnet", "embedding_size": 16, "hidden_sizes": [16, 32, 64, 128], "depths": [1, 1, 1, 1],
    "layer_type": "basic", "out_features": ["stage4"]}}  # fmt: skip
_DETR = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
         "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_queries": 10}  # fmt: skip
_SWIN = {"model_type": "swin", "image_size": 64, "embed_dim": 16, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 4, 8],
         "window_size": 2, "out_features": ["stage1", "stage2", "stage3", "stage4"]}  # fmt: skip
# name: the class of the model, its configuration, its input; small, but with all parts of the real ones
_SIGHT: dict[str, tuple[str, dict[str, Any], str]] = {
    "Whisper": ("WhisperModel", {**_DETR, "num_mel_bins": 16, "max_source_positions": 32, "vocab_size": 1000,
                                 **_TOKENS, "decoder_start_token_id": 1}, "sound"),
    "Wav2Vec2": ("Wav2Vec2Model", {**_TOWER, "conv_dim": [32, 32], "conv_stride": [5, 2], "conv_kernel": [10, 3],
                                   "num_feat_extract_layers": 2, "num_conv_pos_embedding_groups": 4}, "wave"),
    "CLIP": ("CLIPModel", {"text_config": {**_TOWER, "vocab_size": 1000}, "vision_config": _PATCHES,
                           "projection_dim": 32}, "image and words"),
    "Siglip": ("SiglipModel", {"text_config": {**_TOWER, "vocab_size": 1000}, "vision_config": _PATCHES},
               "image and words"),
    "Dinov2": ("Dinov2Model", _PATCHES, "image 32"),
    "DINOv3ViT": ("DINOv3ViTModel", _PATCHES, "image 32"),
    "Detr": ("DetrForObjectDetection", {**_DETR, **_CONVNET}, "image 64"),
    "DeformableDetr": ("DeformableDetrForObjectDetection", {**_DETR, **_CONVNET, "num_feature_levels": 2},
                       "image 128"),
    "RTDetr": ("RTDetrForObjectDetection", {
        "encoder_hidden_dim": 32, "d_model": 32, "num_queries": 10, "decoder_layers": 2, "decoder_attention_heads": 4,
        "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "encoder_attention_heads": 4, "decoder_in_channels": [32] * 3,
        "encoder_in_channels": [32, 64, 128], "backbone_config": {
            "model_type": "rt_detr_resnet", "embedding_size": 16, "hidden_sizes": [16, 32, 64, 128],
            "depths": [1, 1, 1, 1], "layer_type": "basic", "out_features": ["stage2", "stage3", "stage4"]}},
        "image 64"),
    "Segformer": ("SegformerForSemanticSegmentation", {
        "depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 48, 64], "num_attention_heads": [1, 2, 3, 4],
        "decoder_hidden_size": 32}, "image 64"),
    "Mask2Former": ("Mask2FormerForUniversalSegmentation", {
        "backbone_config": _SWIN, "feature_size": 32, "mask_feature_size": 32, "hidden_dim": 32, "num_queries": 10,
        "encoder_feedforward_dim": 64, "dim_feedforward": 64, "encoder_layers": 2, "decoder_layers": 3,
        "num_attention_heads": 4, "use_timm_backbone": False, "use_pretrained_backbone": False}, "image 64"),
    "DepthAnything": ("DepthAnythingForDepthEstimation", {
        "backbone_config": {**_PATCHES, "model_type": "dinov2", "reshape_hidden_states": False,
                            "out_features": ["stage1", "stage2"]},
        "reassemble_hidden_size": 64, "neck_hidden_sizes": [16, 32], "reassemble_factors": [2, 1],
        "fusion_hidden_size": 16, "head_hidden_size": 8, "patch_size": 8}, "image 32"),
    "Upernet": ("UperNetForSemanticSegmentation", {
        "backbone_config": _SWIN, "hidden_size": 32, "auxiliary_in_channels": 64, "use_timm_backbone": False,
        "use_pretrained_backbone": False}, "image 64"),
}  # fmt: skip
_COUNTS_LAYERS = ("n_layer", "num_layers", "n_layers", "encoder_layers", "block_sizes")
_BOTH_EXPORTERS = frozenset({
    "resnet18", "densenet121", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "convnext_tiny", "vit_b_32",
    "swin_t", "fcn_resnet50", "deeplabv3_resnet50", "lraspp_mobilenet_v3_large", "r3d_18", "vit_tiny_patch16_224",
    "swin_tiny_patch4_window7_224", "convnextv2_atto", "mobilevit_xxs", "efficientformer_l1", "coatnet_nano_rw_224",
    "levit_128s", "mixer_s32_224", "dm_nfnet_f0", "eca_nfnet_l0", "xcit_nano_12_p16_224", "pvt_v2_b0",
    "edgenext_xx_small", "focalnet_tiny_srf", "raft_small", "Bert", "Albert", "Roberta", "Electra", "DistilBert",
    "GPT2", "Llama", "Qwen2", "OPT", "T5", "Mistral", "Phi", "ModernBert", "Deberta", "MPNet",
    "Qwen3", "Gemma2", "Gemma3Text", "Phi3", "Olmo2", "SmolLM3", "GPTNeoX", *_SIGHT,
})  # fmt: skip


def all_cases() -> Iterator[Case]:
    """Yield all models, small ones of a library first."""
    named: dict[str, Callable[[], Built]] = {}
    for name, size in _TORCHVISION.items():
        named[f"torchvision/{name}"] = lambda name=name, size=size: _vision(name, size)
    for name, size in _SEGMENTATION.items():
        named[f"torchvision/{name}"] = lambda name=name, size=size: _segmentation(name, size)
    for name, size in _TIMM.items():
        named[f"timm/{name}"] = lambda name=name, size=size: _timm(name, size)
    for name, more in _TEXT.items():
        named[f"transformers/{name}"] = lambda name=name, more=more: _text(name, more)
    for name in _SIGHT:
        named[f"transformers/{name}"] = lambda name=name: _sight(name)
    named["torchvision/raft_small"] = _raft
    for name, size in _VIDEO.items():
        named[f"torchvision/{name}"] = lambda name=name, size=size: _video(name, size)
    for name in _DETECTION:
        named[f"torchvision/{name}"] = lambda name=name: _detection(name)
    for number, (name, build) in enumerate(named.items()):
        both = name.split("/")[1] in _BOTH_EXPORTERS
        if name.split("/")[1] not in _DETECTION or both:
            yield Case(name, build, True, 18)
        if both or name.split("/")[1] in _DETECTION:
            yield Case(name, build, False, (17, 16, 14)[number % 3])
        if both and number % 3 == 0:
            yield Case(name, build, True, 21)


def _images(*shape: int) -> tuple[Any, ...]:
    import torch

    return (torch.rand(*shape),)


def _vision(name: str, size: int) -> Built:
    import torchvision

    more = {"init_weights": False, "aux_logits": False} if name in ("googlenet", "inception_v3") else {}
    return getattr(torchvision.models, name)(weights=None, **more), _images(1, 3, size, size)


def _segmentation(name: str, size: int) -> Built:
    import torchvision

    made = getattr(torchvision.models.segmentation, name)(weights=None, weights_backbone=None)
    return _tensors(made), _images(1, 3, size, size)


def _video(name: str, size: int) -> Built:
    import torchvision

    frames = 16 if name.startswith(("mvit", "s3d")) else 8
    return getattr(torchvision.models.video, name)(weights=None), _images(1, 3, frames, size, size)


def _raft() -> Built:
    import torchvision

    made = torchvision.models.optical_flow.raft_small(weights=None)
    return _tensors(made, num_flow_updates=2), (*_images(1, 3, 128, 128), *_images(1, 3, 128, 128))


def _detection(name: str) -> Built:
    import torch
    import torchvision

    more = {} if name.startswith("ssd") else {"min_size": 128, "max_size": 160}
    made = getattr(torchvision.models.detection, name)(weights=None, weights_backbone=None, **more)
    spread = 0.1 if name.startswith("fcos") else 0.5  # of scores neither near each other nor all 1
    for title, parameter in made.named_parameters():
        if any(part in title for part in ("cls", "class", "objectness")):
            torch.nn.init.normal_(parameter, std=spread)
    return _tensors(_OneImage(made)), _images(3, 128, 160)


def _timm(name: str, size: int) -> Built:
    import timm

    timm.layers.set_exportable(True)
    return timm.create_model(name, pretrained=False), _images(1, 3, size, size)


def _text(name: str, more: dict[str, Any]) -> Built:
    import torch
    import transformers

    layers = (
        {}
        if {"n_layer", "num_layers", "n_layers", "encoder_layers", "block_sizes"} & set(more)
        else {"num_hidden_layers": 2}
    )
    config = getattr(transformers, f"{name}Config")(vocab_size=1000, **layers, **more)
    config.use_cache = False
    for token in ("pad_token_id", "bos_token_id", "eos_token_id"):
        if isinstance(getattr(config, token, None), int) and getattr(config, token) >= 1000:
            setattr(config, token, 0)
    made = getattr(transformers, f"{name}Model")(config)
    words = torch.randint(5, 1000, (1, 16))
    if getattr(config, "is_encoder_decoder", False):
        return _tensors(made, names=("input_ids", "decoder_input_ids")), (words, words[:, :8])
    if name in ("FNet", "XLNet", "Funnel", "Bloom"):
        return _tensors(made, names=("input_ids",)), (words,)
    return _tensors(made, names=("input_ids", "attention_mask")), (words, torch.ones_like(words))


def _sight(name: str) -> Built:
    import torch
    import transformers

    title, options, kind = _SIGHT[name]
    model = getattr(transformers, title)
    options = {**options, **({"decoder_start_token_id": 1} if kind == "sound" else {})}
    made = model(model.config_class(**options))
    if kind == "sound":
        return _tensors(made, names=("input_features", "decoder_input_ids"), use_cache=False), (
            torch.rand(1, 16, 64), torch.randint(5, 1000, (1, 8)))  # fmt: skip
    if kind == "wave":
        return _tensors(made), (torch.rand(1, 800),)
    if kind == "image and words":
        return _tensors(made, names=("input_ids", "pixel_values")), (
            torch.randint(5, 1000, (1, 12)), torch.rand(1, 3, 32, 32))  # fmt: skip
    size = int(kind.split()[1])
    return _tensors(made, names=("pixel_values",)), (torch.rand(1, 3, size, size),)


def _tensors(module: Any, names: tuple[str, ...] = (), **options: Any) -> Any:
    """Return a module whose result is a tuple of the tensors in the given one's."""
    import torch

    class Tensors(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *inputs: Any) -> Any:
            made = self.module(**dict(zip(names, inputs)), **options) if names else self.module(*inputs, **options)
            return tuple(_leaves(made))

    return Tensors()


class _OneImage:
    def __new__(cls, module: Any) -> Any:
        import torch

        class OneImage(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.module = module

            def forward(self, image: Any) -> Any:
                return self.module([image])

        return OneImage()


def _leaves(value: Any) -> Iterator[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict) or hasattr(value, "items"):
        for each in value.values():
            yield from _leaves(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _leaves(each)
