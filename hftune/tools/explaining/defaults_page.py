"""docs/defaults.md, written from the tables of defaults."""

# ruff: noqa: E501 -- lines of Markdown tables and of output

from __future__ import annotations

from pathlib import Path

from hftune.arguments.defaults.choosing import shown
from hftune.arguments.defaults.medicalgpt import MEDICALGPT, UNEQUAL
from hftune.tools.explaining.defaults import RUN_KINDS, default_rows, documented_names

PAGE = Path("docs/defaults.md")

# Between them stands what is not translated: the Chinese page links to it.
_START, _END = "<!-- defaults -->", "<!-- end of defaults -->"

_HEAD = """# Defaults

The value of each argument that you do not give, and the reason for it. For one argument: `hftune explain learning_rate`.

```bash
python run_sft.py --model_name_or_path MODEL --train_file_dir examples/data/sft --use_peft --output_dir outputs/sft
```

Every run begins by printing the values that it uses. A star marks a default:

```
recipe (* not given: default; `hftune explain NAME` says why)
  learning rate 0.0002*, cosine*, warm-up 3 % of steps*, adamw_torch_fused*, weight decay 0*
  batch 8 = 8* per device x 1* accumulated x 1 process(es); 3* epoch(s), a log every 10 steps*, a checkpoint every 500 steps*
  max_length 1024*; evaluation none: nothing is held out
  LoRA r 8*, alpha 16*, dropout 0* on all*; weights auto*, computed in float32*
```

What you give is never changed, whether on the command line, in a `--config` file or in a pipeline. Defaults depend on what
is trained, which is the column `for`: an adapter (`LoRA`, also on a quantised base), all weights (`full`), or weights drawn
at random (`from scratch`, `--from_config`). The tables are written by `python -m hftune.tools.explaining --write-docs`.

What they reach: 60 steps of SmolLM2-135M-Instruct with `--use_peft` and nothing else chosen, on `examples/data`, take the
held-out loss from 4.76 to 4.36 (PT), 3.03 to 2.54 (SFT) and 4.02 to 3.22 (ORPO), pairs judged right from 75 % to 100 % (RM)
and 42 % to 100 % (DPO), and GRPO's reward from 0.35 to 0.43.
"""

_THEIRS = """## --defaults medicalgpt

`--defaults medicalgpt` takes the defaults of MedicalGPT's scripts (2026-04). A command without `--defaults` that is clearly
theirs (it has a name that only they have, such as `--max_source_length` or `--sft_model_path`, or three spellings that
differ from hftune's) gets one notice of what differs; `--defaults hftune` turns the notice off.

`--defaults medicalgpt` also does the following, as their code does. Each flag works on its own, too:

| there | here |
| --- | --- |
| RM: prompt and answer share one budget, `max_source_length + max_target_length` tokens; longer pairs are dropped | `--length_budget sum --too_long drop` |
| DPO, ORPO: the same, counted in characters of the rendered prompt and each answer; then TRL cuts the answer in tokens | `--length_budget sum_of_characters --too_long drop` |
| SFT (and GRPO's `train_samples`): records are shuffled with seed 42 before some are taken | `--shuffle_seed 42` |
| PT: `max_train_samples` and `max_eval_samples` count packed blocks | `--count_rows` |
| without a validation folder 1 % is held out | `--validation_split_percentage 1` |
| trained parameters are in float32 | `--train_in_float32` |
| GRPO: rewards for the right answer and for `<think>...</think><answer>...</answer>`, and a system message that asks for it | `--reward_funcs accuracy format --system_prompt TEXT` |
| all but GRPO train with `--do_train` alone | refused without `--do_train` or `--do_eval` |

Different here, each said in one line of the run: {unequal}; float16 where there is no GPU or all weights are trained;
TensorBoard where it is not installed.

These differences remain as well:

- DPO: the base stays in the dtype of `--dtype`; their script casts all of it to float32. Their class names a weight decay
  that their script does not pass on; here it is used.
- SFT: records that are too long are cut at their end; their script cuts both sides of each turn in proportion.
- PT: documents in a block do not see each other (`--cross_document_attention True` lets them).
- Held-out records are drawn at random; their PT, RM and DPO take the first ones. RLOO without a validation folder holds out
  none; their script takes the last 100 of a Hub data set.
"""


def page() -> str:
    """The page as Markdown."""
    return "\n".join([_HEAD, *(_script(stage) for stage in RUN_KINDS), _medicalgpt()])


def _script(stage: str) -> str:
    lines = [f"## run_{stage}.py", "", _START, "", "| argument | for | default | why |", "| --- | --- | --- | --- |"]
    for name in documented_names(stage):
        for one in default_rows(stage, name):
            # A default that is the empty text would be two backquotes.
            lines.append(f"| `{name}` | {one.where or 'all'} | `{one.value}` | {one.because} |".replace("``", "-"))
    return "\n".join([*lines, "", _END, ""])


def _medicalgpt() -> str:
    unequal = "; ".join(f"`{name} {value}` ({because})" for name, value, because in UNEQUAL)
    names = list(dict.fromkeys(name for values in MEDICALGPT.values() for name in values))
    scripts = list(MEDICALGPT)
    lines = [_START, "", f"| argument | {' | '.join(scripts)} |", "| --- |" + " --- |" * len(scripts)]
    for name in names:
        cells = [f"`{shown(MEDICALGPT[script][name])}`" if name in MEDICALGPT[script] else "" for script in scripts]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join([_THEIRS.format(unequal=unequal), *lines, "", _END, ""])
