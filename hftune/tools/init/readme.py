"""The README of each folder that `hftune init` writes, by its kind."""

from __future__ import annotations

_LOOK = """
| you want | command |
|---|---|
| what an argument does, also under other tools' names | `hftune explain NAME` |
| what this machine has, and what is wrong with it | `hftune doctor` |
| what else hftune does | `hftune --help` |
"""

_PIPELINE = """
```bash
hftune pipeline plan {file}      # the commands, what would run and why, memory and time
{command}       # resumes after anything; what is finished is skipped
```

Results are in `outputs/`, a folder a stage; each says in its `hftune.json` what it was made from.
"""

README = {
    "demo": f"""# The demo

All stages on a small real model: it learns a handbook's words (PT), to be an assistant named Fina (SFT), what people
prefer (RM, DPO), and to be rewarded for it (RL). Some minutes on two CPU cores.
{_PIPELINE}
```bash
hftune report outputs/demo            # curves, counts and answers of all stages: report.html
hftune chat outputs/demo/rl-merged    # talk to what it became
```

| file | what |
|---|---|
| `{{file}}` | models, stages and their arguments |
| `base/` | the model that it begins with |
| `data/` | the records of each stage, `*_eval` for evaluation |
| `.hftune/` | what an editor knows of `{{file}}`: names, values, what they mean |
{_LOOK}""",
    "sft": f"""# Fine-tuning on conversations

`{{file}}` holds the arguments; each may also be given on the command line, where it wins.

```bash
hftune preview sft --config {{file}}      # the records as the model reads them, and what is trained
hftune plan sft --config {{file}}         # memory, and the cheapest setting that fits
{{command}}              # Ctrl-C saves a checkpoint; again with --resume_from_checkpoint auto
hftune merge --peft_model_path outputs/sft --output_dir outputs/sft-merged
hftune chat outputs/sft-merged
```

With two GPUs it starts two processes; `--deepspeed zero2` shards the optimizer over them.

Your own data: put files with conversations (JSONL, JSON, CSV, Parquet) into `data/sft`, in place of those that are
there. A record is a line such as this one; the forms of ShareGPT, Alpaca and others are recognised. Of the
records 5 % are held out (`validation_split_percentage`). Rate, schedule and epochs are hftune's for what is trained
(`hftune explain learning_rate`); `max_length` and the batch are yours to fit, which `hftune plan` helps with.

```json
{{{{"messages": [{{{{"role": "user", "content": "Hi!"}}}}, {{{{"role": "assistant", "content": "Hello."}}}}]}}}}
```
{_LOOK}""",
    "pipeline": f"""# Stages from one file

`{{file}}` names the model, the stages and their arguments. Each stage begins with what the one before came to.
{_PIPELINE}
A stage more is a key more below `stages:`, such as `dpo: {{{{train_file_dir: data/preference}}}}`, with files of
pairs in that folder. Your own data goes into `data/`, in place of what is there.
{_LOOK}""",
}
