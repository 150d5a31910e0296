"""Run a benchmark and put what it measured into docs/benchmarks.md, under its name.

python benchmarks/publish.py preprocess --tokenizer MODEL --data sharegpt.jsonl
python benchmarks/publish.py loader

The arguments behind the name are the benchmark's own. Its section is replaced; the others stay.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
HEAD = """# Benchmarks

How fast hftune is and how much memory it takes, next to other tools. All tools of a section were measured in the same run,
in turns, so compare the ratios rather than the absolute figures. Each section was written by the command that it shows;
"bar" is what hftune aims at.

```bash
python benchmarks/publish.py loader      # run benchmarks/loader.py and replace its section
```

<!-- measured -->
"""
END = "<!-- end of measured -->\n"


def main() -> int:
    """Run, show and publish; the benchmark's exit code."""
    if len(sys.argv) < 2 or not (ROOT / "benchmarks" / f"{sys.argv[1]}.py").is_file():
        print(__doc__)
        return 2
    name, flags = sys.argv[1], sys.argv[2:]
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *flags]
    finished = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    print(finished.stdout, end="")
    lines = finished.stdout.rstrip().splitlines()
    if finished.returncode or not lines:
        return finished.returncode or 1
    result = json.loads(lines[-1])
    # Of folders and files of this machine only the last name, also where two are given as FOLDER:PYTHON.
    shown = [":".join(Path(part).name if "/" in part else part for part in flag.split(":")) for flag in flags]
    publish(name, section(name, shown, "\n".join(lines[:-1]), result))
    return 0


def section(name: str, flags: list[str], table: str, result: dict) -> str:
    """One benchmark's part of the page; paths of the machine are left out."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    bars = [
        f"| {bar} | {_number(found['value'])} | {_number(found['bar'])} | {'yes' if found['holds'] else 'no'} |"
        for bar, found in result["bars"].items()
    ]
    held = "\n".join(["| bar | measured | wanted | holds |", "| --- | ---: | ---: | --- |", *bars]) if bars else ""
    asked = " ".join(["python", f"benchmarks/{name}.py", *flags])
    return (
        f"## {name}\n\n`{asked}` on {result['machine']}, {memory:.0f} GiB of memory:\n\n```\n{table}\n```\n\n{held}\n"
    )


def _number(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def publish(name: str, text: str) -> None:
    """Put a section into the page, in the place of the one of that name."""
    page = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else HEAD
    parts = re.split(r"(?m)^(?=## )", page.replace(END, ""))
    others = [part for part in parts[1:] if not part.startswith(f"## {name}\n")]
    sections = sorted([*(part.rstrip() + "\n" for part in others), text], key=str.casefold)
    PAGE.write_text("\n".join([parts[0].rstrip() + "\n", *sections, END]), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
