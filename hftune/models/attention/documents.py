"""Documents of a row kept apart by whatever a model has for it: attention, or rows of their own.

There are three ways, each more general than the one before:

    attention   every layer is attention, which masks and borders keep to a document
    mixers      layers with a state as well, which are called with a row a document
    backbone    the whole model is called with padded rows of one document each, whatever it is made of
"""

from __future__ import annotations

import inspect
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from hftune.distributed import zero
from hftune.models.attention.isolation import BACKBONE, MIXERS
from hftune.models.attention.mixers import BORDERS, Group, Unfolding, call_by_documents, mixers_of
from hftune.models.structure import body_of


class Row:
    """A row of documents, or rows with padding.

    Args:
        borders: IntTensor (documents + 1,), where documents begin, and the end; None: rows are padded.
        whole: Whether documents stay in one group.
    """

    def __init__(self, borders: torch.Tensor | None, *, whole: bool) -> None:
        self.borders, self.whole = borders, whole

    @property
    def has_several(self) -> bool:
        """Whether a state must end within the row."""
        return self.borders is not None and len(self.borders) > 2

    @cached_property
    def unfolding(self) -> Unfolding:
        """The documents of the row as rows of their own."""
        assert self.borders is not None, "a row of documents"
        # Read once a batch: lengths are numbers of Python, for which a GPU must be waited for.
        lengths = [after - before for before, after in pairwise(self.borders.tolist())]
        return Unfolding(lengths, self.borders.device, whole=self.whole)


class Documents:
    """What the rows hold that a model computes.

    Layers that are recomputed in the backward pass ask after it: they get the row of the last pass with gradients,
    whatever passes without came between (KTO's, a reference's).

    Args:
        way: ATTENTION, MIXERS or BACKBONE.
        whole: Whether documents must stay in one group: under ZeRO-3 every process calls a module as often.
    """

    def __init__(self, way: str, *, whole: bool = False) -> None:
        self.way, self.whole = way, whole
        self._now: Row | None = None
        self._trained: Row | None = None

    def begin(self, borders: torch.Tensor | None) -> None:
        """A forward pass of this row begins.

        Args:
            borders: IntTensor (documents + 1,), where documents begin, and the end; None: rows are padded.
        """
        self._now = Row(borders, whole=self.whole or self.way == BACKBONE)
        if torch.is_grad_enabled():
            self._trained = self._now

    def end(self) -> None:
        """The forward pass is over."""
        self._now = None

    @property
    def row(self) -> Row | None:
        """The row of this forward pass, or of the one whose layers are recomputed."""
        return self._now or self._trained

    def widen(self, *, whole_model: bool) -> str | None:
        """Take the next, more general way, and return it in words; None where there is none.

        Args:
            whole_model: Whether BACKBONE is one.
        """
        if self.way != BACKBONE and whole_model:
            self.way = BACKBONE
            return "the model reads the documents of a row as padded rows"
        return None


def isolate_documents(model: PreTrainedModel, way: str) -> None:
    """Have a model keep the documents of flat rows apart, in place.

    Args:
        way: The first that is tried.
    """
    # Towers of a model of several parts read no text.
    mixers = mixers_of(model.get_decoder()) if way == MIXERS else []
    documents = Documents(way, whole=zero.is_any_partitioned(model))
    for mixer in mixers:
        call_by_documents(mixer, documents)
    # Bound methods, not closures: a copy of the model has a copy of them.
    hooks = _Hooks(documents, inspect.signature(type(model).forward))
    model.register_forward_pre_hook(hooks.before_model, with_kwargs=True)
    model.register_forward_hook(hooks.after_model, always_call=True)
    body, decoder = body_of(model), model.get_decoder()
    body.register_forward_hook(hooks.after_backbone)
    if decoder not in (body, model):
        # Some heads call the decoder within their base (Bart's).
        decoder.register_forward_hook(hooks.after_backbone)
    model.hftune_documents = documents


def documents_of(model: nn.Module) -> Documents | None:
    """What `isolate_documents` gave a model; None where it did not."""
    found = getattr(model, "hftune_documents", None)
    return found if isinstance(found, Documents) else None


class _Hooks:
    """Around a whole model: tell its layers of the row, and take the row apart where all of it must be."""

    def __init__(self, documents: Documents, signature: inspect.Signature) -> None:
        self.documents = documents
        self.names = frozenset(signature.parameters)

    def before_model(self, model: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Take note of the borders; unfold the tokens where the way is such."""
        self.documents.begin(kwargs.get("cu_seq_lens_q"))
        group = self._only_group()
        if group is None:
            return args, kwargs
        # Positions begin anew in every row by themselves.
        rest = {name: value for name, value in kwargs.items() if name not in {*BORDERS, "position_ids"}}
        if "use_cache" not in self.names:
            rest.pop("use_cache", None)
        for name in ("input_ids", "inputs_embeds", "token_type_ids"):
            if rest.get(name) is not None:
                filler = _filler(model.config) if name == "input_ids" else 0
                rest[name] = group.unfold(rest[name], filler)
        if "attention_mask" in self.names:
            rest["attention_mask"] = group.mask
        return args, rest

    def after_model(self, model: Any, args: Any, output: Any) -> None:
        """The pass is over, and what follows are layers of it that are recomputed."""
        self.documents.end()

    def after_backbone(self, module: Any, args: Any, output: Any) -> Any:
        """Put hidden states back into their row, so that heads and losses find it as it came."""
        group = self._only_group()
        if group is None:
            return output
        if isinstance(output, tuple):
            return self._folded(output, group)
        for name, value in output.items():
            output[name] = self._folded(value, group)
        return output

    def _folded(self, value: Any, group: Group) -> Any:
        if isinstance(value, tuple):
            return tuple(self._folded(one, group) for one in value)
        row = self.documents.row
        return row.unfolding.fold([value]) if row is not None and group.holds(value) else value

    def _only_group(self) -> Group | None:
        """All documents of the row, where the backbone reads them as padded rows."""
        row = self.documents.row
        if self.documents.way != BACKBONE or row is None or row.borders is None:
            return None
        (group,) = row.unfolding.groups
        return group


def _filler(config: Any) -> int:
    """A token to pad with: masked, so that any of the vocabulary will do."""
    text = config.get_text_config()
    pad = getattr(text, "pad_token_id", None)
    return pad if isinstance(pad, int) and 0 <= pad < text.vocab_size else 0
