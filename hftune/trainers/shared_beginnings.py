"""Batches of documents that share their beginnings (`data/packing/beginnings.py`), and a proof that it is exact."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from hftune.constants import IGNORE_INDEX
from hftune.data.batches.collators import FlatCollator
from hftune.distributed import zero
from hftune.errors import ArgumentError
from hftune.models.attention.shared_prompts import SharedPrompts
from hftune.models.vocabulary.size import vocabulary_rows
from hftune.trainers.features.run import Run
from hftune.trainers.packing_isolation import logit_tolerance, prove_or_widen, uncompiled_and_unrounded

WHOLE, SHARED, OWN = 150, 100, 90
"""Tokens of a made-up document, those of its beginning that another one shares, and the other one's own."""


class SharingCollator(FlatCollator):
    """Rows of documents, some of which have the first tokens of another one before them."""

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """As `FlatCollator`; an example may have shared_tokens, one number a document.

        Returns:
            The same, and shared_prompts, a `SharedPrompts`, where a document shares anything. Positions of such a
            document begin where what it shares ends.
        """
        batch: dict[str, Any] = super().__call__(features)
        behind = [int(tokens) for feature in features for tokens in feature.get("shared_tokens", ())]
        if any(behind):
            lengths = batch["cu_seq_lens_q"].diff()
            batch["shared_prompts"] = SharedPrompts.of_documents(lengths.tolist(), behind)
            batch["position_ids"] = batch["position_ids"] + torch.tensor(behind).repeat_interleave(lengths)
        return batch


def prove_beginnings_shared(run: Run, model: Any) -> None:
    """Show that a document behind a shared beginning is read as if it had its own; every rank must take part.

    It costs two forward passes of some 300 tokens a run. A model in which they differ reads copies of the beginnings.

    Args:
        model: As it is trained, an engine or a wrapper included.

    Raises:
        ArgumentError: They differ all the same.
    """
    with uncompiled_and_unrounded(run.model, run.args):
        prove_or_widen(partial(_prove, run, model), run.model, whole_model=False, shared=True)


@torch.no_grad()
def _prove(run: Run, model: Any) -> None:
    rows = vocabulary_rows(run.model)
    # From the middle of the vocabulary: its ends hold placeholders, for images and the like.
    whole, own = ([(rows // 3 + step * at) % rows for at in range(size)] for step, size in ((3, WHOLE), (5, OWN)))
    alone = [_example(whole), _example(whole[:SHARED] + own)]
    shared = [_example(whole + own) | {"seq_lengths": [WHOLE, OWN], "shared_tokens": [0, SHARED]}]
    was_training = model.training
    model.eval()  # dropout would move the logits, too
    wanted, found = (
        model(**run._prepare_inputs(SharingCollator()(examples))).logits[0, -OWN:] for examples in (alone, shared)
    )
    model.train(was_training)
    # ZeRO-3 has noted in which order these passes used the modules; training would prefetch by it.
    zero.reset_fetch_order(model)
    off = (wanted - found).abs().max() / wanted.abs().max().clamp(min=1e-6)
    args = run.args
    if float(off) > logit_tolerance(model, exact=args.device.type == "cpu" and not (args.bf16 or args.fp16)):
        raise ArgumentError(
            "documents that share their beginning in a row are not read as if each had its own",
            place="--shared_prompts / --attn_implementation",
            fix="add --shared_prompts False",
        )


def _example(ids: list[int]) -> dict[str, list[int]]:
    return {"input_ids": ids, "labels": [IGNORE_INDEX] * len(ids)}
