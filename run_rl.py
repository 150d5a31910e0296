"""Reinforcement learning from a reward model, from reward functions, or from both.

deepspeed --num_gpus 2 run_rl.py --deepspeed ds_configs/zero2.json --model_name_or_path MERGED_SFT \
    --reward_model_path outputs/rm --train_file_dir examples/data/prompts --use_peft --rl_algorithm grpo \
    --output_dir outputs/rl
"""

from functools import partial

from hftune.errors import run_script


def main() -> None:
    """Parse, check, tokenise, load, train, save."""
    from hftune.arguments.entry import parse_arguments

    arguments = parse_arguments("rl")

    from hftune.data.encode_prompts import PromptEncoder
    from hftune.data.splits import load_splits
    from hftune.models.adapters.preparation import add_adapter
    from hftune.models.loading.causal_lm import load_causal_lm
    from hftune.models.loading.tokenizer import load_tokenizer
    from hftune.stage import finish_run, start_run
    from hftune.trainers.online.tools import load_tools
    from hftune.trainers.rewards.loading import load_rewards
    from hftune.trainers.rl import rl_trainer

    run = start_run("rl", arguments)  # decide what was left open, refuse what cannot work, seed
    model_args, data_args, adapter_args, training_args = run.arguments  # as decided

    tokenizer = load_tokenizer(model_args, training_args)
    tools = load_tools(training_args, tokenizer)
    encoder = PromptEncoder.from_arguments(tokenizer, training_args)
    data = load_splits(encoder, data_args, training_args)  # read, tokenise, count
    rewards = load_rewards(training_args, model_args)

    read_model = partial(load_causal_lm, model_args, adapter_args, training_args, tokenizer, run.facts.build)
    model = add_adapter(read_model(), adapter_args, training_args)
    starts = adapter_args.starts_as_base
    trainer = rl_trainer(
        model, training_args, tokenizer, data, rewards,
        tools=tools, starts_as_base=starts, read_again=read_model,
    )  # fmt: skip
    finish_run(run, trainer, data)  # resume, train, evaluate, save, manifest


if __name__ == "__main__":
    run_script(main)
