"""A teacher, or a mixture of several, and what is stored of what it says of records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from hftune.arguments.distill import DistillArguments
from hftune.arguments.model import ModelArguments
from hftune.constants import IGNORE_INDEX
from hftune.data.collators import CausalCollator
from hftune.data.counts import Context
from hftune.models.kernels.divergences import TopTargets
from hftune.models.kernels.heads import CHUNK_BYTES, add_answer_head
from hftune.models.vocabulary import predicted_rows
from hftune.tools.teaching.shards import Shard, Work
from hftune.trainers.distillation.loading import load_teacher as load_model
from hftune.trainers.distillation.teacher_server import teacher_server
from hftune.trainers.distillation.teachers import LoadedTeacher, ServerTeacher
from hftune.trainers.features.token_loss import next_tokens


@dataclass
class Teacher:
    """What says it: a model on this process's device, or a server.

    Attributes:
        source: As a run of distillation asks it.
        device: Where the model is.
        pad: Fills up rows; nothing attends to it.
        vocabulary: Tokens that it knows; of a server, which does not say it, as many as ids can be stored of.
        dtype: Of the weights; quantised ones have their own.
        k: Tokens that it gives; None: as many as are asked for.
        contexts: What it can read.
    """

    source: LoadedTeacher | ServerTeacher
    device: torch.device
    pad: int
    temperature: float
    vocabulary: int = (1 << 31) - 1
    dtype: str = "of the server"
    k: int | None = None
    contexts: Sequence[Context] = ()

    def fill(self, shard: Shard, dataset: Dataset, work: Work, number: int, rows: int) -> None:
        """Write what is said of all records of a shard, `rows` of them at a time.

        Which records are read together depends on the shard alone, so that any process writes the same bytes.
        """
        first, last = int(work.bounds[number]), int(work.bounds[number + 1])
        found = dataset.select(work.records[first:last]).with_format("numpy")
        lengths = np.array([len(ids) for ids in found["input_ids"]])
        for context in self.contexts:
            context.check(int(lengths.max(initial=0)), "--max_length")
        collate = CausalCollator(self.pad)
        # The longest first: a batch that does not fit into memory fails at once.
        order = np.argsort(-lengths, kind="stable")
        for start in range(0, len(order), rows):
            chosen = order[start : start + rows]
            begins = work.places[first + chosen] - work.places[first]
            self._write(shard, collate([found[int(at)] for at in chosen]), begins)

    @torch.no_grad()
    def _write(self, shard: Shard, batch: dict[str, torch.Tensor], begins: np.ndarray) -> None:
        """Of a batch of records, the first trained token of each at `begins` of the shard."""
        trained = next_tokens(batch) != IGNORE_INDEX
        counts = trained.sum(1).tolist()
        places = np.concatenate([begin + np.arange(count) for begin, count in zip(begins, counts, strict=True)])
        inputs = {name: batch[name].to(self.device) for name in ("input_ids", "attention_mask")}
        said = self.source.said(inputs, trained.reshape(-1).nonzero().squeeze(1).to(self.device))
        if isinstance(said, TopTargets):
            assert isinstance(self.source, ServerTeacher), "a model says all"
            if (few := int((said.ids >= 0).sum(1).min())) < shard.k:
                fix = f"give --teacher_top_k {few}"
                raise self.source.server.error(f"the server gives {few} of {shard.k} tokens at a place", fix)
            shard.write(places, said.ids.cpu().numpy(), said.log_probs.cpu().numpy())
            return
        step = max(1, CHUNK_BYTES.get(self.device.type, 2**28) // (4 * self.vocabulary))
        for start in range(0, len(places), step):
            rows = slice(start, start + step)
            log_probs, ids = said.at(rows, self.vocabulary, self.temperature).topk(shard.k)
            shard.write(places[rows], ids.cpu().numpy(), log_probs.cpu().numpy())


def load_teacher(model_args: ModelArguments, args: DistillArguments, tokenizer: PreTrainedTokenizerBase) -> Teacher:
    """The teacher that the arguments name, on this process's device.

    Raises:
        ArgumentError: One cannot be loaded, or a server reads other tokens than the records have.
    """
    pad, temperature = int(tokenizer.pad_token_id or 0), float(args.temperature)
    if args.teacher_server_url:
        server = teacher_server(args, args.teacher_top_k or args.top_k)
        server.check(tokenizer)
        return Teacher(ServerTeacher(server), args.device, pad, temperature, k=server.k)
    model = load_model(model_args, args)
    assert model is not None, "check_teaching asks for one"
    add_answer_head(model)
    if not (args.teacher_load_in_4bit or args.teacher_load_in_8bit):
        model.to(args.device)  # transformers wraps `to` without its types
    vocabulary, contexts = predicted_rows(model), [Context.of(model, tokenizer)]
    dtype = " ".join(sorted({str(parameter.dtype) for parameter in model.parameters()}))
    return Teacher(LoadedTeacher(model, vocabulary), model.device, pad, temperature, vocabulary, dtype, None, contexts)
