"""`hftune teach`: records are divided into shards, shards among processes; what is there whole is not made again."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from datasets import concatenate_datasets
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from hftune.arguments.distill import DistillArguments
from hftune.arguments.entry import RunArguments
from hftune.checkpoints import manifest as manifests
from hftune.checkpoints.folder_checks import check_recorded_whole
from hftune.checkpoints.inputs import inputs_of
from hftune.data.encoder import Encoder
from hftune.data.sources import TokenizedSource, concatenated
from hftune.data.splits import load_sources, make_encoder
from hftune.data.storage import tokenizer_key
from hftune.data.teacher_targets import ABOUT, SHARD_KINDS, shard_name
from hftune.distributed import ranks
from hftune.errors import ArgumentError, UserError, raise_together
from hftune.inference.results import about_result, parts_of
from hftune.logging import get_logger
from hftune.models.loading.tokenizer import load_tokenizer
from hftune.opening.safetensors_file import map_arrays
from hftune.preflight.facts import take_template_arguments
from hftune.preflight.model_folder import check_model_folder
from hftune.preflight.rules.data import check_data_flags
from hftune.preflight.rules.distill import check_teachers
from hftune.publishing.folder import published_folder
from hftune.publishing.places import check_place
from hftune.tools.teaching.shards import Shard, Work, divide, lost_mass, write_index
from hftune.tools.teaching.teacher import Teacher, load_teacher
from hftune.trainers.distillation.loading import check_tokenizers
from hftune.visible import say

DEFAULT_K = 64
NOTHING_LOST = {"mean": 0.0, "p99": 0.0}


def teach(arguments: RunArguments[DistillArguments], argv: list[str]) -> None:
    """Compute and publish the targets of all records, held-out ones included; every process calls it.

    Raises:
        UserError: What is wrong with the arguments, together; a record that cannot be used; or the disk.
    """
    began = time.time()
    model_args, data_args, adapter_args, args = arguments
    raise_together(
        [
            *check_model_folder(model_args),
            *check_data_flags(data_args, args),
            *check_teaching(args),
            *check_place(args.output_dir, inputs_of(*arguments), overwrite=args.overwrite_output_dir),
        ]
    )
    args.join_process_group()
    take_template_arguments(model_args, adapter_args, args)
    tokenizer = load_tokenizer(model_args, args)
    check_tokenizers(tokenizer, model_args, args)
    sources = _sources(make_encoder("distill", tokenizer, args, data_args), arguments)
    parts = [part.dataset.select_columns(["input_ids", "labels"]) for found in sources.values() for part in found]
    dataset = concatenate_datasets(parts)
    teacher = load_teacher(model_args, args, tokenizer)
    k = min(teacher.k or args.top_k or DEFAULT_K, teacher.vocabulary)
    work = divide(dataset, k)
    plan = _plan(work, teacher, tokenizer, args, k)
    with parts_of(str(args.output_dir), plan) as kept:
        files = [kept.folder / shard_name(number) for number in range(work.shards)]
        # All look before the first one writes, so that all divide the same shards.
        missing = [number for number, file in enumerate(files) if not file.is_file()]
        ranks.barrier()
        own = missing[ranks.rank() :: ranks.world_size()]
        with tqdm(own, unit=" shards", desc="teaching", delay=2, disable=not ranks.is_main()) as bar:
            for number in bar:
                shard = Shard(work.tokens_of(number), k)
                teacher.fill(shard, dataset, work, number, args.per_device_train_batch_size)
                shard.save(files[number])
        ranks.barrier()
        if ranks.is_main():
            _publish(files, work, plan, sources, args, argv, began)


def check_teaching(args: DistillArguments) -> Iterator[UserError]:
    """What is wrong with the arguments of the command itself."""
    yield from check_teachers(args)
    for name in args.teachers:
        yield from check_recorded_whole(name, "--teacher_model_name_or_path")
    if args.deepspeed is not None:
        fix = "leave it out; --teacher_load_in_4bit or --teacher_dtype bfloat16 make a teacher smaller"
        yield ArgumentError("each process of hftune teach has a whole teacher", place="--deepspeed", fix=fix)
    if args.teacher_targets:
        yield ArgumentError("this is what hftune teach writes", place="--teacher_targets", fix="leave it out")
    if args.top_k is not None and args.top_k < 0:
        fix = f"give a number above 0; left out it is {DEFAULT_K}"
        yield ArgumentError("no tokens of a teacher would be stored", place=f"--top_k {args.top_k}", fix=fix)
    if args.packing and args.packing_strategy != "bfd":
        fix = "use --packing_strategy bfd, or leave out --packing: targets do not depend on it"
        yield ArgumentError("this packing cuts records, and a teacher reads them whole", place="--packing", fix=fix)


def _sources(encoder: Encoder, arguments: RunArguments[DistillArguments]) -> dict[str, list[TokenizedSource]]:
    encoders = {"train": encoder, "eval": encoder}
    return load_sources(encoders, arguments.data, arguments.training.seed)


def _plan(
    work: Work, teacher: Teacher, tokenizer: PreTrainedTokenizerBase, args: DistillArguments, k: int
) -> dict[str, Any]:
    """All that decides the bytes of the shards, and what the manifest says of them."""
    return {
        "k": k,
        "temperature": float(args.temperature),
        "vocabulary": teacher.vocabulary,
        "tokens": int(work.places[-1]),
        "shards": work.shards,
        "records": len(work.records),
        "tokenizer": tokenizer_key(tokenizer),
        "teacher": {
            "names": args.teacher_names,
            "fingerprints": [one["fingerprint"] for one in args.recorded_teachers],
            "dtype": teacher.dtype,
        },
        "data": xxhash.xxh3_128(work.hashes.tobytes()).hexdigest(),
        "dtype": "float32",
    }


def _publish(
    files: list[Path],
    work: Work,
    plan: dict[str, Any],
    sources: dict[str, list[TokenizedSource]],
    args: DistillArguments,
    argv: list[str],
    began: float,
) -> None:
    """Put all shards, the index and the manifest in place together."""
    lost = np.concatenate([np.zeros(0), *(lost_mass(map_arrays(file, SHARD_KINDS)["log_probs"]) for file in files)])
    figures = {"mean": float(lost.mean()), "p99": float(np.quantile(lost, 0.99))} if len(lost) else NOTHING_LOST
    with published_folder(str(args.output_dir), overwrite=args.overwrite_output_dir) as result:
        for file in files:
            # A second name, so that a process that dies while it publishes loses no shard; some disks know none.
            try:
                os.link(file, result / file.name)
            except OSError:
                shutil.copyfile(file, result / file.name)
        write_index(result, work)
        about = about_result("teach", None, argv, args.teachers, began)
        about |= {"data": {name: _described(found) for name, found in sources.items()}}
        about[ABOUT] = plan | {"lost_mass": figures}
        manifests.finish_manifest(result, about)
    get_logger().info(
        "%s tokens of %s records, the %s most likely at each: lost mass %.2g on average, 99th percentile %.2g",
        *(plan[name] for name in ("tokens", "records", "k")),
        figures["mean"],
        figures["p99"],
    )
    folder = args.output_dir
    say(f"targets in {folder}; train on them with hftune distill --distill_mode offline --teacher_targets {folder}")


def _described(found: list[TokenizedSource]) -> dict[str, Any]:
    """A split as the manifests of runs describe theirs: all that read manifests look for that."""
    whole = concatenated(found)
    return {"files": whole.files, "fingerprint": whole.key[:16], **whole.counts.to_dict()}
