"""Distillation: a student learns a teacher's distribution of each token of the answers."""

from __future__ import annotations

from typing import Any

import trl
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer, set_seed

from hftune.arguments.distill import DistillArguments
from hftune.arguments.training import StageArguments
from hftune.constants import TEACHER_ROWS
from hftune.data.collators import causal_collator
from hftune.data.splits import Splits
from hftune.models.vocabulary import token_rows
from hftune.trainers.distillation.on_policy import OnPolicyAnswers
from hftune.trainers.distillation.taught_loss import TaughtLoss
from hftune.trainers.distillation.teacher_server import teacher_server
from hftune.trainers.distillation.teachers import LoadedTeacher, ServerTeacher, StoredTeacher
from hftune.trainers.features.answers import PartSeconds
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.token_loss import TokenLoss
from hftune.trainers.token_trainer import TokenTrainer


class TokenRows(trl.DistillationTrainer):
    """TRL's trainer (1.16) on rows of tokens: what it does to draw prompts and to generate in each batch is left out.

    Answers of the student replace those of the records before a step is counted (`distillation/on_policy.py`); from
    there on its rows are like any others.
    """

    # TRL's read prompts of a whole step at once, repeat them, and generate when a batch is prepared.
    get_train_dataloader = Trainer.get_train_dataloader
    get_eval_dataloader = Trainer.get_eval_dataloader
    _get_train_sampler = Trainer._get_train_sampler
    _get_eval_sampler = Trainer._get_eval_sampler
    _set_signature_columns_if_needed = Trainer._set_signature_columns_if_needed
    _prepare_inputs = Trainer._prepare_inputs
    # They count micro batches of generated answers, and know no labels.
    training_step = Trainer.training_step
    prediction_step = Trainer.prediction_step


class DistillTrainer(TokenTrainer, TokenRows):
    """TRL's trainer on records that hftune has tokenised and masked, as those of SFT.

    Args:
        teacher: Frozen, in evaluation mode. None with `args.teacher_targets` or `args.teacher_server_url`.
    """

    extra_columns = ("loss_weights", TEACHER_ROWS)

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        args: DistillArguments,
        tokenizer: PreTrainedTokenizerBase,
        data: Splits,
        teacher: PreTrainedModel | None,
        **kwargs: Any,
    ) -> None:
        stored = args.teacher_targets
        self.teachers: LoadedTeacher | StoredTeacher | ServerTeacher
        if args.teacher_server_url:
            self.teachers = ServerTeacher(teacher_server(args))
        elif stored:
            self.teachers = StoredTeacher(stored)
        else:
            assert teacher is not None, "preflight asks for one"
            self.teachers = LoadedTeacher(teacher, token_rows(tokenizer))
        super().__init__(
            model=model,
            args=args,
            processing_class=tokenizer,
            train_dataset=self.follow(data.train),
            eval_dataset=data.evaluation,
            **kwargs,
        )
        # TRL's trainer takes a collator from nobody.
        self.data_collator = causal_collator(tokenizer.pad_token_id, flat=args.flat_batches)
        self.mixture = data.mixture
        # Tokens are gathered from all processes; TRL knows of those that see the same only through accelerate.
        self._tp_size = args.tensor_parallel_size
        self.train_dataset = data.train

    def build_upstream(self, **kwargs: Any) -> None:
        """TRL's constructor gives each process another seed, so that their answers differ: the order must not."""
        super().build_upstream(**kwargs)
        set_seed(kwargs["args"].seed)

    def make_token_loss(self, args: StageArguments) -> TokenLoss:
        """The divergence from the teachers."""
        self.drawn = OnPolicyAnswers(args.share_on_policy) if args.share_on_policy else None
        return TaughtLoss(self.teachers, args, self.drawn)

    def make_features(self, model: Any, args: StageArguments) -> list[Feature]:
        """Answers are drawn before a batch is counted; the teachers stand next to the loss."""
        *features, loss = super().make_features(model, args)
        first = [] if self.drawn is None else [self.drawn, PartSeconds()]
        # What follows a stream sees a batch first.
        at = 0 if self.stream is None else 1
        return [*features[:at], *first, *features[at:], self.teachers, loss]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Overrides `Trainer.log`: samples of the answers that were drawn are written."""
        super().log(logs, start_time)
        if self.drawn is not None:
            self.drawn.write(self)
