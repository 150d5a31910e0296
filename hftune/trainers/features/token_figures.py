"""Token accuracy and entropy, as means over the tokens since the last log and not over batches."""

from __future__ import annotations

from hftune.trainers.features.answer_loss import AnswerLoss
from hftune.trainers.features.feature import Feature
from hftune.trainers.features.held_out_loss import HeldOutLoss, weighted_mean
from hftune.trainers.features.run import Run


class TokenFigures(Feature):
    """Puts them where TRL's `SFTTrainer.log` (1.16) looks for what it logs.

    Args:
        answers: Has the sums where labels' places were known.
        held_out: Has the tokens of each batch where they were not, and batches went TRL's own way.
    """

    def __init__(self, answers: AnswerLoss, held_out: HeldOutLoss) -> None:
        self._answers, self._held_out = answers, held_out

    def before_log(self, run: Run, logs: dict[str, float]) -> None:
        """Read the sums of training or evaluation; every rank."""
        mode = "train" if run.model.training else "eval"
        sums = self._answers.sums[mode]
        if sums.sums is not None:
            means, read = sums.take(run.accelerator)
            if mode == "train":
                run._total_train_tokens += read // run._tp_size
            measured = {**means, "num_tokens": run._total_train_tokens}
            run._metrics[mode] |= {name: [value] for name, value in measured.items()}
        elif mode == "eval":
            for name in ("entropy", "mean_token_accuracy"):
                values = run._metrics[mode].get(name)  # looking it up with [] would make an empty entry
                if values:
                    run._metrics[mode][name] = [weighted_mean(values, self._held_out.tokens_per_batch)]
