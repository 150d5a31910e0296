"""The trainer of distillation: its loss is TRL's, its rows are those of SFT."""

from __future__ import annotations

from pathlib import Path

import torch
import trl
from transformers import AutoModelForCausalLM
from trl.trainer.distillation_trainer import _chunked_divergence_loss

from hftune.arguments.entry import parse_arguments
from hftune.constants import IGNORE_INDEX
from hftune.data.encode import ChatEncoder
from hftune.data.splits import Splits, load_data
from hftune.models.loading.causal_lm import load_causal_lm
from hftune.models.loading.tokenizer import load_tokenizer
from hftune.preflight.facts import resolve
from hftune.trainers.distill import DistillTrainer
from hftune.trainers.distillation.loading import load_teacher


def made(model: Path, teacher: Path, data: Path, folder: Path, *flags: str) -> DistillTrainer:
    """A trainer as the script makes it."""
    argv = [
        *("--model_name_or_path", str(model), "--teacher_model_name_or_path", str(teacher)),
        *("--train_file_dir", str(data / "sft"), "--validation_file_dir", str(data / "sft_eval")),
        *("--output_dir", str(folder), "--report_to", "none", "--distill_mode", "offline"),
        *("--max_steps", "2", "--logging_steps", "1", "--per_device_train_batch_size", "2", *flags),
    ]
    facts = resolve("distill", parse_arguments("distill", argv))
    model_args, data_args, adapter_args, training_args = facts.arguments
    tokenizer = load_tokenizer(model_args, training_args)
    splits: Splits = load_data(ChatEncoder.from_arguments(tokenizer, training_args), data_args, training_args)
    student = load_causal_lm(model_args, adapter_args, training_args, tokenizer, facts.build)
    return DistillTrainer(student, training_args, tokenizer, splits, load_teacher(model_args, training_args))


def test_the_loss_is_trls(tiny_model: Path, tiny_teacher: Path, tiny_data: Path, tmp_path: Path) -> None:
    """With its gradient; formulas are compared in tests/parity/test_papers.py."""
    flags = ("--beta", "0.3", "--temperature", "1.5", "--padding_free", "False")
    trainer = made(tiny_model, tiny_teacher, tiny_data, tmp_path, *flags)
    assert isinstance(trainer, trl.DistillationTrainer)
    assert trainer.teachers.vocabulary == len(trainer.processing_class), "rows of tokens alone are compared"
    records = [trainer.train_dataset[0], trainer.train_dataset[1]]
    batch = trainer._prepare_inputs(trainer.data_collator(records))
    loss = trainer.compute_loss(trainer.model, batch)
    loss.backward()
    found = {name: parameter.grad for name, parameter in trainer.model.named_parameters()}

    student, teacher = (AutoModelForCausalLM.from_pretrained(folder) for folder in (tiny_model, tiny_teacher))
    sums, count = torch.zeros(()), 0
    for record in records:
        ids, labels = torch.tensor([record["input_ids"]]), torch.tensor(record["labels"])
        mask = (labels[1:] != IGNORE_INDEX)[None].long()
        states = [model.base_model(input_ids=ids).last_hidden_state[:, :-1] for model in (student, teacher)]
        heads = [model.get_output_embeddings().weight for model in (student, teacher)]
        theirs, _, number = _chunked_divergence_loss(
            states[0], states[1].detach(), heads[0], heads[1].detach(), mask, 0.3, num_items_in_batch=1,
            temperature=1.5,
        )  # fmt: skip
        sums, count = sums + theirs, count + int(number)
    torch.testing.assert_close(loss, sums / count, rtol=1e-5, atol=1e-5)
    (sums / count).backward()
    for name, parameter in student.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-5, msg=name)


def test_it_trains_evaluates_and_saves_no_teacher(
    tiny_model: Path, tiny_teacher: Path, tiny_data: Path, tmp_path: Path
) -> None:
    trainer = made(tiny_model, tiny_teacher, tiny_data, tmp_path, "--use_peft", "--learning_rate", "1e-2")
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()
    assert after["eval_loss"] < before and after["eval_mean_token_accuracy"] >= 0
    logged = trainer.state.log_history[0]
    assert {"loss", "entropy", "mean_token_accuracy", "num_tokens"} <= logged.keys()
    teacher = trainer.teachers.model
    assert not teacher.training and not any(one.requires_grad for one in teacher.parameters())
    assert not any("teacher" in name for name, _ in trainer.model.named_parameters())
