"""A checkpoint loaded whole, by the class that transformers has for its config, its weights in 16 or 32 bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig
from transformers.utils import CONFIG_NAME, cached_file

from hftune.errors import ManifestError
from hftune.models.classes import auto_class, make_reward_models
from hftune.models.loading.quantisation import check_readable, describe, stored_quantisation, whole_weights

_OF_FILES = ("revision", "cache_dir", "local_files_only")


def loader_of(auto: Any, config: PreTrainedConfig) -> Any:
    """The auto class that builds or loads what `auto` stands for: the class of all parts, or for scores."""
    if auto is AutoModelForCausalLM:
        return auto_class(config)
    make_reward_models(config)
    return auto


def load_whole(auto: Any, name: str | Path, trusted: bool, given: dict[str, Any]) -> Any:
    """What `from_pretrained` gives of the auto class that loads all of a checkpoint.

    Args:
        auto: `AutoModelForCausalLM` or a class for scores.
        name: A folder or a name of the Hub.
        trusted: Run code that comes with it.
        given: Arguments of `from_pretrained`.

    Raises:
        ArgumentError, ManifestError: The weights are packed, and would not be read rightly.
    """
    options = {key: given[key] for key in _OF_FILES if key in given}
    config = given.get("config") or AutoConfig.from_pretrained(name, trust_remote_code=trusted, **options)
    packed = whole_weights(config)
    if packed and Path(name).is_dir():
        check_readable(str(name), str(name))
    found = loader_of(auto, config).from_pretrained(name, trust_remote_code=trusted, **given | packed)
    model = found[0] if isinstance(found, tuple) else found
    if packed:
        if not Path(name).is_dir():  # on the Hub: its files are here by now
            check_readable(str(Path(str(cached_file(name, CONFIG_NAME, **options))).parent), str(name))
        # They are saved whole: transformers would turn round how it read them, and quantise them again.
        model._weight_conversions = None
    elif getattr(model, "_weight_conversions", None):
        # Under ZeRO-3 transformers notes rules that no name was of, and would turn those round as well when it saves.
        model._weight_conversions = [rule for rule in model._weight_conversions if rule.was_used()]
    _check_quantised(model, name)
    return found


def _check_quantised(model: Any, name: str | Path | None) -> None:
    """Refuse packed weights that were read as if they were whole: transformers only warns of a method it lacks."""
    how = stored_quantisation(model.config)
    if how is not None and getattr(model, "hf_quantizer", None) is None:
        cause = f"{name} is quantised by {describe(how)}, which transformers does not know"
        raise ManifestError(
            cause, place=str(name), fix="give the weights from before, or the transformers it was made with"
        )
