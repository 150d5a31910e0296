"""Online DPO: the policy answers each prompt several times, and learns from its best and its worst answer."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from hftune.arguments.rl_algorithms import OnlineDPOArguments
from hftune.trainers.online.rollouts import Answers, Batch, RolloutTrainer


def pair_losses(chosen: torch.Tensor, rejected: torch.Tensor, *, beta: float, kind: str) -> torch.Tensor:
    """Losses (pairs,) of the log ratios (pairs,) log policy - log reference of whole answers, in nats.

    sigmoid: -log sigmoid(beta (chosen - rejected)), DPO's (arXiv:2305.18290, eq. 7). ipo: (chosen - rejected -
    1 / (2 beta))^2 (arXiv:2310.12036, eq. 17).
    """
    margin = chosen - rejected
    if kind == "ipo":
        return (margin - 1 / (2 * beta)) ** 2
    assert kind == "sigmoid", kind
    return -F.logsigmoid(beta * margin)


def best_and_worst(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Places (prompts,) of the highest and lowest scores (prompts, answers), and whether they differ.

    Two answers with the same score say nothing about which is better; of a tie the first is taken. NaN is no score.
    """
    highest, best = scores.nan_to_num(nan=-torch.inf).max(dim=1)
    lowest, worst = scores.nan_to_num(nan=torch.inf).min(dim=1)
    return best, worst, highest > lowest


class OnlineDPOTrainer(RolloutTrainer):
    """DPO on the policy's own answers, ranked by the reward (arXiv:2402.04792).

    Of `num_generations` answers to a prompt the best and the worst make a pair; prompts whose answers all score alike
    train nothing. TRL's trainer of this name (1.16, experimental) copies the whole model for an adapter and knows no
    evaluation; this one answers and scores as the other algorithms do.
    """

    args: OnlineDPOArguments

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> Batch:
        """Pairs: (pairs, 2, ...) of chosen and rejected, all answers of a prompt being on one rank."""
        answers = self.answer(inputs)
        number = self.num_generations if self.model.training else self.num_generations_eval
        scores = answers.scores.masked_fill(~answers.scored, torch.nan).view(-1, number)
        best, worst, differ = best_and_worst(scores)
        counts = differ.float()
        rows = torch.arange(len(scores), device=scores.device) * number
        pairs = torch.stack([rows + best, rows + worst], dim=1)
        self._log_pairs(answers, scores, counts)
        assert answers.ref_logps is not None, "preflight asks for --beta above 0"
        whole = answers.tokens() | {"ref_logps": answers.ref_logps}
        # The loss of a micro batch is a sum; divided by the mean number of pairs, steps weigh all pairs alike.
        pieces = self.args.steps_per_generation if self.model.training else 1
        total = self.sum_over_ranks(counts.sum()) / (pieces * self.accelerator.num_processes)
        return {name: tensor[pairs] for name, tensor in whole.items()} | {
            "counts": counts,
            "pairs": total.clamp(min=1e-6),
        }

    def _compute_loss(self, model: Any, inputs: Batch) -> torch.Tensor:
        """A sum over the pairs of a micro-batch, by the mean number of pairs of all micro-batches."""
        counts = inputs["counts"]
        names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "ref_logps")
        flat = {name: inputs[name].flatten(0, 1) for name in names}
        logps, entropies, _ = self.forward_answers(model, flat)
        mask = flat["completion_mask"]
        ratios = ((logps.float() - flat["ref_logps"]) * mask).sum(dim=1).view(-1, 2)
        losses = pair_losses(ratios[:, 0], ratios[:, 1], beta=self.beta, kind=self.args.loss_type)
        self.log_means({"entropy": entropies}, mask)
        self.log_means({"rewards/accuracies": (ratios[:, 0] > ratios[:, 1]).float()}, counts)
        # `counts` is 0 for pairs whose answers scored alike: they stay in the graph and add nothing.
        return (losses * counts).sum() / inputs["pairs"]

    def _log_pairs(self, answers: Answers, scores: torch.Tensor, counts: torch.Tensor) -> None:
        metrics = self._metrics["train" if self.model.training else "eval"]
        self.note(answers, (scores - scores.nanmean(dim=1, keepdim=True)).flatten())
        metrics["frac_reward_zero_std"].append(1 - self.accelerator.gather(counts).mean().item())
        self.log_kl(answers)
