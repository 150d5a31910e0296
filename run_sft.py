"""Supervised fine-tuning on conversations.

deepspeed --num_gpus 2 run_sft.py --deepspeed ds_configs/zero2.json --model_name_or_path MODEL \
    --train_file_dir examples/data/sft --validation_file_dir examples/data/sft_eval --use_peft --output_dir outputs/sft
"""

from hftune.errors import run_script


def main() -> None:
    """Parse, check, tokenise, load, train, save."""
    from hftune.arguments.entry import parse_arguments

    arguments = parse_arguments("sft")

    from hftune.data.encode import ChatEncoder
    from hftune.data.splits import load_data
    from hftune.models.adapters.preparation import add_adapter
    from hftune.models.loading.causal_lm import load_causal_lm
    from hftune.models.loading.tokenizer import load_tokenizer
    from hftune.stage import finish_run, start_run
    from hftune.trainers.sft import SFTTrainer

    run = start_run("sft", arguments)  # decide what was left open, refuse what cannot work, seed
    model_args, data_args, adapter_args, training_args = run.arguments  # as decided

    tokenizer = load_tokenizer(model_args, training_args)
    encoder = ChatEncoder.from_arguments(tokenizer, training_args)
    data = load_data(encoder, data_args, training_args)  # read, tokenise, pack, count

    model = load_causal_lm(model_args, adapter_args, training_args, tokenizer, run.facts.build)
    model = add_adapter(model, adapter_args, training_args)
    trainer = SFTTrainer(model, training_args, tokenizer, data)
    finish_run(run, trainer, data)  # resume, train, evaluate, save, manifest


if __name__ == "__main__":
    run_script(main)
