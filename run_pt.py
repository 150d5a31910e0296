"""Pre-training (or continued pre-training) on plain text.

deepspeed --num_gpus 2 run_pt.py --deepspeed ds_configs/zero2.json --model_name_or_path MODEL \
    --train_file_dir examples/data/pretrain --use_peft --block_size 512 --output_dir outputs/pt

At scale, on documents that are tokenised already: --tokenized_dir FOLDER --datasets web,code --weights 3,1
"""

from hftune.arguments import parse_arguments
from hftune.errors import run_script


def main() -> None:
    """Parse, check, tokenise, load, train, save."""
    model_args, data_args, adapter_args, training_args = parse_arguments("pt")

    from hftune.data.splits import load_splits
    from hftune.data.tokenization import tokenize_texts
    from hftune.data.tokenized import open_tokenized
    from hftune.models.adapters import add_adapter
    from hftune.models.loading import load_causal_lm
    from hftune.models.tokenizer import load_tokenizer
    from hftune.stage import finish_run, start_run
    from hftune.trainers.pt import PTTrainer

    run = start_run("pt", model_args, data_args, adapter_args, training_args)

    tokenizer = load_tokenizer(model_args, training_args)
    if data_args.tokenized:
        data = open_tokenized(
            data_args,
            tokenizer,
            block_size=training_args.block_size,
            seed=training_args.seed if training_args.data_seed is None else training_args.data_seed,
        )
    else:
        data = load_splits(
            tokenize_texts,
            data_args,
            tokenizer,
            seed=training_args.seed,
            block_size=training_args.block_size,
            packing=training_args.packing,
            workers=data_args.preprocessing_num_workers,
        )

    model = load_causal_lm(model_args, adapter_args, training_args, tokenizer)
    model = add_adapter(model, adapter_args, training_args)
    trainer = PTTrainer(model, training_args, tokenizer, data)
    finish_run(run, trainer, data)  # resume, train, evaluate, save, manifest


if __name__ == "__main__":
    run_script(main)
