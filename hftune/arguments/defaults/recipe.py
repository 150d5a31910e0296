"""The resolved recipe of a run in a few lines, shown before anything loads; what was not given is marked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hftune.arguments.adapter import AdapterArguments
    from hftune.arguments.data import DataArguments
    from hftune.arguments.model import ModelArguments
    from hftune.arguments.training import StageArguments

MARK = "*"
_LENGTHS = ("block_size", "max_length", "max_prompt_length", "max_completion_length")


class _Words:
    """Values with a mark at those that were not given."""

    def __init__(self, given: frozenset[str]) -> None:
        self.given = given

    def __call__(self, text: Any, *names: str) -> str:
        """`text`, marked unless one of the arguments that it stands for was given."""
        shown = f"{text:g}" if isinstance(text, float) else str(text)
        return shown if self.given & {*names} else shown + MARK


def recipe(
    model_args: ModelArguments, data_args: DataArguments, adapter_args: AdapterArguments, args: StageArguments
) -> list[str]:
    """Rate, schedule, batch, time, lengths, evaluation, adapter and precision of a run, in at most six lines.

    Args:
        args: With `given`, the names of the arguments that were given.
    """
    said = _Words(args.given)
    whose = "MedicalGPT's default" if args.defaults == "medicalgpt" else "default; `hftune explain NAME` says why"
    # --do_eval alone has neither a rate nor a batch to train with.
    steps = [_rate(said, args), _batch(said, args)] if args.do_train else []
    rows = [*steps, _rows(said, data_args, args), _trained(said, model_args, adapter_args, args)]
    return [f"recipe ({MARK} not given: {whose})", *(f"  {row}" for row in rows)]


def _rate(said: _Words, args: StageArguments) -> str:
    warm = args.warmup_steps or 0
    warm_up = f"{100 * warm:g} % of steps" if 0 < warm < 1 else f"{warm:g} steps"
    return (
        f"learning rate {said(args.learning_rate, 'learning_rate')}, {said(args.schedule, 'lr_scheduler_type')}, "
        f"warm-up {said(warm_up, 'warmup_steps')}, {said(args.optim_name, 'optim')}, "
        f"weight decay {said(args.weight_decay, 'weight_decay')}" + _loss(said, args)
    )


def _loss(said: _Words, args: StageArguments) -> str:
    """The loss or algorithm and its beta, where the stage has several; of a distillation its mode and teachers."""
    if isinstance(mode := getattr(args, "distill_mode", None), str):
        return _taught(said, args, mode)
    kinds = getattr(args, "loss_type", None) if not hasattr(args, "rl_algorithm") else [args.rl_algorithm]
    if not isinstance(kinds, list):
        return ""
    if not hasattr(args, "rl_algorithm"):
        return f", loss {said('+'.join(kinds), 'loss_type')} with beta {said(args.beta, 'beta')}"
    rewards = [*(args.reward_model_path or []), *(args.reward_funcs or [])]
    rewarded = said("+".join(rewards), "reward_model_path", "reward_funcs")
    return f", {said(kinds[0], 'rl_algorithm')} with beta {said(args.beta, 'beta')}, rewards {rewarded}"


def _taught(said: _Words, args: Any, mode: str) -> str:
    share = f" ({said(args.on_policy_share, 'on_policy_share')} of the steps)" if mode == "mixed" else ""
    kind = {0.0: " (forward KL)", 1.0: " (reverse KL)"}.get(args.beta, "")
    names = "+".join(Path(name).name for name in args.teacher_names)
    return (
        f", {said(mode, 'distill_mode')}{share} with beta {said(args.beta, 'beta')}{kind}, temperature "
        f"{said(args.temperature, 'temperature')}, taught by {names or 'nobody'}"
    )


def _batch(said: _Words, args: StageArguments) -> str:
    each, steps, share = args.per_device_train_batch_size, args.gradient_accumulation_steps, args.data_parallel_size
    duration = said(args.max_steps, "max_steps") + " steps"
    if args.max_steps <= 0:
        duration = said(float(args.num_train_epochs), "num_train_epochs") + " epoch(s)"
    return (
        f"batch {each * steps * share} = {said(each, 'per_device_train_batch_size')} per device "
        f"x {said(steps, 'gradient_accumulation_steps')} accumulated x {share} process(es); {duration}, "
        f"a log every {said(_share(args.logging_steps), 'logging_steps')}, "
        f"a checkpoint {_when(said, 'save', args.save_strategy, args.save_steps)}"
    )


def _when(said: _Words, what: str, strategy: Any, steps: float) -> str:
    """How often something is done."""
    name = str(getattr(strategy, "value", strategy))
    if name == "steps":
        return f"every {said(_share(steps), f'{what}_steps', f'{what}_strategy')}"
    words = {"no": "never" if what == "save" else "at the end", "epoch": "each epoch"}
    return said(words.get(name, name), f"{what}_strategy")


def _share(steps: float) -> str:
    return f"{100 * steps:g} % of steps" if steps < 1 else "step" if steps == 1 else f"{steps:g} steps"


def _rows(said: _Words, data_args: DataArguments, args: StageArguments) -> str:
    known = [name for name in _LENGTHS if getattr(args, name, None) is not None]
    # max_length is their sum then: the mark belongs to who gave the parts.
    summed = hasattr(args, "too_long") and {"max_prompt_length", "max_completion_length"} <= {*known}
    of_max_length = ("max_length", *(("max_prompt_length", "max_completion_length") if summed else ()))
    lengths = [
        f"{name} {said(getattr(args, name), *(of_max_length if name == 'max_length' else (name,)))}" for name in known
    ]
    if hasattr(args, "too_long"):
        lengths.append(
            f"budget {said(args.length_budget, 'length_budget')}, too long {said(args.too_long, 'too_long')}"
        )
    return f"{', '.join(lengths) or 'no limit of length'}; evaluation {_evaluation(said, data_args, args)}"


def _evaluation(said: _Words, data_args: DataArguments, args: StageArguments) -> str:
    share = data_args.validation_split_percentage
    if data_args.validation_file_dir or data_args.validation_tokenized_dir or data_args.tokenized:
        held = " of the held-out records"
    elif share > 0:
        held = f" of {said(share, 'validation_split_percentage')} % of the records"
    else:
        return "none: nothing is held out"
    return _when(said, "eval", args.eval_strategy, args.eval_steps or args.logging_steps) + held


def _trained(said: _Words, model_args: ModelArguments, adapter_args: AdapterArguments, args: StageArguments) -> str:
    if adapter_args.use_peft:
        bits = " on 4 bit" if adapter_args.load_in_4bit else " on 8 bit" if adapter_args.load_in_8bit else ""
        which = said("LoRA", "use_peft", "qlora", "peft_path", "train_new_tokens_only") + bits
        which += f" r {said(adapter_args.lora_r, 'lora_r')}, alpha {said(adapter_args.lora_alpha, 'lora_alpha')}, "
        which += f"dropout {said(adapter_args.lora_dropout, 'lora_dropout')} on "
        which += said(",".join(adapter_args.lora_target_modules), "lora_target_modules")
    else:
        which = said("all weights", "use_peft")
    # Mixed precision: what is stored and what is computed in are two settings.
    computed = "bf16" if args.bf16 else "fp16" if args.fp16 else "float32"
    return f"{which}; weights {said(model_args.dtype, 'dtype')}, computed in {said(computed, 'bf16', 'fp16')}"
