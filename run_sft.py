"""Supervised fine-tuning on conversations.

deepspeed --num_gpus 2 run_sft.py --deepspeed ds_configs/zero2.json --model_name_or_path MODEL \
    --train_file_dir examples/data/sft --validation_file_dir examples/data/sft_eval --use_peft --output_dir outputs/sft
"""

from hftune.arguments import parse_arguments
from hftune.errors import run_script


def main() -> None:
    """Parse, check, tokenise, load, train, save."""
    model_args, data_args, adapter_args, training_args = parse_arguments("sft")

    from hftune.data.packing import packings
    from hftune.data.splits import load_splits
    from hftune.data.tokenization import tokenize_chat
    from hftune.models.adapters import add_adapter
    from hftune.models.loading import load_causal_lm
    from hftune.models.tokenizer import load_tokenizer
    from hftune.stage import finish_run, start_run
    from hftune.trainers.sft import SFTTrainer

    run = start_run("sft", model_args, data_args, adapter_args, training_args)

    tokenizer = load_tokenizer(model_args, training_args)
    data = load_splits(
        tokenize_chat,
        data_args,
        tokenizer,
        seed=training_args.seed,
        packing=packings(training_args, "max_length"),
        max_length=training_args.max_length,
        train_on_inputs=training_args.train_on_inputs,
        last_turn_only=training_args.train_on_last_turn,
        workers=data_args.preprocessing_num_workers,
    )

    model = load_causal_lm(model_args, adapter_args, training_args, tokenizer)
    model = add_adapter(model, adapter_args, training_args)
    trainer = SFTTrainer(model, training_args, tokenizer, data)
    finish_run(run, trainer, data)  # resume, train, evaluate, save, manifest


if __name__ == "__main__":
    run_script(main)
