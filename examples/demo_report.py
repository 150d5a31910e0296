"""What the demo shows at its end: a table of stages, answers before and after, rewards, and `report.md` with curves."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from hftune.checkpoints.manifest import read_manifest
from hftune.reporting.history import read_history, series, summary
from hftune.reporting.plots import plot_curves
from hftune.reporting.report import (
    Section,
    answers_section,
    mean_reward_section,
    reward_model_section,
    stages_section,
    write_report,
)
from hftune.trainers.rewards import load_reward_model

QUESTIONS = ["Who are you?", "How do I boil an egg?", "Can you help me plan my day?"]
STAGES = ["pt", "sft", "rm", "rl", "dpo"]
PROMPTS = Path("examples/data/prompts_eval/prompts_eval.jsonl")


def report(out: Path, base: Path, began: float, docs: Path | None = None) -> None:
    """Print the tables and write `report.md`, its PNGs and `demo.json` into `out`; into `docs` as well if given."""
    stages = [summary(read_manifest(out / stage) or {}, read_history(out / stage)) for stage in STAGES]
    answers = {
        name: ask(folder, QUESTIONS)
        for name, folder in {
            "base": base,
            "SFT": out / "sft-merged",
            "RL": out / "rl-merged",
            "DPO": out / "dpo-merged",
        }.items()
    }
    prompts = [json.loads(line)["prompt"] for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    rewards = {name: mean_reward(out / "rm-merged", out / f"{name}-merged", prompts) for name in ("sft", "rl", "dpo")}
    sections = [
        reward_model_section([stage for stage in stages if stage.stage == "rm"]),
        mean_reward_section(rewards["sft"], rewards["rl"]),
        answers_section(QUESTIONS, answers),
        merges_section(out),
    ]
    for section in (stages_section(stages), *sections):
        print(f"\n{section.render()}")
    written = write_report(out, stages, sections, plots=curves(out), title="hftune demo: four stages on SmolLM2-135M")
    figures = {"wall_seconds": round(time.time() - began), "mean_reward": rewards, "answers": answers}
    figures["stages"] = {stage.stage: vars(stage) for stage in stages}
    (out / "demo.json").write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"\nall of it in {figures['wall_seconds']} s; report: {written}")
    if docs:
        copy_to(docs, written, figures["wall_seconds"])


def hush() -> None:
    """Progress bars and load reports of many models would bury the tables."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")


def copy_to(docs: Path, written: Path, seconds: float) -> None:
    """The report and its curves as `docs/demo.md`, with the command and the size of the machine."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    machine = f"{len(os.sched_getaffinity(0))} CPU cores, {pages / 2**30:.0f} GiB of memory"
    gpus = torch.cuda.device_count()
    machine += f", {gpus} x {torch.cuda.get_device_name(0)}" if gpus else ", no GPU"
    (docs / "demo").mkdir(parents=True, exist_ok=True)
    for image in written.parent.glob("*.png"):
        shutil.copy(image, docs / "demo" / image.name)
    text = written.read_text(encoding="utf-8").replace("](", "](demo/")
    note = (
        f"\nWritten by `make demo DEMO_ARGS=--write_docs` on {machine}; {seconds:.0f} s in all, installation apart.\n"
    )
    title, _, rest = text.partition("\n")
    (docs / "demo.md").write_text(f"{title}\n{note}{rest}", encoding="utf-8")


def ask(folder: Path, questions: list[str], new_tokens: int = 48) -> list[str]:
    """Greedy answers to all questions in one batch, through the tokenizer's own chat template."""
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    chats: list[Any] = [[{"role": "user", "content": question}] for question in questions]
    inputs = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        ids = model.generate(**inputs, max_new_tokens=new_tokens, do_sample=False, pad_token_id=tokenizer.pad_token_id)
    return tokenizer.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def mean_reward(reward_model: Path, policy: Path, prompts: list[str]) -> float:
    """Mean score that the reward model gives to greedy answers to held-out prompts."""
    completions = ask(policy, prompts)
    model, tokenizer = load_reward_model(str(reward_model), torch.float32)
    chats = [
        [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]
        for prompt, completion in zip(prompts, completions, strict=True)
    ]
    texts = [tokenizer.apply_chat_template(chat, tokenize=False) for chat in chats]
    inputs = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt", add_special_tokens=False)
    with torch.no_grad():
        return float(model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits.mean())


def merges_section(out: Path) -> Section:
    """What `--verify` measured when each adapter was folded in."""
    rows = []
    for stage in STAGES:
        verified = (read_manifest(out / f"{stage}-merged") or {}).get("verified")
        if verified:
            shares = [verified[key] for key in ("same_choice", "same_greedy")]
            rows.append((stage, verified["largest"], *(None if share is None else f"{share:.1%}" for share in shares)))
    return Section(
        "Merged models against base + adapter",
        ["stage", "largest difference of logits or scores", "same most likely token", "same greedy answers"],
        rows,
        "Each merged model was reloaded with plain transformers and compared.",
    )


def curves(out: Path) -> dict[str, Path]:
    """A PNG of the loss of each stage, and of the reward of RL."""
    drawn = {}
    for stage in STAGES:
        history = read_history(out / stage)
        key, label = ("reward", "mean reward") if stage == "rl" else ("loss", "loss")
        points = series(history, key)
        if points[0]:
            drawn[f"{stage}: {label}"] = plot_curves({label: points}, out / f"{stage}-{key}.png", f"{stage}", label)
    return drawn
