"""Rules of run_rl.py: rewards, settings that exclude each other, and generation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from hftune.arguments.rl_algorithms import GRPOArguments, RLFields
from hftune.arguments.training import StageArguments
from hftune.checkpoints.manifest import read_manifest
from hftune.errors import ArgumentError, UserError
from hftune.logging import notice
from hftune.path_hints import looks_local, missing_folder
from hftune.preflight.facts import Facts
from hftune.preflight.rules import refused
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
    if args.use_transformers_continuous_batching and (args.bf16 or args.fp16):
        notice("--use_transformers_continuous_batching: TRL turns trained weights into 16 bits for good")
    if data_args.validation_file_dir or data_args.validation_split_percentage > 0:
        yield from _check_evaluation(args)
    if isinstance(args, GRPOArguments):
        yield from _check_dynamic_sampling(args)
        _say_means_of_micro_batches(args, facts.world.processes)
    yield from refused("rl", facts)
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


def _check_patience(args: RLFields) -> Iterator[UserError]:
    """A problem where nothing is called that could fail: reward models and built-in functions are computed here."""
    given = [
        name for name in ("reward_timeout", "reward_retries", "reward_cache") if getattr(args, name) not in (None, 0)
    ]
    if given and not any(":" in name for name in args.reward_funcs or []):
        yield ArgumentError(
            "only reward functions of your own are waited for, and none is named",
            place=", ".join(f"--{name}" for name in given),
            fix="leave it out, or give --reward_funcs FILE.py:FUNCTION",
        )


def _check_reward_cache(args: RLFields) -> Iterator[UserError]:
    """Problems of the files of rewards, to which a run adds."""
    if args.reward_cache:
        yield from check_place(args.reward_cache, kind=REWARDS, flag="--reward_cache")


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
