"""Loading the language model of a checkpoint of several parts, without a byte of the others."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.core_model_loading import PrefixChange
from transformers.initialization import no_init_weights
from transformers.utils import CONFIG_NAME, cached_file, logging

from hftune.compat.transformers_patches import names_by
from hftune.distributed import zero
from hftune.logging import notice
from hftune.models.loading.stored_quantisation import check_readable, whole_weights
from hftune.models.parts.language_part import bare_whole, key_mapping, language_config, own_name
from hftune.models.parts.placing import Rules, rules_for
from hftune.models.parts.text_class import make_reward_models
from hftune.models.parts.within import ASIDE
from hftune.opening.safetensors_file import read_index
from hftune.weight_files import INDEX_NAME, WEIGHTS_NAME, read_header, weight_shapes

_OF_FILES = ("revision", "cache_dir", "local_files_only")


def load_language_model(auto: Any, name: str | Path, given: dict[str, Any], *, trust_remote_code: bool) -> Any:
    """`auto.from_pretrained(name, **given)`, of several parts the one that reads text.

    Args:
        auto: `AutoModelForCausalLM` or a class for scores.
        name: A folder or a name of the Hub.
        given: Arguments of `from_pretrained`; a `config` may be that of the language model already.
    """
    if given.get("gguf_file"):
        return auto.from_pretrained(name, trust_remote_code=trust_remote_code, **given)
    options = {key: given[key] for key in _OF_FILES if key in given}
    whole = AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code, **options)
    packed = whole_weights(whole)
    if packed and Path(name).is_dir():
        check_readable(str(name), str(name))
    found = _load(auto, name, given | packed, whole, options, trust_remote_code=trust_remote_code)
    if packed:
        if not Path(name).is_dir():  # on the Hub: its files are here by now
            check_readable(str(Path(str(cached_file(name, CONFIG_NAME, **options))).parent), str(name))
        # They are saved whole: transformers would turn round how it read them, and quantise them again.
        model = found[0] if isinstance(found, tuple) else found
        model._weight_conversions = None
    return found


def _load(
    auto: Any,
    name: str | Path,
    given: dict[str, Any],
    whole: PreTrainedConfig,
    options: dict[str, Any],
    *,
    trust_remote_code: bool,
) -> Any:
    text = language_config(whole)
    if auto is not AutoModelForCausalLM:
        make_reward_models(text)
    if text is whole:
        return auto.from_pretrained(name, trust_remote_code=trust_remote_code, **given)
    if "num_labels" in given:
        text.num_labels = given.pop("num_labels")
    config = language_config(given.pop("config", text))
    stored = _stored_shapes(name, options)
    bare = _bare(auto, config, trust_remote_code)
    rules = rules_for(bare, stored, whole)
    asked = given.pop("output_loading_info", False)
    # transformers would list every tensor of the other parts as unexpected.
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with reading_by(rules) as names:
            model, info = auto.from_pretrained(
                name,
                **given,
                trust_remote_code=trust_remote_code,
                config=config,
                key_mapping=names,
                output_loading_info=True,
            )
    finally:
        logging.set_verbosity(level)
    save_under_own_names(model, rules)
    info["unexpected_keys"] = left_over(info["unexpected_keys"], stored, rules)
    _say_scale(model, whole)
    if not asked and info["missing_keys"]:
        notice(f"{name} has no {', '.join(sorted(info['missing_keys'])[:3])}: drawn at random")
    return (model, info) if asked else model


def _say_scale(model: PreTrainedModel, whole: PreTrainedConfig) -> None:
    """Tell of a whole whose class leaves out the scale of logits that its language model's has (Aya Vision)."""
    scale = getattr(model, "logit_scale", None)
    if not isinstance(scale, float | int) or scale == 1:
        return
    skeleton = bare_whole(whole)
    if skeleton is not None and not hasattr(skeleton, "logit_scale"):
        notice(
            f"{type(model).__name__} multiplies logits by its logit_scale, {scale}, and is trained so; transformers' "
            f"{type(skeleton).__name__} leaves that out"
        )


def _bare(auto: Any, config: PreTrainedConfig, trust_remote_code: bool) -> PreTrainedModel:
    with zero.no_partitioning(), torch.device("meta"), no_init_weights():
        model: PreTrainedModel = auto.from_config(copy.deepcopy(config), trust_remote_code=trust_remote_code)
    return model


@contextmanager
def reading_by(rules: Rules) -> Iterator[dict[str, str] | None]:
    """In the block `from_pretrained` reads by these rules, given what is yielded as `key_mapping`."""
    if rules.within is None:
        yield key_mapping(rules.prefixes) or None
        return
    with names_by(rules.all):
        yield None


def left_over(unexpected: Iterable[str], stored: Iterable[str], rules: Rules) -> set[str]:
    """What transformers found no place for, without the other parts."""
    if rules.within is not None:
        return {key for key in unexpected if not key.startswith(ASIDE)}
    names = {own_name(key, rules.prefixes) for key in stored if own_name(key, rules.prefixes) != key}
    return {key for key in unexpected if key in names}


def save_under_own_names(model: PreTrainedModel, rules: Rules) -> None:
    """Have it saved as a language model, not under the names that it was read from."""
    if rules.within is not None:
        model._weight_conversions = None
        return
    kept = [rule for rule in getattr(model, "_weight_conversions", None) or [] if not _is_prefix(rule)]
    model._weight_conversions = kept or None


def _is_prefix(rule: Any) -> bool:
    return isinstance(rule, PrefixChange) or rule.source_patterns[0].startswith("^")


def _stored_shapes(name: str | Path, options: dict[str, Any]) -> dict[str, tuple[int, ...] | None]:
    """Names of all stored tensors, with their shapes where these take no download of their own."""
    if Path(name).is_dir():
        return dict(weight_shapes(name))
    for file in (INDEX_NAME, WEIGHTS_NAME):
        found = cached_file(name, file, _raise_exceptions_for_missing_entries=False, **options)
        if found is not None:
            if file == INDEX_NAME:
                return dict.fromkeys(read_index(Path(found)))
            return {key: tuple(entry["shape"]) for key, entry in read_header(Path(found)).items()}
    return {}
