"""What the rows of a forward pass hold, and that layers with a state end it with each document.

There are two ways to keep documents of a row apart:

    attention   every layer is attention, which masks and borders keep to a document
    mixers      layers with a state as well, which are called with a row a document
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from hftune.distributed import zero
from hftune.models.attention.isolation import MIXERS
from hftune.models.attention.mixers import Unfolding, call_by_documents, mixers_of


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
        way: ATTENTION or MIXERS.
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
        self._now = Row(borders, whole=self.whole)
        if torch.is_grad_enabled():
            self._trained = self._now

    def end(self) -> None:
        """The forward pass is over."""
        self._now = None

    @property
    def row(self) -> Row | None:
        """The row of this forward pass, or of the one whose layers are recomputed."""
        return self._now or self._trained

    # Bound methods, not closures, are the hooks of a model: a copy of it has a copy of them.

    def before_model(self, model: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """A hook: a pass begins of the row whose borders it is called with."""
        self.begin(kwargs.get("cu_seq_lens_q"))

    def after_model(self, model: Any, args: Any, output: Any) -> None:
        """A hook: the pass is over, and what follows are layers of it that are recomputed."""
        self.end()


def isolate_documents(model: PreTrainedModel, way: str) -> None:
    """Have a model keep the documents of flat rows apart, in place.

    Args:
        way: ATTENTION or MIXERS.
    """
    # Towers of a model of several parts read no text.
    mixers = mixers_of(model.get_decoder()) if way == MIXERS else []
    documents = Documents(way, whole=zero.is_any_partitioned(model))
    for mixer in mixers:
        call_by_documents(mixer, documents)
    model.register_forward_pre_hook(documents.before_model, with_kwargs=True)
    model.register_forward_hook(documents.after_model, always_call=True)
    model.hftune_documents = documents


def documents_of(model: nn.Module) -> Documents | None:
    """What `isolate_documents` gave a model; None where it did not."""
    found = getattr(model, "hftune_documents", None)
    return found if isinstance(found, Documents) else None
