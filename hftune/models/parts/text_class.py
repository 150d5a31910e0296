"""Language and reward models of decoders for which transformers has no such class.

The decoder is transformers' own; what is added is the head, as its classes for the same decoder have it.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import torch
from torch import nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    MODEL_MAPPING,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping
from transformers.core_model_loading import PrefixChange
from transformers.modeling_layers import GenericForSequenceClassification, GenericForTokenClassification
from transformers.modeling_outputs import CausalLMOutputWithPast

_GROUPS = re.compile(r"\((?:\?<?[!=]|\^).*?\)|\\\d")
"""In a rule's patterns: what has to stand before or after a name, and is none of it."""


class _Head(PreTrainedModel):
    """What `causal_over` puts on a decoder."""

    base_model_prefix = "model"
    decoder_class: type[PreTrainedModel]

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = self.decoder_class(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        embeddings = self.model.get_input_embeddings()
        name = next(name for name, module in self.model.named_modules() if module is embeddings)
        self._tied_weights_keys = {"lm_head.weight": f"model.{name}.weight"}
        self.post_init()

    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits, (batch, tokens, vocabulary), and the loss where there are labels, (batch, tokens)."""
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        hidden = outputs.last_hidden_state
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = _scaled(self.lm_head(hidden[:, kept, :]), self.config)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


def _scaled(logits: torch.Tensor, config: Any) -> torch.Tensor:
    """Logits as the whole's class scales and caps them, by the fields that configs have for this."""
    divisor, factor = getattr(config, "logits_scaling", None), getattr(config, "output_multiplier", None)
    if divisor is not None:
        logits = logits / divisor
    if factor is not None:
        logits = logits * factor
    cap = getattr(config, "final_logit_softcapping", None)
    return logits if cap is None else torch.tanh(logits / cap) * cap


def causal_over(decoder: type[PreTrainedModel], whole: PreTrainedConfig) -> type[PreTrainedModel]:
    """A causal LM over a decoder of transformers'.

    Args:
        decoder: Its class, made from the config of the text.
        whole: The config of the model of several parts that it is in, whose rules for stored names hold.
    """
    return _make(decoder, whole, _Head, "ForCausalLM", {"decoder_class": decoder})


class _Scores:
    """What `classifier_over` puts before transformers' generic classifiers, which ask every decoder for its cache."""

    base_model_prefix: str

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        getattr(self, self.base_model_prefix).register_forward_hook(_name_cache)


def _name_cache(module: nn.Module, args: Any, output: Any) -> None:
    if not hasattr(output, "past_key_values"):  # Recurrent Gemma's states are kept in its layers
        output.past_key_values = None


def classifier_over(
    decoder: type[PreTrainedModel], whole: PreTrainedConfig, *, tokens: bool, prefix: str = "model"
) -> type[PreTrainedModel]:
    """A reward model over a decoder, held under `prefix`: a score a sequence, or with `tokens` classes a token."""
    generic = GenericForTokenClassification if tokens else GenericForSequenceClassification
    ending = f"For{'Token' if tokens else 'Sequence'}Classification"
    return _make(decoder, whole, generic, ending, {"base_model_prefix": prefix})


def make_reward_models(config: PreTrainedConfig) -> None:
    """Have transformers' auto classes make a reward model of this config's decoder where it has no class for one."""
    kind = type(config)
    if kind not in MODEL_MAPPING or kind not in MODEL_FOR_CAUSAL_LM_MAPPING or config.get_text_config() is not config:
        return
    for mapping, tokens in (
        (MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, False),
        (MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING, True),
    ):
        if kind not in mapping:
            decoder, causal = MODEL_MAPPING[kind], MODEL_FOR_CAUSAL_LM_MAPPING[kind]
            # What transformers' generic classifiers hand on, and read of what comes back: no Mamba takes it, nor Bart.
            takes = {"position_ids", "past_key_values", "inputs_embeds", "use_cache"}
            if takes <= inspect.signature(decoder.forward).parameters.keys():
                # Held under the name by which the language model holds it, and checkpoints store it.
                named = f"self.{causal.base_model_prefix} =" in inspect.getsource(causal.__init__)
                prefix = causal.base_model_prefix if named else "model"
                mapping.register(kind, classifier_over(decoder, config, tokens=tokens, prefix=prefix), exist_ok=True)


def _make(
    decoder: type[PreTrainedModel], whole: PreTrainedConfig, head: type, ending: str, fields: dict[str, Any]
) -> type[PreTrainedModel]:
    name = decoder.__name__.removesuffix("Model") + ending
    # What all classes of an architecture share: which attentions it has, how weights begin, which modules stay whole.
    family = next(one for one in decoder.__mro__[1:] if issubclass(one, PreTrainedModel))
    mixins = (GenerationMixin,) if head is _Head else ()
    before = () if head is _Head else (_Scores,)
    own = {
        "config_class": type(whole.get_text_config(decoder=True)),
        "__module__": __name__,
        "__doc__": f"{decoder.__name__} with a head.",
        "_is_stateful": getattr(decoder, "_is_stateful", False),
        "input_modalities": ("text",),
        # The modules are transformers' own: buffers that a decoder fills for its layers (Falcon-H1) are filled.
        "is_custom_code": classmethod(lambda cls: False),
    }
    made: type[PreTrainedModel] = type(name, (*before, head, family, *mixins), own | fields)
    rules = _inner_rules(decoder, whole)
    if rules:
        register_checkpoint_conversion_mapping(name, rules, overwrite=True)
    return made


def _inner_rules(decoder: type[PreTrainedModel], whole: PreTrainedConfig) -> list[Any]:
    """The whole's rules for stored names, but for those that name its parts: these are found in the index."""
    text = whole.get_text_config(decoder=True)
    if get_checkpoint_conversion_mapping(decoder.__name__) or get_checkpoint_conversion_mapping(text.model_type):
        return []
    rules = get_checkpoint_conversion_mapping(whole.model_type) or []
    return [rule for rule in rules if not isinstance(rule, PrefixChange) and not _names_parts(rule)]


def _names_parts(rule: Any) -> bool:
    """Whether a rule is for names from their beginning on, or puts a part before a name: `layers`, `text.layers`."""
    pairs = zip(rule.source_patterns, rule.target_patterns, strict=False)
    plain = [tuple(_GROUPS.sub("", pattern).replace("\\", "") for pattern in pair) for pair in pairs]
    put_before = any(target.endswith("." + source.lstrip(".")) and target != source for source, target in plain)
    return put_before or any(pattern.startswith("^") for pattern in rule.source_patterns)
