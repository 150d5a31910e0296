"""Direct preference optimisation on preference pairs, the way without a reward model.

deepspeed --num_gpus 2 run_dpo.py --deepspeed ds_configs/zero2.json --model_name_or_path MERGED_SFT \
    --train_file_dir examples/data/preference --validation_file_dir examples/data/preference_eval --use_peft \
    --output_dir outputs/dpo
"""

from hftune.errors import run_script


def main() -> None:
    """Parse, check, tokenise, load, train, save."""
    from hftune.arguments.entry import parse_arguments

    arguments = parse_arguments("dpo")

    from hftune.data.splits import load_splits, make_encoder
    from hftune.models.adapters.preparation import add_adapter
    from hftune.models.loading.causal_lm import load_causal_lm, load_reference
    from hftune.models.loading.tokenizer import load_tokenizer
    from hftune.stage import finish_run, start_run
    from hftune.trainers.dpo import DPOTrainer

    run = start_run("dpo", arguments)  # decide what was left open, refuse what cannot work, seed
    model_args, data_args, adapter_args, training_args = run.arguments  # as decided

    tokenizer = load_tokenizer(model_args, training_args)
    encoder = make_encoder("dpo", tokenizer, training_args, data_args)  # pairs, or answers with a label
    data = load_splits(encoder, data_args, training_args)  # read, tokenise, count

    model = load_causal_lm(model_args, adapter_args, training_args, tokenizer, run.facts.build)
    model = add_adapter(model, adapter_args, training_args)
    reference = load_reference(model_args, adapter_args, training_args, tokenizer)  # often none is needed
    starts_as_base = adapter_args.starts_as_base
    trainer = DPOTrainer(model, training_args, tokenizer, data, ref_model=reference, starts_as_base=starts_as_base)
    finish_run(run, trainer, data)  # resume, train, evaluate, save, manifest


if __name__ == "__main__":
    run_script(main)
