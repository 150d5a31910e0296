"""Rules of run_rl.py: rewards, settings that exclude each other, and generation."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path

from transformers import PreTrainedConfig

from hftune.arguments.adapter import AdapterArguments
from hftune.arguments.model import ModelArguments
from hftune.arguments.rl_algorithms import BUILTIN_REWARDS, GRPOArguments, OnlineDPOArguments, PPOArguments, RLFields
from hftune.arguments.training import StageArguments
from hftune.checkpoints.manifest import read_manifest
from hftune.errors import ArgumentError, UserError
from hftune.logging import notice
from hftune.models.loading.config import model_config
from hftune.path_hints import looks_local, missing_folder
from hftune.preflight.facts import Facts
from hftune.publishing.places import REWARDS, check_place


def check_rl(facts: Facts) -> Iterator[UserError]:
    """Problems of run_rl.py."""
    data_args, args = facts.data_args, facts.training_args
    assert isinstance(args, RLFields)
    models = args.reward_model_path or []
    yield from check_rewards(args.reward_funcs or [], models)
    yield from _check_weights(args)
    yield from _check_patience(args)
    yield from _check_reward_cache(args)
    yield from _check_generation(args)
    if data_args.validation_file_dir or data_args.validation_split_percentage > 0:
        yield from _check_evaluation(args)
    if isinstance(args, GRPOArguments):
        yield from _check_dynamic_sampling(args)
        _say_means_of_micro_batches(args, facts.world.processes)
    if isinstance(args, PPOArguments):
        yield from _check_ppo(args)
    if isinstance(args, OnlineDPOArguments):
        yield from _check_online_dpo(args)
    if facts.config is not None:
        yield from _check_head(facts.config, facts.adapter_args, args)
        yield from check_reference(facts.config, facts.model_args, facts.adapter_args, args)
    _say_other_bases(str(facts.model_args.model_name_or_path), models)


def check_rewards(sources: Iterable[str | None], model_paths: Iterable[str]) -> Iterator[UserError]:
    """Problems of rewards: none was named, or a folder holds no reward model."""
    model_paths = list(model_paths)
    if not model_paths and not list(sources):
        yield ArgumentError(
            "RL needs a reward, and none was named",
            place="--reward_model_path / --reward_funcs",
            fix="add --reward_funcs accuracy format, which are MedicalGPT's: records hold the right answer as "
            '"answer" or "solution", and as "system" a prompt that asks for <think>...</think> and then the answer; or '
            "add --reward_model_path OUTPUT_OF_RUN_RM; or a function of yours, --reward_funcs FILE.py:FUNCTION",
        )
    for path in model_paths:
        manifest = read_manifest(path)
        if looks_local(path) and not Path(path).is_dir():
            yield missing_folder(path, "--reward_model_path", "the output folder of run_rm.py")
        elif manifest and manifest.get("head") not in ("score", "steps"):
            yield ArgumentError(
                f"{path} was made by the {manifest.get('stage')} stage and has no score head",
                place="--reward_model_path",
                fix="give the output folder of run_rm.py, or its merged model",
            )


def _check_weights(args: RLFields) -> Iterator[UserError]:
    weights = getattr(args, "reward_weights", None)
    count = len(args.reward_model_path or []) + len(args.reward_funcs or [])
    if weights is not None and len(weights) != count:
        yield ArgumentError(
            f"{len(weights)} weights for {count} rewards",
            place="--reward_weights",
            fix="give one for each of --reward_model_path, then of --reward_funcs",
        )
    for name in args.judge_reward or []:
        # FILE.py:FUNCTION is no folder, and a relative name may be on the Hub.
        if Path(name).is_absolute() and ":" not in name and not Path(name).is_dir():
            yield ArgumentError(
                f"there is no folder {name}",
                place="--judge_reward",
                fix=f"give a reward model, a function, or one of {', '.join(BUILTIN_REWARDS)}",
            )


def _check_patience(args: RLFields) -> Iterator[UserError]:
    """A problem where nothing is called that could fail: reward models and built-in functions are computed here."""
    given = [
        name for name in ("reward_timeout", "reward_retries", "reward_cache") if getattr(args, name) not in (None, 0)
    ]
    if given and all(name in BUILTIN_REWARDS for name in args.reward_funcs or []):
        yield ArgumentError(
            "only reward functions of your own are waited for, and none is named",
            place=", ".join(f"--{name}" for name in given),
            fix="leave it out, or give --reward_funcs FILE.py:FUNCTION",
        )


def _check_reward_cache(args: RLFields) -> Iterator[UserError]:
    """Problems of the files of rewards, to which a run adds."""
    if args.reward_cache:
        yield from check_place(args.reward_cache, kind=REWARDS, flag="--reward_cache")


def _check_generation(args: StageArguments) -> Iterator[UserError]:
    # 0 asks `hftune chat` for the likeliest tokens.
    if args.temperature == 0:
        cause = "at temperature 0 all answers to a prompt are the same, and there is nothing to compare"
        yield ArgumentError(cause, place="--temperature 0", fix="give a number above 0")
    if args.use_vllm and importlib.util.find_spec("vllm") is None:
        yield ArgumentError(
            "vLLM is not installed",
            place="--use_vllm",
            fix='leave it out (answers are made by transformers then), or pip install "trl[vllm]" for a GPU',
        )
    elif args.use_vllm and args.use_cpu:
        yield ArgumentError("vLLM needs a GPU here", place="--use_vllm", fix="leave it out")
    if args.use_vllm and args.zero_stage == 3 and not args.ds3_gather_for_generation:
        yield ArgumentError(
            "vLLM is sent whole weights, which must be gathered",
            place="--ds3_gather_for_generation False",
            fix="leave it out",
        )
    if args.use_transformers_continuous_batching and args.use_cpu:
        yield ArgumentError(
            "continuous batching takes most of the machine's memory for its cache, and gains nothing on a CPU",
            place="--use_transformers_continuous_batching",
            fix="leave it out",
        )
    elif args.use_transformers_continuous_batching and (args.bf16 or args.fp16):
        notice("--use_transformers_continuous_batching: TRL turns trained weights into 16 bits for good")


def _check_evaluation(args: StageArguments) -> Iterator[UserError]:
    """A problem where held-out answers do not fill whole groups; TRL looks only where it evaluates on the way."""
    # TRL's sampler repeats each held-out prompt so often, and drops none.
    number = args.num_generations_eval or args.num_generations
    if rest := (args.per_device_eval_batch_size * args.world_size) % number:
        yield ArgumentError(
            f"held-out prompts are answered {number} times each, and {rest} answers are over in a batch of all "
            "processes",
            place="--per_device_eval_batch_size, --num_generations_eval",
            fix="make the first times the number of processes a multiple of the second",
        )


def _check_dynamic_sampling(args: GRPOArguments) -> Iterator[UserError]:
    if not args.dynamic_sampling:
        return
    # Answers are made for several steps at once and then cut into micro batches.
    rows = args.per_device_train_batch_size * args.steps_per_generation
    if rows % args.num_generations:
        yield ArgumentError(
            f"groups of {args.num_generations} answers do not fit into the {rows} of a process, where they must be "
            "whole to be replaced",
            place="--dynamic_sampling, --num_generations",
            fix=f"make --per_device_train_batch_size x --gradient_accumulation_steps a multiple of "
            f"{args.num_generations}, or use --dynamic_sampling False",
        )
    if args.scale_rewards == "batch" or args.multi_objective_aggregation != "sum_then_normalize":
        yield ArgumentError(
            "advantages that are scaled over a batch are wrong once prompts of it are replaced",
            place="--dynamic_sampling",
            fix="use --scale_rewards group or none with --multi_objective_aggregation sum_then_normalize",
        )


def _check_ppo(args: PPOArguments) -> Iterator[UserError]:
    if args.critic_init == "reward" and not args.reward_model_path:
        yield ArgumentError(
            "there is no reward model that the critic could begin as",
            place="--critic_init reward",
            fix="add --reward_model_path, or use --critic_init policy",
        )
    if args.critic_init == "reward" and args.critic == "shared":
        yield ArgumentError(
            "a head on the policy's states has no model of its own to begin with",
            place="--critic shared --critic_init reward",
            fix="use --critic separate, or leave out --critic_init",
        )
    if args.kl_target is not None and not args.beta:
        yield ArgumentError(
            "a KL target moves beta in proportion, and 0 stays 0",
            place="--kl_target, --beta",
            fix="give --beta 0.05 to begin with, say, or leave out --kl_target",
        )


def _check_online_dpo(args: OnlineDPOArguments) -> Iterator[UserError]:
    if args.num_generations < 2:
        yield ArgumentError(
            "one answer a prompt makes no pair", place="--num_generations", fix="give 2 (its default) or more"
        )
    if not args.beta:
        yield ArgumentError("DPO divides by beta", place="--beta", fix="give 0.1 (its default), say")
    if args.per_device_train_batch_size % args.num_generations:
        yield ArgumentError(
            f"{args.num_generations} answers a prompt do not fit into micro-batches of "
            f"{args.per_device_train_batch_size}, where a pair must be whole",
            place="--per_device_train_batch_size",
            fix=f"give a multiple of {args.num_generations}",
        )


def _check_head(config: PreTrainedConfig, adapter_args: AdapterArguments, args: RLFields) -> Iterator[UserError]:
    """A problem of a head in float32 that is the embedding as well: TRL (1.16) does not look below the adapter."""
    if getattr(args, "cast_lm_head_to_fp32", False) and adapter_args.use_peft and config.tie_word_embeddings:
        yield ArgumentError(
            "this model's head is its embedding, which TRL does not find below an adapter",
            place="--cast_lm_head_to_fp32 with --use_peft",
            fix="leave it out: log-probabilities are computed in float32 from the head's products",
        )


def check_reference(
    config: PreTrainedConfig, model_args: ModelArguments, adapter_args: AdapterArguments, training_args: StageArguments
) -> Iterator[UserError]:
    """A problem where TRL would load the reference from the same name without how the model was loaded.

    With an adapter the reference is the model with its adapter off, which is right whatever was asked.
    """
    if adapter_args.use_peft or not training_args.keeps_reference:
        return
    # A folder has no revisions.
    on_hub = not Path(str(model_args.model_name_or_path)).is_dir()
    told = {
        "--from_config": model_args.from_config,
        "--model_revision": on_hub and model_args.model_revision != "main",
        "--rope_scaling": _is_scaled_here(config, model_args, training_args),
    }
    if lost := [flag for flag, is_lost in told.items() if is_lost]:
        yield ArgumentError(
            f"the reference model would be loaded without {', '.join(lost)}, and be another model",
            place=", ".join(lost),
            fix="add --use_peft, or save the model as it is to be (run_sft.py) and name that folder",
        )


def _is_scaled_here(config: PreTrainedConfig, model_args: ModelArguments, training_args: StageArguments) -> bool:
    if model_args.rope_scaling is None:
        return False
    # Positions that were stretched before are in the folder's config, where TRL finds them as well.
    plain = model_config(dataclasses.replace(model_args, rope_scaling=None, rope_factor=None), training_args)
    return bool(plain.get_text_config().rope_parameters != config.get_text_config().rope_parameters)


def _say_means_of_micro_batches(args: GRPOArguments, processes: int) -> None:
    """Notice what TRL (1.16) takes over a micro batch: other losses where a step is cut in another way."""
    bonus = args.entropy_coef or args.use_adaptive_entropy
    # The quantile is that of all processes.
    taken = [
        (args.loss_type == "bnpo", processes, "--loss_type bnpo, a mean over tokens (dapo's is over the whole step)"),
        (bool(bonus), processes, "--entropy_coef, a mean over tokens"),
        (args.top_entropy_quantile < 1.0, 1, "--top_entropy_quantile, a quantile of tokens"),
    ]
    for here, parts, what in taken:
        if here and parts * args.gradient_accumulation_steps > 1:
            notice(f"{what}, is taken over each micro batch: a step that is cut in another way has another loss")


def _say_other_bases(model: str, reward_models: Iterable[str]) -> None:
    """Notice a policy that is another model than the rewards' base: an SFT adapter may be left out."""
    # A notice, no refusal: a reward model may be of any architecture.
    for path in reward_models:
        base = ((read_manifest(path) or {}).get("base") or {}).get("name")
        if base and Path(base).resolve() != Path(model).resolve():
            notice(f"{path} was trained upon {base}, and RL begins from {model}: is an SFT adapter left out?")
