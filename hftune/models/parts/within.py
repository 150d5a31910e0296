"""Names by the rules of the class of all parts, for a language model whose own rules do not tell them.

transformers writes some checkpoints by rules of the whole that its language model knows nothing of: Kimi K2.5 has
`blocks` for layers, Mistral Large 4 no prefix at all, MiniMax M3 its experts one by one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming

from hftune.models.parts.language_part import bare_whole, decoder_name

ASIDE = "aside."
"""Before the names of what is no part of the language model."""


@dataclass(frozen=True)
class Within:
    """Where a language model lies in the whole.

    Args:
        skeleton: The whole, on the meta device.
        prefixes: Of names there, with their last dots, to the model's own.
    """

    skeleton: PreTrainedModel
    prefixes: dict[str, str]

    def rules(self) -> list[Any]:
        """Rules by which stored names become the language model's. New ones each time: they have states."""
        found = get_model_conversion_mapping(self.skeleton)
        renamings = [rule for rule in found if isinstance(rule, WeightRenaming)]
        converters = [self._moved(rule) for rule in found if isinstance(rule, WeightConverter)]
        patterns = {self._pattern(prefix): own for prefix, own in self.prefixes.items()}
        others = WeightRenaming(rf"^(?!{'|'.join(patterns)})(.+)", rf"{ASIDE}\1")
        moves = [WeightRenaming(f"^{pattern}", own) for pattern, own in patterns.items()]
        return [*renamings, others, *moves, *(rule for rule in converters if rule is not None)]

    def name_of(self, own: str) -> str:
        """The name in the whole of a parameter of the language model."""
        found = next((prefix for prefix, mine in self.prefixes.items() if own.startswith(mine)), None)
        return own if found is None else found + own.removeprefix(self.prefixes[found])

    def _pattern(self, prefix: str) -> str:
        """Names without the prefix of the whole's own base model mean the same."""
        base = f"{self.skeleton.base_model_prefix}."
        inner = prefix.removeprefix(base)
        return (
            re.escape(prefix) if base == "." or inner in ("", prefix) else f"(?:{re.escape(base)})?{re.escape(inner)}"
        )

    def _moved(self, rule: Any) -> Any:
        """A rule for some module of the whole, as it is for the language model; None for another part's."""
        if rule.scope_prefix is None:
            return rule
        decoder, own = next(iter(self.prefixes.items()))
        names = (f"{rule.base_model_prefix}.{rule.scope_prefix}".strip("."), rule.scope_prefix)
        modules = {name for name, _ in self.skeleton.named_modules()}
        scope = next((f"{name}." if name else "" for name in names if name in modules), None)
        if scope is not None and scope.startswith(decoder):
            rule.scope_prefix, rule.base_model_prefix = scope.removeprefix(decoder).removesuffix("."), own.rstrip(".")
        elif scope is not None and decoder.startswith(scope):
            rule.scope_prefix = None
        else:
            return None
        return rule


def find_within(model: PreTrainedModel, config: PreTrainedConfig) -> Within | None:
    """Where a language model lies in the whole of a config; None where transformers has no class for the whole.

    Args:
        model: On any device.
        config: Of the whole.
    """
    skeleton = bare_whole(config)
    decoder = None if skeleton is None else decoder_name(skeleton, type(model.config))
    if skeleton is None or decoder is None or not model.base_model_prefix:
        return None
    prefixes = {f"{decoder}.": f"{model.base_model_prefix}."}
    there, here = (_head_name(one) for one in (skeleton, model))
    if here and there:
        prefixes[f"{there}."] = f"{here}."
    return Within(skeleton, prefixes)


def _head_name(model: PreTrainedModel) -> str | None:
    head: nn.Module | None = model.get_output_embeddings()
    return next((name for name, module in model.named_modules() if head is not None and module is head), None)
