"""RL on SmolLM2-135M with the demo's reward model: held-out reward before and after 20 steps, and the KL it cost.

The policy is SmolLM2-135M-Instruct as it is, the same on every machine. What the demo has made of it by SFT already
writes as the reward model likes it, by how much depends on the machine's rounding: little to much is left to gain.

python benchmarks/rl_quality.py                               all algorithms, after `make demo`, some minutes each
python benchmarks/rl_quality.py --algorithms ppo --quick      one, 4 steps: whether it runs
python benchmarks/rl_quality.py --write_docs                  the table goes into docs/rl.md

What was measured lies in --output_dir, a file an algorithm and seed, and is not measured again with the same settings
unless --again is given: algorithms may run at different times, and the last run writes the table of all.

Rewards are measured apart from training: answers sampled at temperature 1 to prompts that were never trained on, by the
base and by base + adapter in plain transformers and peft, scored by the reward model. KL is the mean of
log policy - log base over whole answers, in nats. A bar holds where the mean reward rose by at least one standard
deviation of the base's rewards, at a KL of at most half a nat a token.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from hftune.constants import PREEMPTED_EXIT_CODE  # noqa: E402

TOKENS = 24
SAMPLES = 4
KL_A_TOKEN = 0.5
COMMON = (
    "--use_peft --lora_rank 16 --lora_alpha 32 --target_modules all --gradient_checkpointing False --save_strategy no "
    "--logging_steps 1 --lr_scheduler_type linear --warmup_steps 2 --disable_tqdm True "
    f"--max_completion_length {TOKENS} --per_device_train_batch_size 16 --gradient_accumulation_steps 2 --bf16 True "
    "--train_file_dir examples/data/prompts --report_to none"
)
ALGORITHMS = {
    "grpo": "--num_generations 4 --learning_rate 1.25e-3 --beta 0.1",
    "rloo": "--num_generations 4 --learning_rate 1.25e-3 --beta 0.05",
    "ppo": "--num_iterations 1 --learning_rate 1.25e-3 --beta 0.05 --lam 1.0 --critic_init reward --vf_coef 0.02 "
    "--cliprange_value 10",
    "online_dpo": "--num_generations 4 --learning_rate 1.25e-3 --beta 0.42",
}
START, END = "<!-- rl_quality -->", "<!-- end of rl_quality -->"


def main() -> int:
    """Train and measure each algorithm; print a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", type=Path, default=Path("outputs/demo"), help="output folder of examples/demo.py")
    parser.add_argument("--model", type=Path, default=Path("outputs/base/SmolLM2-135M-Instruct"), help="the policy")
    parser.add_argument("--output_dir", type=Path, default=Path("outputs/rl-quality"))
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS), choices=list(ALGORITHMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1], help="of training; answers are sampled alike")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="4 steps")
    parser.add_argument("--minutes", type=float, help="stop a run after so many with a checkpoint; call again to go on")
    parser.add_argument("--again", action="store_true", help="measure again what was measured with the same settings")
    parser.add_argument("--write_docs", action="store_true", help="put the table into docs/rl.md")
    options = parser.parse_args()
    os.chdir(ROOT)
    base, reward = options.model, options.demo / "rm-merged"
    absent = [folder for folder in (base, reward) if not (folder / "config.json").is_file()]
    if absent:
        print(f"{absent[0]} is not there: run `python examples/demo.py --output_dir {options.demo}` first")
        return 2
    steps = 4 if options.quick else options.steps
    fixed = {
        "base": str(base.resolve()),
        "reward": str(reward.resolve()),
        "samples": SAMPLES,
        "tokens": TOKENS,
    }
    before = kept(options.output_dir / "base", fixed, options.again, lambda: measure(base, None, reward))
    print(f"base: mean reward {before['mean']:.3f}, standard deviation {before['std']:.3f}", flush=True)
    rows: dict[tuple[str, int], dict[str, float]] = {}
    for name, seed in product(options.algorithms, options.seeds):
        folder, flags = options.output_dir / f"{name}-{seed}", f"{COMMON} --seed {seed} {ALGORITHMS[name]}"
        train = partial(run, name, flags, steps, base, reward, folder, options.minutes)
        row = rows[name, seed] = kept(folder, {"steps": steps} | fixed | {"flags": flags}, options.again, train)
        print(f"{name}, seed {seed}: mean reward {row['mean']:.3f}, {row['seconds']:.0f} s", flush=True)
    table = render(before, rows)
    print(table)
    if options.write_docs:
        write(table, f"--steps {steps} --seeds {' '.join(map(str, options.seeds))}")
    print(json.dumps(result(before, rows)))
    return 0


def kept(
    folder: Path, settings: dict[str, Any], again: bool, measured: Callable[[], dict[str, float]]
) -> dict[str, float]:
    """Figures from the file beside `folder` where they were measured with these settings, else measured now.

    What a run with other settings left in `folder` is removed; one that was stopped on its way goes on.
    """
    file = folder.with_suffix(".json")
    found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() and not again else {}
    if found.get("settings") == settings and found["figures"]:
        return dict(found["figures"])
    if found.get("settings") != settings:
        shutil.rmtree(folder, ignore_errors=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"settings": settings, "figures": None}), encoding="utf-8")
    figures = measured()
    file.write_text(json.dumps({"settings": settings, "figures": figures}, indent=1), encoding="utf-8")
    return figures


def run(
    name: str, chosen: str, steps: int, base: Path, reward: Path, folder: Path, minutes: float | None
) -> dict[str, float]:
    """Train an adapter, or go on with one that was stopped, and measure it."""
    models = f"--model_name_or_path {base} --reward_model_path {reward} --output_dir {folder}"
    command = f"{sys.executable} run_rl.py --rl_algorithm {name} {models} {chosen}"
    log = folder.with_suffix(".log")
    with log.open("a") as stream:
        flags = ["--max_steps", str(steps), "--resume_from_checkpoint", "auto"]
        process = subprocess.Popen([*shlex.split(command), *flags], stdout=stream, stderr=stream)
        try:
            code = process.wait(minutes * 60 if minutes else None)
        except subprocess.TimeoutExpired:
            process.terminate()  # ends with a checkpoint after the step that it is in
            code = process.wait()
    if code == PREEMPTED_EXIT_CODE:
        print(f"{name}: stopped after {minutes:g} minutes; the same command goes on", flush=True)
        raise SystemExit(code)
    if code:
        raise SystemExit(f"{name} failed; see {log}")
    return measure(base, folder, reward) | {"seconds": seconds_of(folder)}


def seconds_of(folder: Path) -> float:
    """Time in steps; without start, checkpoints and what ran in between."""
    history = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    return float(sum(entry.get("step_time", 0.0) for entry in history))


def measure(base: Path, adapter: Path | None, reward: Path) -> dict[str, float]:
    """Mean and deviation of rewards of sampled answers to held-out prompts, mean length, and KL to the base in nats."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

    from hftune.trainers.rewards.loading import load_reward_model

    lines = (ROOT / "examples/data/prompts_eval/prompts_eval.jsonl").read_text(encoding="utf-8").splitlines()
    prompts = [[{"role": "user", "content": json.loads(line)["prompt"]}] for line in lines for _ in range(SAMPLES)]
    tokenizer = AutoTokenizer.from_pretrained(base, padding_side="left")
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    if adapter is not None:
        model = PeftModel.from_pretrained(model, str(adapter)).eval()
    shape = {"add_generation_prompt": True, "padding": True, "return_tensors": "pt", "return_dict": True}
    inputs = tokenizer.apply_chat_template(prompts, **shape)
    length = inputs["input_ids"].shape[1]
    set_seed(7)
    with torch.no_grad():
        ids = model.generate(**inputs, max_new_tokens=TOKENS, do_sample=True, temperature=1.0, top_p=1.0, top_k=0)
        answers = ids[:, length:]
        ends = (answers == tokenizer.eos_token_id).cumsum(1)
        written = (ends - (answers == tokenizer.eos_token_id).long()) == 0
        mask = torch.cat([inputs["attention_mask"], written.long()], dim=1)
        kl = 0.0
        if adapter is not None:
            own = logps(model, ids, mask, length)
            with model.disable_adapter():
                others = logps(model, ids, mask, length)
            kl = float(((own - others) * written).sum(1).mean())
    texts = tokenizer.batch_decode(answers, skip_special_tokens=True)
    scorer, scoring = load_reward_model(str(reward), torch.float32)
    chats = [[*prompt, {"role": "assistant", "content": text}] for prompt, text in zip(prompts, texts, strict=True)]
    rendered = [scoring.apply_chat_template(chat, tokenize=False) for chat in chats]
    read = scoring(rendered, padding=True, padding_side="right", return_tensors="pt", add_special_tokens=False)
    with torch.no_grad():
        scores = scorer(input_ids=read["input_ids"], attention_mask=read["attention_mask"]).logits[:, 0].tolist()
    mean_length = float(written.sum(1).float().mean())
    return {"mean": statistics.mean(scores), "std": statistics.stdev(scores), "kl": kl, "length": mean_length}


def logps(model: Any, ids: Any, mask: Any, length: int) -> Any:
    """Log-probabilities (answers, tokens) of what follows the first `length` tokens."""
    logits = model(input_ids=ids, attention_mask=mask, logits_to_keep=ids.shape[1] - length + 1).logits[:, :-1]
    return logits.log_softmax(-1).gather(2, ids[:, length:, None])[..., 0]


def gain(before: dict[str, float], after: dict[str, float]) -> float:
    """Rise of the mean reward in standard deviations of the base's rewards."""
    return (after["mean"] - before["mean"]) / before["std"]


def render(before: dict[str, float], rows: dict[tuple[str, int], dict[str, float]]) -> str:
    """A Markdown table."""
    columns = ("seed", "mean reward", "gain in deviations", "KL an answer", "KL a token", "tokens", "seconds")
    lines = [
        f"| algorithm | {' | '.join(columns)} |",
        "| --- |" + " ---: |" * len(columns),
        f"| none | | {before['mean']:.3f} | | 0 | 0 | {before['length']:.1f} | |",
    ]
    for (name, seed), row in rows.items():
        lines.append(
            f"| {name} | {seed} | {row['mean']:.3f} | {gain(before, row):+.2f} | {row['kl']:.2f} | "
            f"{row['kl'] / row['length']:.3f} | {row['length']:.1f} | {row['seconds']:.0f} |"
        )
    return "\n".join(lines)


def result(before: dict[str, float], rows: dict[tuple[str, int], dict[str, float]]) -> dict[str, Any]:
    """What other programs read."""
    bars: dict[str, Any] = {}
    named = {f"{name}, seed {seed}": row for (name, seed), row in rows.items()}
    for name, row in named.items():
        rise, token = gain(before, row), row["kl"] / row["length"]
        bars[f"{name} gain in deviations"] = {"value": rise, "bar": 1.0, "holds": rise >= 1.0}
        bars[f"{name} KL a token"] = {"value": token, "bar": KL_A_TOKEN, "holds": token <= KL_A_TOKEN}
    machine = f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores"
    return {"benchmark": "rl_quality", "machine": machine, "figures": {"base": before, **named}, "bars": bars}


def write(table: str, flags: str) -> None:
    """Put the table into its place in docs/rl.md."""
    page = ROOT / "docs" / "rl.md"
    text = page.read_text(encoding="utf-8")
    head, tail = text.split(START)[0], text.split(END)[1]
    said = f"`python benchmarks/rl_quality.py {flags} --write_docs`, on {os.cpu_count()} CPU cores:"
    page.write_text(f"{head}{START}\n{said}\n\n{table}\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
