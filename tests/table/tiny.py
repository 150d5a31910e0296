"""Tiny random checkpoints of every type of model that the installed transformers can train on text.

`tiny_checkpoint("qwen3_next", folder)` makes one by a general rule: the type's default config, each field shrunk by
what its name says it is, every kind of layer kept. What the rule cannot know stands in `EXCEPTIONS`, with reasons.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.conftest import tiny_tokenizer

HIDDEN = 32
HEADS = 4
EXPERTS = 4
VOCABULARY = 320
POSITIONS = 512
MOST_LAYERS = 12

# The hidden size of another part of the model.
_OTHERS_HIDDEN = (
    r"^(out|text|audio|vision|encoder|thinker|backbone|image_text|decoder)_hidden_size$|^adapter_(out|in)_dim$"
    r"|^output_proj_dims$|^image_token_embed_dim$|^projector_(input|output)_dim$|^adapter_input_size$|^output_dim$"
)

# What a field is, by its name; the first that matches says it. Values are functions of the default and of what
# `Scale` knows about the whole config.
_RULES: tuple[tuple[str, str], ...] = (
    (r"(_token_id|_token_index|_token_ids|to[ik]_?id|_start_id|_end_id|_patch_id|_newline_id|codec_\w+_id)$", "token"),
    (_OTHERS_HIDDEN, "hidden"),
    (r"(channels|channel|channel_size|hidden_sizes)$|^embed_dim$", "channels"),
    (r"^num_filters$", "filters"),
    (r"^(num_embeddings|codebook_size)$", "codes"),
    (r"vocab_size_per_layer_input|(^|_)(vocab_size|vocab|vocabulary)$|vocab_size|_vocab_size_base$", "vocabulary"),
    (r"^(max_position_embeddings|n_positions|max_seq_len|max_sequence_length|n_ctx|context_length)$", "positions"),
    (r"^(max_target_positions|original_max_position_embeddings|model_max_length|rel_extent)$", "positions"),
    (r"(sliding_window|sliding_window_size|attention_window_size|local_attention|attention_chunk_size)$", "window"),
    (r"(experts_per_tok(en)?|moe_top_?k|moe_k|top_k_experts)$", "chosen_experts"),
    (r"(shared_experts|num_shared_experts|n_group|topk_group|num_expert_group)$", "one"),
    (r"(num_experts|routed_experts|local_experts|moe_num_experts|zero_expert_num)$", "experts"),
    (r"(rank|kv_lora|laurel)$|lora_rank|hc_lowrank", "rank"),
    (
        r"^(conf_)?(num_)?(hidden_|encoder_|decoder_|global_|lstm_|add_)?layers$|^(num_layers_per_stack|n_layer|depth|num_blocks|resampler_depth)$",
        "layers",
    ),
    (r"(kv_heads|key_value_heads|kv_n_heads|query_groups|kv_head)$", "key_heads"),
    (r"(index_n_heads|heads_per_ngram)$", "few"),
    (r"(^|_)(num_)?(attention_)?heads$|^n_head$|(_n_heads|_num_heads|num_key_heads|num_value_heads)$", "heads"),
    (r"^rotary_dim$", "rotated"),
    (r"^qk_head_dim$", "both"),
    (r"(head_dim|headdim|d_head|dim_head|d_kv|head_size|kv_channels|qk_nope_head_dim)$", "head_width"),
    (r"(n_groups|ngroups)$", "groups"),
    (r"(state_size|d_state)$", "state"),
    (r"index_topk$", "window"),
    (r"(dt_rank|time_step_rank)$", "width"),
    (r"num_position_embeddings$", "grid"),
    (r"(_size|_dim|_width|_ssm|d_model|n_embd|d_ff|dff|dim_ff|d_inner|n_inner|_features|d_rel)$|^d_", "width"),
)
# Sizes that are no widths of a layer: of pictures, sounds, kernels, windows, blocks.
_NO_WIDTH = re.compile(
    r"image|patch|kernel|window|chunk|batch|block|merge|crop|conv_|temporal|spatial|frame|group_size|ngram_size|crop"
    r"|type_vocab|codebook|stride|pool|resolution|tile|model_parallel|scale|max_|layer_group|input_feat|rotary|task|_rate"
)


@dataclasses.dataclass(frozen=True)
class Scale:
    """What of the default config decides how its other fields shrink."""

    fields: dict[str, Any]
    hidden: int
    small: int = HIDDEN

    def width(self, name: str, value: int) -> int:
        """A multiple of the hidden size stays one."""
        times = value / self.hidden if self.hidden else 0
        if times in (0.125, 0.25, 0.5, 1, 2, 3, 4):
            return int(self.small * times)
        return value if value <= self.small else 2 * self.small

    def head_width(self, name: str, value: int) -> int:
        """As wide as the heads' part of a multiple of the hidden size, where they are."""
        heads = _heads_beside(name, self.fields)
        if heads and self.hidden and (value * heads) % self.hidden == 0 and value * heads <= 4 * self.hidden:
            return value * heads // self.hidden * self.small // HEADS
        return min(value, 16 if "head_dim" in name and name in ("head_dim", "attention_head_dim") else 8)


def _heads_beside(name: str, fields: dict[str, Any]) -> int:
    """The number of heads of which `name` is the width: `mamba_n_heads` of `mamba_d_head`."""
    prefix = re.split(r"attention_head_dim|head|d_kv|d_head|dim_head|kv_channels|d_$", name)[0].removesuffix("d_")
    prefix = re.sub(r"(key_|value_)$", "", prefix)
    for heads in ("n_heads", "num_heads", "num_attention_heads", "n_head", "heads"):
        if isinstance(found := fields.get(prefix + heads), int):
            return found
    return 0


# Fields that some types leave to the checkpoint, and of which their models have no default.
_MISSING = {
    "head_dim": HIDDEN // HEADS,
    "num_key_value_heads": HEADS,
    "num_experts": EXPERTS,
    "top_k_experts": 2,
    "moe_intermediate_size": 2 * HIDDEN,
    "n_routed_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
}

# type (or type.part): fields that the rule gets wrong, or that it cannot reach.
_VOCABULARY_MAP = {"<image>": 300, "<|extra_200|>": 301, "<|visual token 000000|>": 302, "IMGIMGA": 303}
_TOKENIZERS = ("acoustic_tokenizer_encoder_config", "semantic_tokenizer_encoder_config")
_SLIDING_HEADS = {"head_dim": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
_SLIDING_HEADS |= {"qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 16}
_DOTS = {"per_layer_config": {2: _SLIDING_HEADS}}
_ROPE = {"rope_type": "default", "rope_theta": 1e4}
_ROPES = {kind: _ROPE for kind in ("sliding_attention", "full_attention")}
_STEP = {"layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2, "sliding_window": 8}
_STEP |= {"rope_parameters": _ROPES}
_SPARSE = {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8}
_SPARSE |= {"head_dim": 8, "indexer_budget": 64, "indexer_compress_ratio": 4}
EXCEPTIONS: dict[str, dict[str, Any]] = {
    # Their checkpoints say what the default config leaves open.
    "bamba": {"attn_layer_indices": [1]},
    "chameleon": {"vocabulary_map": _VOCABULARY_MAP, "vq_config": {"channel_multiplier": (1, 1)}},
    "cohere_compass": {"text_config": {"rope_parameters": _ROPES}},
    "cohere_compass_text": {"rope_parameters": _ROPES},
    "dbrx": {"attn_config": {"rope_theta": 1e4, "clip_qkv": 8.0}},
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense", "sparse"] + ["sparse"] * 10}},
    "emu3": {"vocabulary_map": _VOCABULARY_MAP, "vq_config": {"channel_multiplier": (1, 1)}},
    "granite4_vision": {
        "deepstack_layer_map": [[-1, 0]],
        "downsample_rate": "4/8",
        "vision_config": {"hidden_size": 64},
    },
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"], "num_hidden_layers": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
    "ernie4_5_vl_moe": {"text_config": {"rope_parameters": _ROPE | {"mrope_section": [1, 1, 2]}}},
    "qwen3_omni_moe": {
        "talker_config": {"spatial_merge_size": 2, "text_config": {"shared_expert_intermediate_size": 64}}
    },
    "qwen4_exp": {"text_config": _SPARSE},
    "qwen4_exp_text": _SPARSE,
    "inkling_mm_model": {"vision_config": {"patch_size": 2, "num_hidden_layers": 4}, "audio_config": {"n_mel_bins": 4}},
    "kyutai_speech_to_text": {"codec_config": {"upsample_groups": 1}},
    "mllama": {"vision_config": {"image_size": 56}, "text_config": {"cross_attention_layers": [1]}},
    "janus": {"vq_config": {"channel_multiplier": (1, 1)}},
    # Sizes that have to fit each other in ways of their own.
    "dots3_note_text": _DOTS,
    "dots3_note": {"text_config": _DOTS},
    "vibevoice_asr": {part: {"depths": (1,) * 3, "downsampling_ratios": (2, 2)} for part in _TOKENIZERS},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_d_head": 16, "mamba_n_heads": 4},
    "longcat_flash": {"head_dim": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    # Its layers are passed through several times: 2 stacks of 2 layers, 2 x (3 + 1) passes.
    "hrm_text": {"num_layers_per_stack": 2, "num_hidden_layers": 16},
    "molmo2": {"adapter_config": {"vision_feature_layer": [1, 0]}},
    "step3p7": {"text_config": _STEP},
    # Its tied weights are those of the second shared layer and after, so there must be two.
    "zamba": {"layers_block_type": ["linear_attention", "hybrid"] * 2, "num_hidden_layers": 4},
}

# Types of which no model can be made here: why.
UNBUILT: dict[str, str] = {
    **dict.fromkeys(("fast_vlm", "gemma3n", "perception_lm"), "its vision tower is of the library timm, not installed"),
    "gemma4_assistant": "drafts for another model, whose states it reads; it is no language model alone",
    "gemma4_unified_assistant": "drafts for another model, whose states it reads; it is no language model alone",
}


def tiny_config(model_type: str) -> Any:
    """The shrunk default config of a type, for the tests' tiny tokenizer.

    Args:
        model_type: transformers' name of it.

    Raises:
        KeyError: transformers has no such type.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    given = EXCEPTIONS.get(model_type, {})
    config = shrink(CONFIG_MAPPING[model_type], given)
    text = config.get_text_config(decoder=True)
    tokenizer = tiny_tokenizer()
    for one in {id(config): config, id(text): text}.values():
        one.eos_token_id, one.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
        one.bos_token_id = tokenizer.convert_tokens_to_ids("<|im_start|>") if _wants_bos(one) else None
    return config


def _wants_bos(config: Any) -> bool:
    kinds = [str(field.type) for field in dataclasses.fields(config) if field.name == "bos_token_id"]
    return bool(kinds) and "None" not in kinds[0] and "Optional" not in kinds[0]


def shrink(kind: type, given: dict[str, Any], default: Any = None) -> Any:
    """A config of a class, shrunk from its defaults, or from those of `default`, its parts likewise.

    Args:
        kind: A subclass of `PreTrainedConfig`.
        given: Fields that are known: taken as they are, those of parts as dicts.
        default: An instance with other values than the class's.
    """
    from transformers import PreTrainedConfig

    names = {*getattr(kind, "sub_configs", {}), *getattr(kind, "sub_configs_defaults", {})}
    whole = {name: value for name, value in given.items() if name not in names}
    parts = {name: value for name, value in given.items() if name in names}
    default = default if default is not None else kind()
    fields = {name: _raw(default, name) for name in _own_fields(default)}
    scale = Scale(fields, _hidden_of(default))
    changed: dict[str, Any] = dict(_flat(fields, scale))
    for name, value in vars(default).items():
        if isinstance(value, PreTrainedConfig):
            changed[name] = shrink(type(value), parts.get(name, {}), value)
        elif name == "rope_parameters" and isinstance(value, dict):
            if "vocab_size" in fields and "mrope_section" not in value and _reads_sections(kind):
                value = value | {"mrope_section": [1]}  # its model has a default of its own, for the full width
            changed[name] = _rope(value, changed.get("head_dim", HIDDEN // HEADS))
    changed |= _fixed(default)
    return _with_layers(kind, default, changed, whole, scale)


def _own_fields(config: Any) -> Iterator[str]:
    from transformers import PreTrainedConfig

    common = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    for field in dataclasses.fields(config):
        stored = config.attribute_map.get(field.name, field.name)
        if field.init and field.name not in common and stored in vars(config):
            yield field.name


def _rope(values: dict[str, Any], width: int) -> dict[str, Any]:
    """Rope's parameters with sections (of time, height and breadth) that fill a head's width, by layer type or not."""
    found = {name: _rope(value, width) if isinstance(value, dict) else value for name, value in values.items()}
    if "mrope_section" in found:
        pairs = int(width * found.get("partial_rotary_factor", 1)) // 2
        each = max(pairs // 3, 1)
        found["mrope_section"] = [each, each, pairs - 2 * each]
    return found


def _reads_sections(kind: type) -> bool:
    """Whether the model of a config has rotary sections of time, height and breadth."""
    file = Path(inspect.getfile(kind))
    model = file.with_name(file.name.replace("configuration_", "modeling_"))
    return model.is_file() and '.get("mrope_section"' in model.read_text(encoding="utf-8")


def _raw(config: Any, name: str) -> Any:
    """A field's value for the whole model, also where layers have others: reading it would raise there."""
    return vars(config).get(config.attribute_map.get(name, name))


def _hidden_of(config: Any) -> int:
    for name in ("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "embedding_dim", "emb_dim", "hidden_dim"):
        if isinstance(found := _raw(config, name), int):
            return found
    return 0


def _fixed(config: Any) -> dict[str, Any]:
    """What a causal LM for tests needs of any config that knows it."""
    wanted = {"is_decoder": True, "initializer_range": 0.1, "init_std": 0.1}
    return {name: value for name, value in wanted.items() if name in set(_own_fields(config))}


def _flat(fields: dict[str, Any], scale: Scale) -> Iterator[tuple[str, Any]]:
    tokens = iter(range(VOCABULARY - 1, 0, -1))
    for name, value in fields.items():
        if value is None and name in _MISSING:
            yield name, _MISSING[name]
        elif isinstance(value, list | tuple) and re.search(r"channels|hidden_sizes|_size$|^embed_dim", name):
            yield name, type(value)(_small(name, one, scale, tokens) if isinstance(one, int) else one for one in value)
        elif isinstance(value, int) and not isinstance(value, bool):
            yield name, _small(name, value, scale, tokens)


def _small(name: str, value: int, scale: Scale, tokens: Iterator[int]) -> int:
    rule = next((rule for pattern, rule in _RULES if re.search(pattern, name)), "")
    if value <= 0 or (rule == "width" and _NO_WIDTH.search(name)):
        return value
    if rule == "token":
        return value if value < 256 else next(tokens)
    if rule in ("width", "head_width"):
        return getattr(scale, rule)(name, value)
    if rule == "key_heads":
        heads = scale.fields.get("num_attention_heads")
        return HEADS if value == heads else min(value, 2)
    most = {
        "vocabulary": VOCABULARY if value > 16 else value,
        "positions": POSITIONS,
        "window": 64,
        "chosen_experts": 2,
        "one": 1,
        "experts": EXPERTS,
        "rank": 16,
        "few": 2,
        "hidden": HIDDEN,
        "channels": HIDDEN,
        "filters": 2,
        "codes": 256,
        "heads": HEADS,
        "groups": 2,
        "rotated": HIDDEN // HEADS,
        "both": 16,  # qk_nope_head_dim + qk_rope_head_dim
        "state": 8,
        "grid": 16,
    }
    return min(value, most.get(rule, value))


def _with_layers(kind: type, default: Any, changed: dict[str, Any], given: dict[str, Any], scale: Scale) -> Any:
    """The config with as few layers as keep each kind of layer once, and two at least."""
    counts = [name for name in _own_fields(default) if _is_rule(name, "layers") and _count(default, name) > 2]
    total = _layers_of(default)
    overrides = _overrides(default)
    lists = {name: list(_raw(default, name)) for name in _own_fields(default) if _is_layers(default, name, total)}
    rising = {name for name, values in lists.items() if _rises(values, total)}
    if overrides:
        lists["per_layer_config"] = [sorted(overrides.get(number, {})) for number in range(total)]
    chosen = _choose({name: values for name, values in lists.items() if name not in rising}, total)
    if chosen is not None:
        shared = getattr(default, "num_kv_shared_layers", 0)
        repeated = chosen * 2 if shared else chosen
        for name, values in lists.items():
            before = changed.get(name, values)  # their numbers may have shrunk already
            changed[name] = _renumbered(values, repeated) if name in rising else [before[one] for one in repeated]
        if overrides:
            small = {place: dict(_overridden(overrides.get(one, {}), scale)) for place, one in enumerate(repeated)}
            changed["per_layer_config"] = {place: values for place, values in small.items() if values}
        if shared:
            changed["num_kv_shared_layers"] = len(chosen)
        return kind(**(changed | dict.fromkeys(counts, len(repeated)) | _starts(default, len(repeated)) | given))
    wanted = _kinds(default)
    for layers in range(2, MOST_LAYERS):
        small = kind(**(changed | dict.fromkeys(counts, layers) | _starts(default, layers) | given))
        if wanted <= _kinds(small):
            break
    return small


def _overrides(config: Any) -> dict[int, dict[str, Any]]:
    """Fields that single layers have otherwise than the whole, by the layer's number."""
    if not getattr(config, "is_heterogeneous", False):
        return {}
    return {int(number): values for number, values in config.to_dict()["per_layer_config"].items()}


def _overridden(fields: dict[str, Any], scale: Scale) -> Iterator[tuple[str, Any]]:
    whole = dataclasses.replace(scale, fields=scale.fields | fields)
    common = dict(_flat({name: scale.fields.get(name) for name in fields}, scale))
    for name, value in _flat(fields, whole):
        # Two values that shrink to one would no longer be two.
        same = isinstance(value, int) and value == common.get(name) and fields[name] != scale.fields[name]
        yield name, (value * 2 if fields[name] > scale.fields[name] else value // 2) if same else value


def _is_rule(name: str, rule: str) -> bool:
    return next((one for pattern, one in _RULES if re.search(pattern, name)), "") == rule


def _count(config: Any, name: str) -> int:
    value = _raw(config, name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _layers_of(config: Any) -> int:
    for name in ("num_hidden_layers", "n_layers", "num_layers", "depth"):
        if isinstance(found := _raw(config, name), int):
            return found
    return 0


def _is_layers(config: Any, name: str, total: int) -> bool:
    value = _raw(config, name)
    return isinstance(value, list | tuple) and len(value) == total > 2


def _rises(values: list[Any], total: int) -> bool:
    """Whether these are numbers of layers."""
    return all(isinstance(one, int) for one in values) and values == sorted(set(values)) and max(values) < total


def _choose(lists: dict[str, list[Any]], total: int) -> list[int] | None:
    """Numbers of layers that show every value of every list; None without lists."""
    if not lists:
        return None
    seen: set[tuple[str, str]] = set()
    chosen = []
    for number in range(total):
        values = {(name, str(each[number])) for name, each in lists.items()}
        if values - seen:
            seen |= values
            chosen.append(number)
    while len(chosen) < 2:
        chosen = sorted({*chosen, next(number for number in range(total) if number not in chosen)})
    return chosen


def _renumbered(values: list[int], chosen: list[int]) -> list[int]:
    return [place for place, number in enumerate(chosen) if number in values]


def _starts(config: Any, layers: int) -> dict[str, Any]:
    """Numbers of layers in other fields: how many come first without experts, where something begins."""
    found: dict[str, Any] = {}
    for name in _own_fields(config):
        value = _raw(config, name)
        if re.search(r"first_k_dense_replace|num_dense_layers", name):
            found[name] = min(value, 1)
        elif name == "mlp_only_layers":
            found[name] = value[:1]
        elif re.search(
            r"(layer_indexes|_indexes|_indices|_layer_ids|cross_attention_layers|target_layers)$", name
        ) and (isinstance(value, list | tuple) and value and _layers_of(config)):
            found[name] = sorted({one * layers // _layers_of(config) for one in value})
    return found


def _kinds(config: Any) -> set[tuple[str, str]]:
    names = ("layer_types", "mlp_layer_types", "layers_block_type", "layers_num_experts", "attention_layers")
    values = {name: getattr(config, name, None) or [] for name in names}
    return {(name, str(one) if isinstance(one, str) else str(one > 1)) for name, each in values.items() for one in each}


def model_types() -> tuple[str, ...]:
    """Types with a causal LM, or a model that answers in text, in transformers' order; without `NOT_TRAINED`."""
    from transformers.models.auto import modeling_auto as auto

    from hftune.models.classes import NOT_TRAINED

    every = [
        *auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        *auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        *auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    ]
    return tuple(name for name in dict.fromkeys(every) if name not in NOT_TRAINED)


def model_class(model_type: str) -> Any:
    """The class whose name stands in a published checkpoint of a type: that of the whole, where there is one."""
    import transformers
    from transformers.models.auto import modeling_auto as auto

    tables = ("IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "CAUSAL_LM")
    names = [getattr(auto, f"MODEL_FOR_{table}_MAPPING_NAMES").get(model_type) for table in tables]
    return getattr(transformers, next(name for name in names if name))


def tiny_checkpoint(model_type: str, folder: Path, **changes: Any) -> Path:
    """A random model of a type with the tests' tokenizer and chat template, saved in `folder`.

    The same type gives the same weights. Fewer than a million parameters, in fp32.

    Args:
        model_type: One of `model_types()`.
        folder: Made if need be.
        changes: Fields of its config (not of its parts) to give other values.
    """
    import torch

    config = tiny_config(model_type)
    for name, value in changes.items():
        setattr(config, name, value)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = model_class(model_type)(config).float()
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    if model_type == "qwen2_5_omni":  # the voices of its talker are a file of their own, which it wants when it loads
        torch.save({}, folder / "spk_dict.pt")
    return folder
