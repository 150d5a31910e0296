"""Draw the pictures of the pages, from what hftune really says.

python docs/pictures/draw.py --model outputs/base/SmolLM2-135M-Instruct      stages, a record, memory, the demo
python docs/pictures/draw.py --only memory
python docs/pictures/draw.py --report outputs/first/report.html              report.png, with chromium and Pillow

Each SVG has its own background and both themes, loads nothing, and is shown by a page as a plain image.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from html import escape
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

GIB = 2**30
STYLE = """
svg{--bg:#ffffff;--fg:#1b1f24;--soft:#57606a;--rule:#c8d0d8;--card:#f6f8fa;--mark:#c9f0d2;--edge:#1a7f37;
--c0:#0b62c4;--c1:#c2500a;--c2:#1a7f37;--c3:#8250df;--c4:#8c959f}
@media(prefers-color-scheme:dark){svg{--bg:#0d1117;--fg:#e6edf3;--soft:#9aa4af;--rule:#444c56;--card:#161b22;
--mark:#124b26;--edge:#56d364;--c0:#58a6ff;--c1:#f0883e;--c2:#3fb950;--c3:#bc8cff;--c4:#6e7681}}
text{fill:var(--fg);font:14px system-ui,-apple-system,"Segoe UI",sans-serif}
.soft{fill:var(--soft);font-size:13px}.mid{text-anchor:middle}.end{text-anchor:end}.bold{font-weight:600}
.code{font-family:ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:13px}
.bg{fill:var(--bg)}.box{fill:var(--card);stroke:var(--rule);stroke-width:1.5}
.adapter{fill:var(--mark);stroke:var(--edge);stroke-width:1.5}
.line{fill:none;stroke:var(--soft);stroke-width:1.5}.dashed{stroke-dasharray:5 5}.tip{fill:var(--soft)}
.limit{stroke:var(--c1);stroke-width:1.5;stroke-dasharray:6 4;fill:none}
.c0{fill:var(--c0)}.c1{fill:var(--c1)}.c2{fill:var(--c2)}.c3{fill:var(--c3)}.c4{fill:var(--c4)}
""".replace("\n", "")


def main() -> None:
    """Draw what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["stages", "record", "memory", "demo"], help="this one alone")
    parser.add_argument("--model", default="outputs/base/SmolLM2-135M-Instruct", help="whose tokens a record becomes")
    parser.add_argument("--data", default="examples/data/sft/chat.jsonl", help="its first record is drawn")
    parser.add_argument("--report", type=Path, help="draw report.png from this page, and nothing else")
    parser.add_argument("--output", type=Path, default=HERE, help="folder of the pictures")
    options = parser.parse_args()
    os.chdir(ROOT)
    if options.report:
        shoot(options.report.resolve(), options.output / "report.png")
        return
    drawn = {"stages": stages, "record": lambda: record(options.model, options.data), "memory": memory, "demo": demo}
    for name, draw in drawn.items():
        if options.only in (None, name):
            (options.output / f"{name}.svg").write_text(draw() + "\n", encoding="utf-8")


def svg(width: float, height: float, title: str, parts: list[str]) -> str:
    """A picture of its own: background, both themes, and a title for who does not see it."""
    arrow = (
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
        'orient="auto-start-reverse"><path class="tip" d="M0 0L10 5L0 10z"/></marker></defs>'
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img">',
            f"<title>{escape(title)}</title><style>{STYLE}</style>{arrow}",
            f'<rect class="bg" width="{width:g}" height="{height:g}" rx="8"/>',
            *parts,
            "</svg>",
        ]
    )


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """A line of text."""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(words)}</text>'


def box(x: float, y: float, words: str, kind: str, width: float = 128, height: float = 40) -> str:
    """A box with words in its middle."""
    shape = f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="7"/>'
    return shape + text(x + width / 2, y + height / 2 + 5, words, "mid code")


def arrow(*points: tuple[float, float], kind: str = "") -> str:
    """A line through points, with a tip at its end."""
    path = "L".join(f"{x:g} {y:g}" for x, y in points)
    return f'<path class="line {kind}" marker-end="url(#tip)" d="M{path}"/>'


# --- stages ---------------------------------------------------------------------------------------------------------


def stages() -> str:
    """PT, SFT, RM and RL of examples/pipelines/demo.yaml: each trains an adapter, which is merged for the next."""
    import yaml

    known = yaml.safe_load((ROOT / "examples/pipelines/demo.yaml").read_text(encoding="utf-8"))["stages"]
    chain = [name for name in known if name in ("pt", "sft", "rl")]
    assert chain == ["pt", "sft", "rl"] and {"rm", "dpo"} <= set(known), "the picture shows another pipeline"
    step, top, low = 190, 40, 150
    models = ["base", *(f"{name}-merged" for name in chain)]
    parts = [box(20 + step * number, top, name, "box") for number, name in enumerate(models)]
    for number, name in enumerate(chain):
        x, middle = 20 + step * number, (top + low) / 2 + 24
        parts += [
            arrow((x + 132, top + 20), (x + step - 4, top + 20), kind="dashed"),
            box(x + step / 2, low, name, "adapter"),
            arrow((x + 110, top + 42), (x + 110, low - 3)),
            text(x + 118, middle - 20, f"run_{name}.py", "soft"),
            arrow((x + 208, low - 2), (x + 208, top + 43)),
            text(x + 215, middle, "merge", "soft"),
        ]
    x, y = 20 + step * 2, low + 100
    parts += [
        box(x + step / 2, y, "rm", "adapter"),
        arrow((x + 88, top + 42), (x + 88, y + 20), (x + step / 2 - 4, y + 20)),
        text(x + 81, y - 22, "run_rm.py", "end soft"),
        arrow((x + step / 2 + 64, y - 2), (x + step / 2 + 64, low + 43)),
        text(x + step / 2 + 72, y - 22, "rewards", "soft"),
        box(20, y, "adapter", "adapter", 92),
        box(122, y, "model", "box", 92),
        text(224, y + 25, "dashed: all other weights stay", "soft"),
        text(20, y + 66, "DPO in place of RM and RL: run_dpo.py trains on sft-merged, and is merged alike.", "soft"),
    ]
    title = "Stages: each trains an adapter on a base; merging the adapter into it makes the base of the next stage"
    return svg(step * 3 + 168, y + 86, title, parts)


# --- a record -------------------------------------------------------------------------------------------------------


def record(model: str, data: str) -> str:
    """The first record as the tokens that run_sft.py trains on, those with a loss marked."""
    from hftune.arguments.entry import parse_arguments
    from hftune.constants import IGNORE_INDEX
    from hftune.data.encode import ChatEncoder
    from hftune.data.splits import load_splits
    from hftune.models.loading.tokenizer import load_tokenizer

    with tempfile.TemporaryDirectory() as folder:
        flags = ["--model_name_or_path", model, "--train_file_dir", data, "--output_dir", folder]
        model_args, data_args, _, training_args = parse_arguments("sft", [*flags, "--max_train_samples", "1"])
        tokenizer = load_tokenizer(model_args, training_args)
        found = load_splits(ChatEncoder.from_arguments(tokenizer, training_args), data_args, training_args)
        example = found.train[0]
    pieces = [tokenizer.decode([token]) for token in example["input_ids"]]
    trained = [label != IGNORE_INDEX for label in example["labels"]]
    return token_picture(pieces, trained)


WIDTH, LETTER, ROW = 760, 7.9, 30


def token_picture(pieces: list[str], trained: list[bool]) -> str:
    """A chip a token, a new row after a line break; trained ones in the colour of adapters."""
    parts, x, y = [], 20.0, 52.0
    for piece, marked in zip(pieces, trained, strict=True):
        shown = piece.replace("\n", "⏎").replace(" ", "·")
        width = LETTER * len(shown) + 6
        if x + width > WIDTH - 16:
            x, y = 20.0, y + ROW
        kind = "adapter" if marked else "box"
        parts.append(f'<rect class="{kind}" x="{x:.1f}" y="{y - 17:g}" width="{width:.1f}" height="24" rx="4"/>')
        parts.append(text(round(x + width / 2, 1), y, shown, "code mid"))
        x += width + 3
        if "\n" in piece:
            x, y = 20.0, y + ROW
    said = f"{len(pieces)} tokens, of which {sum(trained)} are trained (marked); · is a space, ⏎ a line break"
    parts.append(text(20, 24, said, "soft"))
    title = "A conversation as tokens: what the assistant says is trained, with its end of turn; the rest is context"
    return svg(WIDTH, y + 20, title, parts)


# --- memory ---------------------------------------------------------------------------------------------------------

SHOWN = "Llama-3.1-8B"
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "max_position_embeddings": 131072,
    "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
"""Its published sizes."""
RUN = [
    *("--max_length", "4096", "--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "1"),
    *("--bf16", "True", "--activation_checkpointing", "full", "--optim", "adamw_torch"),
]
EIGHT = {"no ZeRO": "", "ZeRO-1": "zero1", "ZeRO-2": "zero2", "ZeRO-3": "zero3", "ZeRO-3, offload": "zero3_offload"}
"""Label of a bar, and the DeepSpeed config behind it."""
PARTS = {
    "weights": ("weights",),
    "gradients": ("gradients",),
    "optimizer": ("optimizer",),
    "activations and loss": ("activations", "loss"),
    "buffers, context": ("buffers", "other", "context"),
}


def memory() -> str:
    """Full training of an 8B model on 8 GPUs of 80 GiB by ZeRO stage: parts at the peak, as `hftune plan` says."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
        command = [sys.executable, "-m", "hftune.cli", "plan", "run_sft", "--model_name_or_path", folder, *RUN]
        command += ["--gpus", "8x80GiB", "--json"]
        said = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    choices = {choice["flags"]: choice for choice in json.loads(said.strip().splitlines()[-1])["choices"]}
    rows = {head: choices[f"--deepspeed {config}" if config else "as asked"] for head, config in EIGHT.items()}
    return bars(rows)


def bars(rows: dict[str, dict[str, Any]], limit: float = 80.0) -> str:
    """A bar a row, stacked by part, with the size of a GPU as a line.

    Args:
        rows: Label to a choice of `hftune plan --json`.
        limit: GiB of a GPU.
    """
    left, top, height, scale = 130.0, 66.0, 38.0, 560 / max(row["peak"] / GIB for row in rows.values())
    parts = [text(20, 26, f"{SHOWN}, full training, 8 GPUs: GiB on each at the peak", "bold")]
    x = left
    for number, name in enumerate(PARTS):
        parts.append(f'<rect class="c{number}" x="{x:g}" y="40" width="12" height="12" rx="2"/>')
        parts.append(text(x + 17, 51, name, "soft"))
        x += 30 + 7.2 * len(name)
    for number, (label, row) in enumerate(rows.items()):
        y, x = top + height * number, left
        parts.append(text(left - 10, y + 22, label, "end"))
        for colour, (name, keys) in enumerate(PARTS.items()):
            size = sum(row["parts"].get(key, 0.0) for key in keys) / GIB
            hint = f"<title>{escape(name)}: {size:.1f} GiB</title>"
            wide = size * scale
            parts.append(
                f'<rect class="c{colour}" x="{x:.1f}" y="{y + 5:g}" width="{wide:.1f}" height="26">{hint}</rect>'
            )
            x += wide
        parts.append(text(x + 8, y + 23, f"{row['peak'] / GIB:.0f}", "bold"))
    bottom = top + height * len(rows)
    line = left + limit * scale
    parts.append(f'<path class="limit" d="M{line:.1f} {top:g}V{bottom + 6:g}"/>')
    parts.append(text(line + 6, bottom + 4, f"{limit:g} GiB: one GPU", "soft"))
    title = f"Memory of each of 8 processes for {SHOWN} by ZeRO stage"
    return svg(760, bottom + 20, title, parts)


# --- the demo -------------------------------------------------------------------------------------------------------

ASKED = ("Who are you?", "How do I boil an egg?")
LINE, LINES = 46, 3
"""Letters of a line and lines of an answer."""


def demo() -> str:
    """Mean rewards and answers to two questions after every stage of `make demo`, from docs/demo.md."""
    page = (ROOT / "docs" / "demo.md").read_text(encoding="utf-8")
    rewards = {model: float(value) for model, value in cells(page, "### Reward of the answers")[1:]}
    answers: dict[tuple[str, str], str] = {}
    question = ""
    for line in page.partition("\n### Answers\n")[2].partition("\n### ")[0].splitlines():
        if line.startswith("- asked: "):
            question = line.removeprefix("- asked: ")
        elif said := re.fullmatch(r"  - (\S+)(?: \([^)]*\))?: (.*)", line):
            answers[said[1], question] = said[2].replace("<br>", " ")
    seconds = sum(float(row[6]) for row in cells(page, "## Stages")[1:])
    machine = re.search(r" on (\d+ CPU cores)", page)
    assert machine, "docs/demo.md says on how many CPU cores it was written"
    return answers_picture(rewards, answers, f"{seconds / 60:.0f} minutes of training on {machine[1]}")


def cells(page: str, heading: str) -> list[list[str]]:
    """The first table below a heading, without the line under its head."""
    below = page.partition(f"\n{heading}\n")[2].splitlines()
    start = next(number for number, line in enumerate(below) if line.startswith("|"))
    rows = list(itertools.takewhile(lambda line: line.startswith("|"), below[start:]))
    return [[cell.strip() for cell in row.strip("|").split("|")] for number, row in enumerate(rows) if number != 1]


def answers_picture(rewards: dict[str, float], answers: dict[tuple[str, str], str], said: str) -> str:
    """A row a model: its mean reward as a bar, and what it answers.

    Args:
        rewards: Model to its mean reward; bars begin a little below the least.
        answers: (model, question) to the answer.
        said: How long it took, and where.
    """
    left, wide, columns, top, height = 72.0, 110.0, (262.0, 602.0), 78.0, 60.0
    least, most = min(rewards.values()), max(rewards.values())
    parts = [
        text(20, 28, f"SmolLM2-135M-Instruct through every stage: {said}", "bold"),
        text(left, 58, "mean reward of answers", "soft"),
        *(text(x, 58, question, "soft") for x, question in zip(columns, ASKED, strict=True)),
    ]
    for number, (model, reward) in enumerate(rewards.items()):
        y, length = top + height * number, wide * (0.1 + 0.9 * (reward - least) / (most - least))
        name = model if number else "base"
        parts.append(text(left - 10, y + 18, name, "end code"))
        parts.append(
            f'<rect class="c{min(number, 1) * 2}" x="{left:g}" y="{y + 4:g}" width="{length:.1f}" height="18"/>'
        )
        parts.append(text(left + length + 6, y + 18, f"{reward:.2f}", "soft"))
        for x, question in zip(columns, ASKED, strict=True):
            lines = textwrap.wrap(answers[model, question], LINE, max_lines=LINES, placeholder=" …")
            parts += [text(x, y + 12 + 17 * line, words, "soft") for line, words in enumerate(lines)]
    title = "The demo: mean reward and answers of the base and after PT, SFT, RL and DPO"
    return svg(columns[1] + 330, top + height * len(rewards) + 4, title, parts)


# --- the report -----------------------------------------------------------------------------------------------------


def shoot(page: Path, target: Path, width: int = 1000, height: int = 820) -> None:
    """The upper part of a report as chromium shows it, with few colours, so that it stays small."""
    from PIL import Image

    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("chromium is not here: apt install chromium")
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "shot.png"
        flags = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={width},{height}"]
        subprocess.run([browser, *flags, f"--screenshot={shot}", page.as_uri()], check=True, capture_output=True)
        Image.open(shot).convert("RGB").quantize(64).save(target, optimize=True)


if __name__ == "__main__":
    main()
