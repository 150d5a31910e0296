"""A PTTrainer on a stream of 120 records of 4 tokens, with what is trained written down in RECORD_TO.RANK.

Takes run_pt.py's arguments, less those of the data.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hftune.arguments.entry import parse_arguments
from hftune.checkpoints.resume import find_checkpoint
from hftune.data.splits import Splits
from hftune.distributed import ranks
from hftune.errors import run_script
from hftune.trainers.pt import PTTrainer
from hftune.visible import say
from tests.unit.data.streams import stream_of


class Recorder(PTTrainer):
    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        with open(f"{os.environ['RECORD_TO']}.{ranks.rank()}", "a") as record:
            print(*inputs["input_ids"].flatten().tolist(), file=record)
        return super().compute_loss(model, inputs, *args, **kwargs)


def main() -> None:
    model_args, _, _, training_args = parse_arguments("pt")
    training_args.join_process_group()
    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path)
    model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path)
    stream = stream_of(60, per_chunk=2, rank=ranks.rank(), world=ranks.world_size())
    trainer = Recorder(model, training_args, tokenizer, Splits(stream, None))
    trainer.train(resume_from_checkpoint=find_checkpoint(training_args))
    say(f"trained tokens: {trainer.count_trained_tokens()}")


if __name__ == "__main__":
    run_script(main)
