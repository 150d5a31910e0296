"""What the trainers that draw their own data share: order of prompts, guards, samples, going on from a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler
from transformers import PreTrainedModel
from trl.trainer.utils import RepeatSampler

from hftune.data.corpus.mixing import LookedUp, MixtureSampler
from hftune.distributed import phases, ranks
from hftune.errors import ManifestError, shown
from hftune.logging import notice
from hftune.opening.model_files import read_checked
from hftune.trainers.dynamic_sampling import groups_that_differ
from hftune.trainers.features.phases import passes_heard
from hftune.trainers.guards import AllAlike, Drift, distinct_ngrams
from hftune.trainers.rewards import Rewards
from hftune.trainers.stage_trainer import HftuneTrainerMixin, innermost_sampler
from hftune.trainers.text_keeping import KeepsTextMixin

SAMPLES_NAME = "completions.jsonl"
"""Samples of a run: a line a completion, with its step, prompt, rewards and advantage."""

STATE_NAME = "online_state.json"
"""The file of a checkpoint with what the guards compare with."""


class OnlineMixin(KeepsTextMixin):
    """Put before `HftuneTrainerMixin` and one of TRL's trainers that generate.

    Attributes:
        judges: As `load_rewards` returns them: scored, logged, and never trained on.
    """

    judges: Rewards = ([], [])
    _drift: Drift
    _alike: AllAlike
    _shown = -1

    def count_trained_tokens(self: Any) -> int:
        """Tokens of all completions that were trained on, over all ranks; from the logged mean lengths."""
        args = self.args
        # An epoch over the same answers trains them again.
        per_step = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
        logged = [entry for entry in self.state.log_history if "completions/mean_length" in entry]
        steps = [0, *(entry["step"] for entry in logged)]
        return round(
            sum(
                entry["completions/mean_length"] * per_step * (step - before)
                for entry, before, step in zip(logged, steps, steps[1:], strict=False)
            )
        )

    def _get_train_sampler(self: Any, dataset: Any = None) -> Sampler:
        """A mixture's order of prompts inside TRL's pattern of repeats (answers of a prompt, reuse of answers)."""
        drawn = super()._get_train_sampler(dataset)  # type: ignore[misc]
        if not isinstance(drawn, MixtureSampler):
            return drawn
        # The pattern over the places 0, 1, 2, ... of an epoch; each place is then looked up in the epoch's order.
        pattern = super(HftuneTrainerMixin, self)._get_train_sampler(range(len(drawn)))  # type: ignore[misc]
        pattern.shuffle = False
        return LookedUp(pattern, drawn)

    def _run_epoch(self: Any, *, train_dataloader: DataLoader, epoch: int, **kwargs: Any) -> Any:
        """As the Trainer's; an epoch's order depends on its number, so a run that goes on sees the same one.

        TRL's sampler (1.16) draws one permutation after the other, and begins again with the first on resuming.
        """
        sampler = innermost_sampler(train_dataloader)
        if isinstance(sampler, RepeatSampler) and sampler.shuffle:
            sampler.generator.manual_seed(self.args.seed + epoch)
        return super()._run_epoch(train_dataloader=train_dataloader, epoch=epoch, **kwargs)  # type: ignore[misc]

    def training_step(self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As TRL's. A run that goes on stands where it stopped in its batch of answers, which is drawn again."""
        if self._step == 0 and self.state.global_step:
            self._step = self.state.global_step * self.args.gradient_accumulation_steps
        step: torch.Tensor = super().training_step(*args, **kwargs)  # type: ignore[misc]
        return step

    def _generate(self: Any, prompts: list[Any]) -> Any:
        """As TRL's (1.16), as a phase that the watchdog times; what follows it is scoring."""
        phases.enter(phases.GENERATION, self.state.global_step)
        with passes_heard(self.accelerator.unwrap_model(self.model, keep_torch_compile=False)):
            result = super()._generate(prompts)  # type: ignore[misc]
        phases.enter(phases.REWARDS)
        return result

    def _get_per_token_logps_and_entropies(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        """As TRL's (1.16), which goes through a batch of answers in pieces; each is a sign of life."""
        compute = super()._get_per_token_logps_and_entropies  # type: ignore[misc]
        if torch.is_grad_enabled() or self.args.torch_compile:
            return compute(model, *args, **kwargs)
        with passes_heard(self.accelerator.unwrap_model(model)):
            return compute(model, *args, **kwargs)

    def _calculate_rewards(
        self: Any, inputs: list[dict[str, Any]], prompts: list[Any], completions: list[Any], ids: list[list[int]]
    ) -> torch.Tensor:
        """As TRL's (completions of all ranks, functions), with the guards measured on the way."""
        phases.enter(phases.REWARDS)  # what reads log-probabilities before may have taken long
        rewards: torch.Tensor = super()._calculate_rewards(inputs, prompts, completions, ids)  # type: ignore[misc]
        metrics = self._metrics["train" if self.model.training else "eval"]
        distinct = torch.tensor([distinct_ngrams(one) for one in ids], device=self.accelerator.device)
        metrics["completions/distinct_3"].append(self.accelerator.gather(distinct).mean().item())
        if self.model.training:
            self._say_if_all_are_alike(rewards, prompts, ids)
        if self.mask_truncated_completions:
            self._say_if_all_are_cut(ids)
        if self.judges[0]:
            phases.enter(phases.REWARDS)
            judged = self._judge(inputs, prompts, completions, ids)
            weighted = (rewards * self.reward_weights.to(rewards.device)).nansum(dim=1)
            for column, name in enumerate(self._judge_names):
                metrics[f"judge/{name}/mean"].append(judged[:, column].nanmean().item())
            drift = self._drift.measure(weighted.tolist(), judged.nanmean(dim=1).tolist())
            metrics["judge/drift"].append(drift)
        return rewards

    def _say_if_all_are_alike(self: Any, rewards: torch.Tensor, prompts: list[Any], ids: list[list[int]]) -> None:
        """No gradient, no error and no word would come of it.

        Args:
            rewards: (completions of all ranks, functions).
        """
        weighted = (rewards * self.reward_weights.to(rewards.device)).nansum(dim=1)
        group = self.num_generations if self.num_generations > 1 else len(rewards)  # PPO: one answer a prompt
        said = self._alike.measure(
            groups_that_differ(weighted, group),
            means=dict(zip(self.reward_func_names, rewards.nanmean(dim=0).tolist(), strict=True)),
            asked=any(isinstance(prompt, list) and prompt[0]["role"] == "system" for prompt in prompts),
            cut=1.0 - self._ended(ids),
            limit=self.max_completion_length,
        )
        if said:
            notice(said)

    def _ended(self: Any, ids: list[list[int]]) -> float:
        """Share of the answers of all ranks that end by themselves."""
        ends = {*self.eos_token_ids, self._tokenizer.pad_token_id}
        ended = torch.tensor([sum(one[-1] in ends for one in ids if one) / len(ids)], device=self.accelerator.device)
        return float(self.accelerator.gather(ended).mean())

    def _say_if_all_are_cut(self: Any, ids: list[list[int]]) -> None:
        """No gradient, no error and no word would come of it."""
        if not self._ended(ids):
            notice(
                f"no answer of a batch ends within --max_completion_length {self.max_completion_length}, and "
                "--mask_truncated_completions trains on none that is cut: such steps train nothing"
            )

    def _judge(self: Any, inputs: Any, prompts: Any, completions: Any, ids: Any) -> torch.Tensor:
        """The judges' scores, by TRL's own way of asking reward models and functions."""
        names = ("reward_funcs", "reward_processing_classes", "reward_func_names")
        trained = {name: getattr(self, name) for name in names}
        values = (*self.judges, self._judge_names)
        for name, value in zip(names, values, strict=True):
            setattr(self, name, value)
        try:
            judged: torch.Tensor = super()._calculate_rewards(inputs, prompts, completions, ids)  # type: ignore[misc]
            return judged
        finally:
            for name, value in trained.items():
                setattr(self, name, value)

    def set_judges(self: Any, judges: Rewards) -> None:
        """Take on judges, placed where the trained rewards are."""
        functions, tokenizers = judges
        self._judge_names = [
            Path(source.config._name_or_path).name if isinstance(source, PreTrainedModel) else source.__name__
            for source in functions
        ]
        placed = [
            source.to(self.args.device) if isinstance(source, torch.nn.Module) else source for source in functions
        ]
        self.judges, self._drift, self._alike = (placed, tokenizers), Drift(), AllAlike()

    def log(self: Any, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """As TRL's; samples of the last batch of answers go into `completions.jsonl`."""
        super().log(logs, *args, **kwargs)  # type: ignore[misc]
        new = self.state.global_step != self._shown and self._logs["prompt"]
        if new and self.args.sample_completions and ranks.is_main():
            self._shown = self.state.global_step
            self._write_samples(Path(self.args.output_dir) / SAMPLES_NAME)

    def _write_samples(self: Any, file: Path) -> None:
        logs = self._logs
        columns = {name: list(values) for name, values in logs["rewards"].items()}
        rows = zip(logs["prompt"], logs["completion"], logs["advantages"], strict=False)
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as stream:
            for index, (prompt, completion, advantage) in enumerate(rows):
                if index == self.args.sample_completions:
                    break
                row = {
                    "step": self.state.global_step,
                    "mode": "train" if self.model.training else "eval",
                    "prompt": prompt,
                    "completion": _shown(completion),
                    "rewards": {name: values[index] for name, values in columns.items() if index < len(values)},
                    "advantage": advantage,
                }
                stream.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")

    def train(self: Any, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """As the Trainer's; a fresh run begins its samples anew, one that goes on keeps what it compares with."""
        resumes = isinstance(resume_from_checkpoint, str)
        samples = Path(self.args.output_dir) / SAMPLES_NAME
        if ranks.is_main() and not resumes:
            samples.unlink(missing_ok=True)
        state = Path(str(resume_from_checkpoint)) / STATE_NAME
        if resumes and self.judges[0] and state.is_file():
            self._drift = Drift(first_judgement(state))
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)  # type: ignore[misc]

    def _save_beside(self: Any, folder: Path) -> None:
        super()._save_beside(folder)  # type: ignore[misc]
        if self.judges[0] and ranks.is_main():
            (folder / STATE_NAME).write_text(json.dumps(self._drift.state()), encoding="utf-8")


def _shown(completion: Any) -> Any:
    """An answer to the letter, as it was rewarded; as messages where there are several, or calls of tools."""
    if isinstance(completion, str):
        return completion
    if len(completion) != 1 or completion[0].get("tool_calls"):
        return completion
    return str(completion[0]["content"])


def first_judgement(file: Path) -> dict[str, tuple[float, float]]:
    """Mean and deviation of each judge's first scores, as a checkpoint has them.

    Raises:
        ManifestError: The file holds something else.
    """
    found = read_checked(file)["first"]
    for name, pair in found.items():
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(number, int | float) for number in pair):
            cause = f"{file}: {shown(ascii(name))} has no mean and deviation"
            raise ManifestError(cause, place=str(file), fix="resume from another checkpoint")
    return {name: (mean, std) for name, (mean, std) in found.items()}
