"""Every type of model that the installed transformers knows, through every stage: what trains, and why not.

python -m tests.table.models --work FOLDER [--types qwen3_5,bamba] [--stages pt,dpo] [--seconds 300] [--write-docs]

Makes a tiny random model of a type (`tiny.py`) and runs the real scripts on it, each cell in processes of its own,
forked from one that has imported everything. Results go to FOLDER/results.jsonl, a line a cell; one that is there for
the same transformers and the same code is not run again (`--stale`: of any code). `zero3` is not among the stages that
are run unless it is asked for: it takes as long as all others.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import runpy
import shutil
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import ROOT
from tests.forks import fork_and_wait, import_everything
from tests.table.data import write_data
from tests.table.model_page import summary, write_page
from tests.table.table import code_fingerprint, environment
from tests.table.tiny import UNBUILT, model_class, model_types, tiny_checkpoint

RESULTS = "results.jsonl"
SECONDS_A_CELL = 120
_LORA = ("--use_peft", "--lora_r", "4")
_REWARDS = ("--reward_funcs", "tests/table/rewards.py:uneven", "--num_generations", "2", "--max_completion_length", "8")


@dataclass(frozen=True)
class Stage:
    """One column: the script, its data and flags, and whose output it needs."""

    script: str
    data: str = ""
    flags: tuple[str, ...] = ()
    processes: int = 1
    needs: str = ""


STAGES: dict[str, Stage] = {
    # `plain`, `reload` and `kept` are done here, without a script.
    "plain": Stage(""),
    "pt": Stage("run_pt.py", "pt", ("--block_size", "32")),
    "sft_lora": Stage("run_sft.py", "sft", _LORA),
    "sft_full": Stage("run_sft.py", "sft", ("--save_strategy", "steps", "--save_steps", "1")),
    "rm": Stage("run_rm.py", "pairs", _LORA),
    "dpo": Stage("run_dpo.py", "pairs", _LORA),
    "grpo": Stage("run_rl.py", "prompts", (*_LORA, *_REWARDS, "--max_steps", "1")),
    "merge": Stage("merge_peft_adapter.py", needs="sft_lora"),
    "resume": Stage("run_sft.py", "sft", ("--max_steps", "3"), needs="sft_full"),
    "reload": Stage("", needs="sft_full"),
    "kept": Stage("", needs="sft_full"),
    "zero3": Stage("run_sft.py", "sft", (*_LORA, "--deepspeed", "ds_configs/zero3.json"), processes=2),
}
USUAL = tuple(name for name in STAGES if name != "zero3")


def main() -> None:
    """Run what has no result yet, print what went wrong and a line of shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("outputs/models_table"))
    parser.add_argument("--types", default="", help="comma-separated; all")
    parser.add_argument("--stages", default=",".join(USUAL), help="comma-separated")
    parser.add_argument("--at-once", type=int, default=2, help="types tried at a time")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no type after this time")
    parser.add_argument("--stale", action="store_true", help="let results of older code count")
    parser.add_argument("--again", default="", help="run again what has such an outcome: crashed,refused")
    parser.add_argument("--write-docs", action="store_true", help="docs/models.md, from what has a result")
    arguments = parser.parse_args()
    types = [name for name in arguments.types.split(",") if name] or list(model_types())
    made_by = fingerprint()
    again = tuple(filter(None, arguments.again.split(",")))
    known = read_results(arguments.work, None if arguments.stale else made_by, again)
    wanted = {name: missing(name, arguments.stages.split(","), known) for name in types}
    run_types({name: stages for name, stages in wanted.items() if stages}, arguments, made_by)
    results = read_results(arguments.work, None if arguments.stale else made_by)
    shown = [one for one in results.values() if one["type"] in types and one["outcome"] in ("crashed", "time")]
    print("\n".join(f"{one['type']} {one['stage']}: {one['why']}" for one in shown))
    print(summary(results))
    if arguments.write_docs:
        write_page(results)


def fingerprint() -> str:
    """Of the code and of transformers: a result of others does not count."""
    import transformers

    return f"{transformers.__version__}-{code_fingerprint()}"


def read_results(work: Path, made_by: str | None, without: tuple[str, ...] = ()) -> dict[tuple[str, str], Any]:
    """The last result of each cell, by type and stage.

    Args:
        work: Where results.jsonl is, if anything was run.
        made_by: Only results made by this; None: by any code.
        without: Outcomes that do not count.
    """
    file = work / RESULTS
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    found = {(one["type"], one["stage"]): one for one in map(json.loads, lines) if made_by in (None, one["made_by"])}
    return {cell: one for cell, one in found.items() if one["outcome"] not in without}


def missing(name: str, stages: Iterable[str], known: dict[tuple[str, str], Any]) -> list[str]:
    """The stages of a type that have no result, in an order in which what one needs comes before it."""
    wanted = {stage for stage in stages if (name, stage) not in known}
    wanted |= {STAGES[stage].needs for stage in wanted if STAGES[stage].needs}
    return [stage for stage in STAGES if stage in wanted]


def run_types(wanted: dict[str, list[str]], arguments: argparse.Namespace, made_by: str) -> None:
    """Try some types at a time, each in a process of its own that forks its cells."""
    if not wanted:
        return
    work = arguments.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    os.environ.update(environment(work))
    write_data(work / "data")
    import_everything()
    began, running, left = time.time(), set(), list(wanted.items())
    while running or left:
        if left and len(running) < arguments.at_once and time.time() - began < arguments.seconds:
            name, stages = left.pop(0)
            if not (child := os.fork()):
                run_type(name, stages, work, made_by)
                os._exit(0)
            running.add(child)
            continue
        if not running:
            break
        running.discard(os.wait()[0])


def run_type(name: str, stages: list[str], work: Path, made_by: str) -> None:
    """Write a line to results.jsonl for each stage of a type."""
    folder = work / "types" / name
    for stage in stages:
        result = {"type": name, "stage": stage, "made_by": made_by} | run_cell(name, stage, folder, work)
        with (work / RESULTS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
    shutil.rmtree(folder, ignore_errors=True)


def run_cell(name: str, stage: str, folder: Path, work: Path) -> dict[str, Any]:
    """One cell: {"outcome", "why", "seconds"}; a run that is refused for its packing is tried with padded rows, too."""
    if name in UNBUILT:
        return {"outcome": "unbuilt", "why": UNBUILT[name], "seconds": 0}
    began = time.time()
    if not (folder / "model" / "config.json").is_file():
        made = attempt(functools.partial(tiny_checkpoint, name, folder / "model"), folder / "make.log", 1)
        if made["outcome"] != "trains":
            return {"outcome": "unbuilt", "why": made["why"], "seconds": made["seconds"]}
    needs = STAGES[stage].needs
    if needs and not (folder / needs / "hftune.json").is_file():
        return {"outcome": "needs", "why": needs, "seconds": 0}
    result = attempt(work_of(name, stage, folder, work), folder / f"{stage}.log", STAGES[stage].processes)
    if stage == "pt" and result["outcome"] == "refused":
        padded = attempt(work_of(name, stage, folder, work, "--packing", "False"), folder / "padded.log", 1)
        if padded["outcome"] == "trains":
            result["outcome"] = "padded"
    return result | {"seconds": round(time.time() - began, 1)}


def work_of(name: str, stage: str, folder: Path, work: Path, *more: str) -> Any:
    """What a cell's process does."""
    if stage == "plain":
        return functools.partial(train_plainly, name, folder / "model")
    if stage == "reload":
        return functools.partial(reload, folder / "sft_full", folder / "merge")
    if stage == "kept":
        return functools.partial(keep, name, folder / "model", folder / "sft_full", folder / "merge")
    return functools.partial(run_script, STAGES[stage].script, [*flags_of(stage, folder, work), *more])


def flags_of(stage: str, folder: Path, work: Path) -> list[str]:
    """A script's command line."""
    one, out = STAGES[stage], folder / stage
    if stage == "merge":
        return ["--peft_model_path", str(folder / one.needs), "--output_dir", str(out)]
    flags = ["--model_name_or_path", str(folder / "model"), "--train_file_dir", str(work / "data" / one.data)]
    flags += ["--output_dir", str(out), "--per_device_train_batch_size", "2", "--report_to", "none"]
    flags += ["--max_steps", "2", "--logging_steps", "1", "--save_strategy", "no", "--gradient_checkpointing", "False"]
    if stage == "resume":
        flags += ["--resume_from_checkpoint", str(folder / one.needs / "checkpoint-1")]
    return [*flags, *one.flags]


def run_script(script: str, flags: list[str]) -> None:
    """Run it as Python's command line does."""
    sys.stdin = open(os.devnull)  # noqa: SIM115
    sys.argv = [script, *flags]
    runpy.run_path(str(ROOT / script), run_name="__main__")


def train_plainly(name: str, folder: Path) -> None:
    """A step without hftune: what fails here is upstream's."""
    import torch

    model, info = model_class(name).from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"], f"what it saved lacks {sorted(info['missing_keys'])[:3]} when it is loaded"
    model.train()
    ids = torch.arange(10, 34).reshape(2, 12)
    loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss
    loss.backward()
    assert loss.isfinite(), f"the loss is {loss}"
    assert any(parameter.grad is not None for parameter in model.parameters())
    torch.optim.SGD(model.parameters(), lr=1e-3).step()


def reload(*folders: Path) -> None:
    """Load results with plain transformers: no tensor may be missing or left over."""
    import transformers

    for folder in filter(Path.is_dir, folders):
        config = transformers.AutoConfig.from_pretrained(folder)
        _, info = getattr(transformers, config.architectures[0]).from_pretrained(folder, output_loading_info=True)
        misfits = [key for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") for key in info[kind]]
        assert not misfits, f"{folder.name} does not fit {config.architectures[0]}: {misfits[:3]}"


def keep(name: str, base: Path, *folders: Path) -> None:
    """Compare results with their base: names, shapes and dtypes on disk; values of all that reads no text."""
    import torch

    from hftune.weight_files import stored_tensors

    def plain(folder: Path) -> Any:
        return model_class(name).from_pretrained(folder)

    before, model = stored_tensors(base), plain(base)
    text = type(model.config.get_text_config(decoder=True))
    own = [key for key, one in model.named_modules() if type(getattr(one, "config", None)) is text]
    own += [key for key, one in model.named_modules() if one is model.get_output_embeddings()]
    # A model within a model has its head next to its text.
    own += [f"{'.'.join(key.split('.')[:count])}.lm_head" for key in own for count in range(1, key.count(".") + 1)]
    for folder in filter(Path.is_dir, folders):
        after = stored_tensors(folder)
        # An adapter that trained tied weights each for itself unties them, which the merge says.
        apart = set(model.all_tied_weights_keys or ()) if folder.name == "merge" else set()
        after = {key: tensor for key, tensor in after.items() if key in before or key not in apart}
        different = {key for key in before.keys() | after.keys() if _form(before.get(key)) != _form(after.get(key))}
        assert not different, f"{folder.name} stores {len(different)} tensors otherwise: {sorted(different)[:2]}"
        changed = [
            key
            for (key, old), new in zip(model.state_dict().items(), plain(folder).state_dict().values(), strict=True)
            if not torch.equal(old, new)
        ]
        assert changed, f"nothing is trained in {folder.name}"
        wrong = [key for key in changed if not any(key.startswith(part) for part in own)]
        assert not wrong, f"{folder.name} changed {len(wrong)} tensors that read no text: {wrong[:2]}"


def _form(tensor: Any) -> Any:
    return tensor and (tensor.shape, tensor.dtype)


def attempt(work: Any, log: Path, processes: int) -> dict[str, Any]:
    """Do it in processes of its own; how it ended, and its last words where it failed."""
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    began = time.time()
    code = fork_and_wait(work, log, processes, SECONDS_A_CELL)
    said = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    outcome = {0: "trains", 2: "refused", 124: "time"}.get(code, "crashed")
    if outcome == "refused" and "Traceback (most recent call last)" in said:
        outcome = "crashed"
    why = "" if outcome == "trains" else last_words(said)
    place = [line.strip() for line in said.splitlines() if 'File "' in line][-4:] if outcome == "crashed" else []
    return {"outcome": outcome, "why": why, "place": place, "seconds": round(time.time() - began, 1)}


def last_words(said: str) -> str:
    """The message of a refusal, or the last line of a traceback."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [number for number, line in enumerate(lines) if line.startswith(("error:", "Error:"))]
    if errors and not any(line.startswith("Traceback") for line in lines[errors[-1] :]):
        return " ".join(lines[errors[-1] : errors[-1] + 4])[:400]
    raised = [line for line in lines if line.split(":")[0].split(".")[-1].endswith(("Error", "Exception", "Interrupt"))]
    return (raised or lines or ["no words"])[-1][:400]


if __name__ == "__main__":
    main()
