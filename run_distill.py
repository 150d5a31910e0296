"""Distillation: a small model learns what a large one says of each token of the answers.

deepspeed --num_gpus 2 run_distill.py --deepspeed ds_configs/zero2.json --model_name_or_path STUDENT \
    --teacher_model_name_or_path TEACHER --train_file_dir examples/data/sft --use_peft --output_dir outputs/distill
"""

from hftune.errors import run_script


def main() -> None:
    """Parse, check, tokenise, load, train, save."""
    from hftune.arguments.entry import parse_arguments

    arguments = parse_arguments("distill")

    from hftune.data.encode import ChatEncoder
    from hftune.data.splits import load_data
    from hftune.models.adapters.preparation import add_adapter
    from hftune.models.loading.causal_lm import load_causal_lm
    from hftune.models.loading.tokenizer import load_tokenizer
    from hftune.stage import finish_run, start_run
    from hftune.trainers.distill import DistillTrainer
    from hftune.trainers.distillation.loading import check_tokenizers, load_teacher

    run = start_run("distill", arguments)  # decide what was left open, refuse what cannot work, seed
    model_args, data_args, adapter_args, training_args = run.arguments  # as decided

    tokenizer = load_tokenizer(model_args, training_args)
    check_tokenizers(tokenizer, model_args, training_args)
    data = load_data(
        ChatEncoder.from_arguments(tokenizer, training_args), data_args, training_args
    )  # read, tokenise, pack, count

    teacher = load_teacher(model_args, training_args)
    model = load_causal_lm(model_args, adapter_args, training_args, tokenizer, run.facts.build)
    model = add_adapter(model, adapter_args, training_args)
    trainer = DistillTrainer(model, training_args, tokenizer, data, teacher)
    finish_run(run, trainer, data)  # resume, train, evaluate, save, manifest


if __name__ == "__main__":
    run_script(main)
