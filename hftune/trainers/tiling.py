"""Long rows in little memory: MLPs in pieces for all trainers, and the loss of pre-training a few labels at a time."""

from __future__ import annotations

from typing import Any

import torch
from peft import PeftModel

from hftune.constants import IGNORE_INDEX
from hftune.data.slices import shifted
from hftune.logging import notice
from hftune.models.answer_head import add_answer_head
from hftune.models.configs import row_length
from hftune.models.tiling import tile_mlps, tiles_for


class TilingMixin:
    """Put before a `Trainer` subclass: tiles the MLPs of its model where `--tiled_mlp` asks for it."""

    def __init__(self: Any, *positional: Any, model: Any, args: Any, **kwargs: Any) -> None:
        super().__init__(*positional, model=model, args=args, **kwargs)  # type: ignore[call-arg]
        if not args.tiled_mlp:
            return
        plain = plain_model(self.model)
        longest = row_length(args)
        assert longest, "preflight asks for a length"
        rows = max(args.per_device_train_batch_size, args.per_device_eval_batch_size)
        tokens = -(-rows * longest // args.sequence_parallel_size)
        tiles = tiles_for(tokens, plain.config.get_text_config().hidden_size)
        count = tile_mlps(plain, tiles)
        notice(f"--tiled_mlp: {count} MLPs are computed in {tiles} piece(s) of at most {-(-tokens // tiles)} tokens")


class TiledLossMixin:
    """Put right before `Trainer`: with `--tiled_loss`, no logits but those of a few labels exist at a time."""

    def __init__(self: Any, *positional: Any, model: Any, args: Any, **kwargs: Any) -> None:
        if args.tiles_loss:
            add_answer_head(plain_model(model))
            notice("the loss is computed a few labels at a time, without the logits of a whole batch")
        super().__init__(*positional, model=model, args=args, **kwargs)  # type: ignore[call-arg]

    def compute_loss(
        self: Any, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """As the Trainer's: the sum over labels, divided by those of the step, or by their own number."""
        if not self.args.tiles_loss:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)  # type: ignore[misc]
        labels = next_tokens(inputs).flatten()
        at = (labels != IGNORE_INDEX).nonzero().flatten()
        others = {name: value for name, value in inputs.items() if name not in ("labels", "shift_labels")}
        outputs = model(**others, answer_at=at, answer_ids=labels[at])
        count = len(at) if num_items_in_batch is None else num_items_in_batch
        loss = -outputs.log_probs.sum() / torch.as_tensor(count, device=labels.device).clamp(min=1)
        if self.args.average_tokens_across_devices and num_items_in_batch is not None:
            loss = loss * (self.accelerator.num_processes // self.get_tp_size())
        return (loss, outputs) if return_outputs else loss

    def prediction_step(
        self: Any, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: Any = None
    ) -> Any:
        """As the Trainer's; in place of logits the tokens foretold, as far as is known: -1 for a wrong one."""
        if not self.args.tiles_loss:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)  # type: ignore[misc]
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            loss, outputs = self.compute_loss(model, inputs, return_outputs=True)
        if prediction_loss_only:
            return loss, None, None
        labels = next_tokens(inputs)
        foretold = torch.full_like(labels, -1)
        scored = labels != IGNORE_INDEX
        foretold[scored] = torch.where(outputs.is_top1, labels[scored], -1)
        # Metrics compare what is foretold at a place with the label at the next one.
        pad = torch.nn.functional.pad
        return loss.detach(), pad(foretold, (0, 1), value=-1), pad(labels, (1, 0), value=IGNORE_INDEX)


def next_tokens(inputs: dict[str, Any]) -> torch.Tensor:
    """(batch, tokens): the label that is to be foretold at each place."""
    return inputs["shift_labels"] if "shift_labels" in inputs else shifted(inputs["labels"], IGNORE_INDEX)


def plain_model(model: Any) -> Any:
    """The model without the adapter around it."""
    return model.get_base_model() if isinstance(model, PeftModel) else model
