"""Pre-training (or continued pre-training) on plain text.

deepspeed --num_gpus 2 run_pt.py --deepspeed ds_configs/zero2.json --model_name_or_path MODEL \
    --train_file_dir examples/data/pretrain --use_peft --block_size 512 --output_dir outputs/pt

At scale, on documents that are tokenised already: --tokenized_dir FOLDER --datasets web,code --weights 3,1
"""

from hftune.errors import run_script


def main() -> None:
    """Parse, check, tokenise, load, train, save."""
    from hftune.arguments.entry import parse_arguments

    arguments = parse_arguments("pt")

    from hftune.data.encode import TextEncoder
    from hftune.data.splits import load_data
    from hftune.models.adapters.preparation import add_adapter
    from hftune.models.loading.causal_lm import load_causal_lm
    from hftune.models.loading.tokenizer import load_tokenizer
    from hftune.stage import finish_run, start_run
    from hftune.trainers.pt import PTTrainer

    run = start_run("pt", arguments)  # decide what was left open, refuse what cannot work, seed
    model_args, data_args, adapter_args, training_args = run.arguments  # as decided

    tokenizer = load_tokenizer(model_args, training_args)
    encoder = TextEncoder.from_arguments(tokenizer, training_args)
    data = load_data(encoder, data_args, training_args)  # read, tokenise, pack, count

    model = load_causal_lm(model_args, adapter_args, training_args, tokenizer, run.facts.build)
    model = add_adapter(model, adapter_args, training_args)
    trainer = PTTrainer(model, training_args, tokenizer, data)
    finish_run(run, trainer, data)  # resume, train, evaluate, save, manifest


if __name__ == "__main__":
    run_script(main)
