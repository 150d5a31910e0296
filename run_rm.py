"""Reward model on preference pairs, or (--reward_kind process) on answers in labelled steps.

deepspeed --num_gpus 2 run_rm.py --deepspeed ds_configs/zero2.json --model_name_or_path MERGED_SFT \
    --train_file_dir examples/data/preference --validation_file_dir examples/data/preference_eval --use_peft \
    --output_dir outputs/rm
"""

from hftune.errors import run_script


def main() -> None:
    """Parse, check, tokenise, load, train, save."""
    from hftune.arguments.entry import parse_arguments

    arguments = parse_arguments("rm")

    from hftune.data.splits import load_splits, make_encoder
    from hftune.models.adapters.preparation import add_adapter
    from hftune.models.loading.reward_model import load_reward_model
    from hftune.models.loading.tokenizer import load_tokenizer
    from hftune.stage import finish_run, start_run
    from hftune.trainers.process_reward import reward_trainer

    run = start_run("rm", arguments)  # decide what was left open, refuse what cannot work, seed
    model_args, data_args, adapter_args, training_args = run.arguments  # as decided

    tokenizer = load_tokenizer(model_args, training_args)
    encoder = make_encoder("rm", tokenizer, training_args, data_args)  # pairs, or answers in steps
    data = load_splits(encoder, data_args, training_args)  # read, tokenise, count

    model = load_reward_model(model_args, adapter_args, training_args, tokenizer, run.facts.build)
    model = add_adapter(model, adapter_args, training_args)
    trainer = reward_trainer(model, training_args, tokenizer, data)
    finish_run(run, trainer, data)  # resume, train, evaluate, save, manifest


if __name__ == "__main__":
    run_script(main)
