"""Fine-tuning on conversations or pairs as each tool does it, watched; `train.py` and `preference.py` run this.

PYTHON benchmarks/train_tools.py TOOL --data sharegpt.jsonl --model MODEL --pad_id 0 [--packing] [--cuda] [--bits 4]
PYTHON benchmarks/train_tools.py TOOL --data pairs.jsonl --model MODEL --stage dpo

Imports nothing of hftune but where hftune is the tool. Every tool runs its own entry point, unchanged. What is watched
is what they all share: a callback notes when each step ended, and a wrapper around `Trainer.training_step` counts the
tokens of each micro batch, those that are pads apart. Last a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from watching import (
    COMMON,
    LORA,
    ROOT,
    Watch,
    as_flags,
    for_llamafactory,
    in_folder,
    lora,
    messages_of,
    records_of,
    run_script,
)

ON_GPU = {"use_cpu": False, "bf16": True, "gradient_checkpointing": True}


def common(options: argparse.Namespace, folder: Path, *without: str) -> dict[str, Any]:
    """What transformers calls alike in every tool."""
    wanted = COMMON | {"output_dir": str(folder / "out"), "max_steps": options.steps}
    wanted |= ON_GPU if options.cuda else {}
    return {name: value for name, value in wanted.items() if name not in without}


def hftune(options: argparse.Namespace, folder: Path) -> None:
    """run_sft.py or run_dpo.py."""
    arguments = common(options, folder) | LORA
    arguments |= {"model_name_or_path": options.model, "train_file_dir": in_folder(options.data, folder)}
    arguments |= {"use_peft": True, "target_modules": "all", "max_length": options.max_length, "overwrite_cache": True}
    if options.stage == "dpo":
        arguments |= {"dtype": "float32", "beta": 0.1}
    else:
        arguments |= {"packing": options.packing}
    if options.recompute:  # all of it, as other tools do on a GPU
        arguments["gradient_checkpointing"] = True
    elif options.cuda:  # as `--activation_checkpointing auto` has it: what memory has no room for is computed again
        del arguments["gradient_checkpointing"]
        arguments["activation_checkpointing"] = "auto"
    if options.bits == 4:
        arguments["load_in_4bit"] = True
    run_script(ROOT / f"run_{options.stage}.py", [*as_flags(arguments), *options.more])


def trl(options: argparse.Namespace, folder: Path) -> None:
    """What `trl sft` and `trl dpo` do."""
    import datasets
    import transformers
    import trl as library

    given: dict[str, Any] = {"dtype": "bfloat16" if options.cuda else "float32", "attn_implementation": "sdpa"}
    if options.bits == 4:
        given["quantization_config"] = four_bits()
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    shared = {
        "model": transformers.AutoModelForCausalLM.from_pretrained(options.model, **given),
        "processing_class": tokenizer,
        "peft_config": lora(),
    }
    arguments = common(options, folder) | {"max_length": options.max_length}
    if options.stage == "dpo":
        data = datasets.Dataset.from_list([pair_of(record) for record in records_of(options.data)])
        trainer = library.DPOTrainer(args=library.DPOConfig(**arguments, beta=0.1), train_dataset=data, **shared)
        trainer.train_dataset = trainer.train_dataset.map(to_the_terminator, fn_kwargs={"eos": tokenizer.eos_token_id})
    else:
        turns = [messages_of(record["conversations"]) for record in records_of(options.data)]
        data = datasets.Dataset.from_list([{"prompt": each[:-1], "completion": each[-1:]} for each in turns])
        config = library.SFTConfig(**arguments, packing=options.packing, dataset_num_proc=2)
        trainer = library.SFTTrainer(args=config, train_dataset=data, **shared)
    trainer.train()


def pair_of(record: dict[str, Any]) -> dict[str, Any]:
    """A pair in TRL's form."""
    answers = {side: [{"role": "assistant", "content": record[side]}] for side in ("chosen", "rejected")}
    return {"prompt": messages_of(record["conversations"]), **answers}


def to_the_terminator(record: dict[str, Any], eos: int) -> dict[str, Any]:
    """TRL also trains the line break that ChatML writes behind an answer; without it losses can be compared."""
    cut = {}
    for side in ("chosen_ids", "rejected_ids"):
        ids = record[side]
        cut[side] = ids[: len(ids) - ids[::-1].index(eos)] if eos in ids else ids
    return cut


def four_bits() -> Any:
    """NF4, computing in bf16."""
    import torch
    import transformers

    return transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
    )


def unsloth(options: argparse.Namespace, folder: Path) -> None:
    """Its notebooks' way: FastLanguageModel under TRL's SFTTrainer. For a GPU alone."""
    import datasets
    import trl as library
    from unsloth import FastLanguageModel  # first of all: it changes the others

    model, tokenizer = FastLanguageModel.from_pretrained(
        options.model, max_seq_length=options.max_length, load_in_4bit=options.bits == 4, dtype=None
    )
    model = FastLanguageModel.get_peft_model(
        model, r=8, lora_alpha=16, lora_dropout=0.0, use_gradient_checkpointing="unsloth"
    )
    turns = [messages_of(record["conversations"]) for record in records_of(options.data)]
    texts = [{"text": tokenizer.apply_chat_template(each, tokenize=False)} for each in turns]
    arguments = common(options, folder, "gradient_checkpointing")
    arguments |= {"max_length": options.max_length, "packing": options.packing, "dataset_text_field": "text"}
    library.SFTTrainer(
        model=model,
        args=library.SFTConfig(**arguments),
        train_dataset=datasets.Dataset.from_list(texts),
        processing_class=tokenizer,
    ).train()


def llamafactory(options: argparse.Namespace, folder: Path) -> None:
    """`llamafactory-cli train FILE`."""
    from llamafactory.train.tuner import run_exp

    arguments = common(options, folder, "gradient_checkpointing") | LORA
    arguments |= {"model_name_or_path": options.model, "cutoff_len": options.max_length, "flash_attn": "sdpa"}
    arguments |= {"finetuning_type": "lora", "lora_target": "all", "disable_gradient_checkpointing": not options.cuda}
    records = records_of(options.data)
    if options.stage == "dpo":
        sides = ("chosen", "rejected")
        pairs = [record | {side: {"from": "gpt", "value": record[side]} for side in sides} for record in records]
        columns = {"messages": "conversations", **{side: side for side in sides}}
        arguments |= for_llamafactory(pairs, folder, ranking=True, columns=columns)
        arguments |= {"stage": "dpo", "template": "smollm2", "pref_beta": 0.1, "pref_loss": "sigmoid"}
    else:
        arguments |= for_llamafactory(records, folder)
        arguments |= {"stage": "sft", "template": "chatml", "preprocessing_num_workers": 2}
        arguments |= {"neat_packing": options.packing, "packing": options.packing}
    if options.bits == 4:
        arguments["quantization_bit"] = 4
    run_exp(arguments)


def ms_swift(options: argparse.Namespace, folder: Path) -> None:
    """`swift sft` or `swift rlhf`."""
    arguments = common(options, folder) | LORA | {
        "model": options.model, "model_type": "llama", "template": "chatml", "max_length": options.max_length,
        "split_dataset_ratio": 0, "load_from_cache_file": "false", "torch_dtype": "float32", "attn_impl": "sdpa",
        "tuner_type": "lora", "target_modules": "all-linear", "dataloader_num_workers": 0, "fp16": False,
    }  # fmt: skip
    if options.stage == "dpo":
        from swift.pipelines import rlhf_main

        file = folder / "pairs.jsonl"
        file.write_text("".join(f"{json.dumps(swift_pair(one))}\n" for one in records_of(options.data)))
        rlhf_main(as_flags(arguments | {"dataset": file, "rlhf_type": "dpo", "beta": 0.1}))
    else:
        from swift.pipelines.train.sft import sft_main

        arguments |= {"dataset": options.data, "truncation_strategy": "right", "dataset_num_proc": 2}
        sft_main(as_flags(arguments | {"save_only_model": True}))


def swift_pair(record: dict[str, Any]) -> dict[str, Any]:
    """A pair in ms-swift's form."""
    turns = [*messages_of(record["conversations"]), {"role": "assistant", "content": record["chosen"]}]
    return {"messages": turns, "rejected_response": record["rejected"]}


def medicalgpt(options: argparse.Namespace, folder: Path) -> None:
    """training/supervised_finetuning.py."""
    data = in_folder(options.data, folder)
    arguments = common(options, folder) | LORA
    arguments |= {"model_name_or_path": options.model, "train_file_dir": data, "validation_file_dir": data}
    arguments |= {"do_train": True, "use_peft": True, "target_modules": "all", "torch_dtype": "float32"}
    arguments |= {"max_eval_samples": 2, "cache_dir": str(folder / "cache"), "preprocessing_num_workers": 2}
    arguments |= {"model_max_length": options.max_length, "template_name": "qwen", "overwrite_cache": True}
    run_script(options.repository / "training" / "supervised_finetuning.py", as_flags(arguments))


TOOLS: dict[str, Callable[[argparse.Namespace, Path], None]] = {
    "hftune": hftune,
    "trl": trl,
    "llamafactory": llamafactory,
    "ms_swift": ms_swift,
    "medicalgpt": medicalgpt,
    "unsloth": unsloth,
}


def tokens_of_conversations(inputs: dict[str, Any], pad_id: int) -> tuple[int, int]:
    """Those that are not pads, and all places."""
    ids = inputs["input_ids"]
    return int((ids != pad_id).sum()), ids.numel()


def tokens_of_pairs(inputs: dict[str, Any]) -> tuple[int, int]:
    """Tokens of prompts and answers, each prompt counted once an answer; twice, since pads are of no interest."""
    if "num_tokens" in inputs:  # hftune has prompts once in its rows
        real = int(inputs["num_tokens"].sum())
    elif "prompt_attention_mask" in inputs:  # TRL before its rewriting, with prompts apart
        sides = ("prompt", "prompt", "chosen", "rejected")
        real = sum(int(inputs[f"{side}_attention_mask"].sum()) for side in sides)
    else:
        real = sum(int(value.sum()) for name, value in inputs.items() if name.endswith("attention_mask"))
    return real, real


def main() -> None:
    """Train with one tool and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", choices=TOOLS)
    parser.add_argument("--stage", choices=["sft", "dpo"], default="sft")
    parser.add_argument("--data", type=Path, required=True, help="conversations with `from` and `value`, a line each")
    parser.add_argument("--model", required=True)
    parser.add_argument("--repository", type=Path, help="MedicalGPT's folder")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--max_length", type=int, default=512)
    parser.add_argument("--pad_id", type=int, help="of sft: the token that stands for nothing")
    parser.add_argument("--packing", action="store_true")
    parser.add_argument("--cuda", action="store_true", help="bf16 on a GPU, activations recomputed; else float32 here")
    parser.add_argument("--bits", type=int, choices=(4, 16), default=16, help="of the frozen base")
    parser.add_argument("--recompute", action="store_true", help="all activations, of hftune")
    options, options.more = parser.parse_known_args()
    if options.stage == "sft" and options.pad_id is None:
        parser.error("--pad_id is needed to tell pads from tokens")
    sft = options.stage == "sft"
    watch = Watch((lambda inputs: tokens_of_conversations(inputs, options.pad_id)) if sft else tokens_of_pairs)
    watch.install()
    with tempfile.TemporaryDirectory() as folder:
        TOOLS[options.tool](options, Path(folder))
    print("\n" + json.dumps(watch.figures()))


if __name__ == "__main__":
    sys.exit(main())
