"""A teacher, or a mixture of several, and what it says of records: whole logits of a few tokens at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hftune.arguments.distill import DistillArguments
from hftune.arguments.model import ModelArguments
from hftune.data.counts import Context
from hftune.data.teacher_targets import trained_places
from hftune.inference.generate import scored_rows
from hftune.models.kernels.answer_head import add_answer_head
from hftune.models.kernels.chunked_heads import CHUNK_BYTES
from hftune.models.kernels.divergences import MixedTeachers, TeacherStates
from hftune.models.vocabulary import predicted_rows
from hftune.tools.teaching.shards import Shard, Work
from hftune.trainers.distillation.loading import load_teachers
from hftune.trainers.distillation.teacher_server import TeacherServer, teacher_server


@dataclass
class Teacher:
    """Frozen models, and the share of each in what they say together.

    Attributes:
        vocabulary: Tokens that all of them know.
        pad: Fills up rows; nothing attends to it.
        k: Tokens that it gives; None: as many as are asked for.
        contexts: What each can read.
    """

    models: list[Any]
    shares: list[float]
    temperature: float
    pad: int
    k: int | None = None
    contexts: tuple[Context, ...] = ()

    @property
    def vocabulary(self) -> int:
        """Tokens that the distributions are over."""
        return min(predicted_rows(model) for model in self.models)

    @property
    def dtype(self) -> str:
        """Of the weights; quantised ones have their own."""
        return " ".join(sorted({str(parameter.dtype) for model in self.models for parameter in model.parameters()}))

    def fill(self, shard: Shard, dataset: Dataset, work: Work, number: int, rows: int) -> None:
        """Write what is said of all records of a shard, `rows` of them at a time.

        Which records are read together depends on the shard alone, so that any process writes the same bytes.
        """
        first, last = int(work.bounds[number]), int(work.bounds[number + 1])
        found = dataset.select(work.records[first:last]).with_format("numpy")
        lengths = np.array([len(ids) for ids in found["input_ids"]])
        for context in self.contexts:
            context.check(int(lengths.max(initial=0)), "--max_length")
        # The longest first: a batch that does not fit into memory fails at once.
        order = np.argsort(-lengths, kind="stable")
        for start in range(0, len(order), rows):
            chosen = order[start : start + rows]
            records = [found[int(at)] for at in chosen]
            begins = work.places[first + chosen] - work.places[first]
            self._write(shard, [np.asarray(one["input_ids"]) for one in records], _trained(records), begins)

    @torch.no_grad()
    def _write(self, shard: Shard, ids: list[Any], trained: list[Any], begins: np.ndarray) -> None:
        """Of a batch of records, the first trained token of each at `begins` of the shard."""
        states = self._states(ids, trained)
        at = np.concatenate([begin + np.arange(int(mask.sum())) for mask, begin in zip(trained, begins, strict=True)])
        device = self.models[0].device
        step = max(1, CHUNK_BYTES.get(device.type, 2**28) // (4 * self.vocabulary))
        with states.opened(self.vocabulary, self.temperature) as log_probs_of:
            for start in range(0, len(at), step):
                log_probs, chosen = log_probs_of(slice(start, start + step)).topk(shard.k)
                shard.write(at[start : start + step], chosen.cpu().numpy(), log_probs.cpu().numpy())

    def _states(self, ids: list[Any], trained: list[Any]) -> TeacherStates | MixedTeachers:
        given, at = scored_rows(ids, trained, self.pad, self.models[0].device)
        said = [model(**given, answer_at=at, answer_states=True) for model in self.models]
        return said[0] if len(said) == 1 else MixedTeachers(said, self.shares)


def _trained(records: list[dict[str, Any]]) -> list[np.ndarray]:
    return [trained_places(np.asarray(one["labels"])) for one in records]


class ServedTeacher:
    """A teacher behind a server, as `Teacher` otherwise.

    Attributes:
        vocabulary: Of its head, which it does not say: as many as ids can be stored of.
    """

    vocabulary, dtype = (1 << 31) - 1, "of the server"

    def __init__(self, server: TeacherServer) -> None:
        self.server, self.k = server, server.k

    def fill(self, shard: Shard, dataset: Dataset, work: Work, number: int, rows: int) -> None:
        """Write what is said of all records of a shard, `rows` of them at a time."""
        first, last = int(work.bounds[number]), int(work.bounds[number + 1])
        found = dataset.select(work.records[first:last]).with_format("numpy")
        for start in range(0, last - first, rows):
            chosen = range(start, min(start + rows, last - first))
            records = [found[at] for at in chosen]
            trained = [np.flatnonzero(places) for places in _trained(records)]
            texts = [record["input_ids"][: at[-1] + 1].tolist() for record, at in zip(records, trained, strict=True)]
            for row, at, (ids, log_probs) in zip(chosen, trained, self.server.said(texts), strict=True):
                if (few := int((ids[at - 1] >= 0).sum(axis=1).min())) < shard.k:
                    fix = f"give --teacher_top_k {few}"
                    raise self.server.server.error(f"the server gives {few} of {shard.k} tokens at a place", fix)
                begin = int(work.places[first + row] - work.places[first])
                shard.write(begin + np.arange(len(at)), ids[at - 1], log_probs[at - 1])


def load_teacher(
    model_args: ModelArguments, args: DistillArguments, tokenizer: PreTrainedTokenizerBase
) -> Teacher | ServedTeacher:
    """The teachers that the arguments name, on this process's device.

    Raises:
        ArgumentError: One cannot be loaded, or a server reads other tokens than the records have.
    """
    if args.teacher_server_url:
        server = teacher_server(args, args.teacher_top_k or args.top_k)
        server.check(tokenizer)
        return ServedTeacher(server)
    models: list[PreTrainedModel] = load_teachers(model_args, args)
    for model in models:
        add_answer_head(model)
        if not (args.teacher_load_in_4bit or args.teacher_load_in_8bit):
            model.to(args.device)  # transformers wraps `to` without its types
    contexts = tuple(Context.of(model, tokenizer) for model in models)
    pad = int(tokenizer.pad_token_id or 0)
    return Teacher(models, args.teacher_shares, float(args.temperature), pad, contexts=contexts)
