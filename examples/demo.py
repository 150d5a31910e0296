"""All stages on a real pretrained model, from one file: PT -> SFT -> RM -> RL, and SFT -> DPO, every adapter merged.

python examples/demo.py                     hftune pipeline run examples/pipelines/demo.yaml, then hftune report
python examples/demo.py --dry_run           everything on 8 records; what is not known here goes to the pipeline
python examples/demo.py --output_dir DIR    keep the results somewhere else than in outputs/demo
python examples/demo.py --write_docs        copy the report to docs/demo.md, and draw it

Started again it resumes where it was interrupted, and skips what is finished.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PIPELINE = "examples/pipelines/demo.yaml"
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]


def main() -> int:
    """Bring the model, run the pipeline, show what it came to. The pipeline's exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, default=Path("outputs/demo"))
    parser.add_argument("--write_docs", action="store_true", help="copy the report to docs/demo.md, and draw it")
    options, more = parser.parse_known_args()
    os.chdir(ROOT)
    from base_model import FOLDER, prepare_base

    print(f"base model: {prepare_base(FOLDER)}\n  in {FOLDER}", flush=True)
    values = {"DEMO_MODEL": FOLDER, "DEMO_OUTPUT": options.output_dir, "DEMO_PROCESSES": processes()}
    began, anew = time.time(), not options.output_dir.exists()
    code = hftune("pipeline", "run", PIPELINE, *more, **{name: str(value) for name, value in values.items()})
    if code or "--dry_run" in more:
        return code
    hftune("report", str(options.output_dir))
    show(options.output_dir)
    if options.write_docs:
        write_docs(options.output_dir, time.time() - began if anew else None)
    return 0


def processes() -> int:
    """One a GPU; on a CPU two, as a small picture of a cluster, or one where there is a single core."""
    import torch

    return torch.cuda.device_count() or min(2, os.cpu_count() or 1)


def hftune(*words: str, **values: str) -> int:
    """Run the command, shown as a user would type it. Ctrl-C is the command's to answer; SIGTERM is passed on to it."""
    from hftune import child_processes

    shown = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    print(f"\n{' '.join([*shown, 'hftune', *words])}", flush=True)
    running = child_processes.start(child_processes.python("-m", "hftune.cli", *words), env={**os.environ, **values})
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: running.send_signal(number))
    return running.wait()


def show(folder: Path) -> None:
    """The tables that say most: stages, rewards and answers."""
    from hftune.tools.reporting.stages import ASKED, UNTRAINED, read_stages
    from hftune.tools.reporting.tables import (
        answer_cards,
        capabilities,
        render_cards,
        reward_section,
        stages_section,
    )

    stages = read_stages(folder)
    trained = [stage.overview for stage in stages if stage.manifest["stage"] not in UNTRAINED]
    measured = capabilities([stage.evaluation for stage in stages if stage.evaluation])
    answers = next(stage.answers for stage in stages if stage.manifest["stage"] == ASKED)
    for section in filter(None, (stages_section(trained), measured, reward_section(answers))):
        print(f"\n{section.render()}")
    print(f"\n{render_cards(answer_cards(answers)[:3])}")


def write_docs(folder: Path, seconds: float | None) -> None:
    """The report as `docs/demo.md`, with the command and the size of the machine.

    Args:
        folder: What was reported.
        seconds: All of it took; None where it had been begun before.
    """
    import torch

    from hftune import child_processes

    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    machine = f"{len(os.sched_getaffinity(0))} CPU cores, {memory / 2**30:.0f} GiB of memory"
    gpus = torch.cuda.device_count()
    machine += f", {gpus} x {torch.cuda.get_device_name(0)}" if gpus else ", no GPU"
    took = f"; {seconds:.0f} s in all, installation apart" if seconds else ""
    title, _, rest = (folder / "report.md").read_text(encoding="utf-8").partition("\n")
    note = (
        "What every stage makes of SmolLM2-135M on the example data: answers before and after, curves, counts, "
        "commands.\n"
        f"Written by `make demo DEMO_ARGS=--write_docs` on {machine}{took}.\n\n```bash\nmake demo\n```"
    )
    text = f"{title}\n\n{note}\n\n<!-- report -->\n{rest}\n<!-- end of report -->\n"
    Path("docs/demo.md").write_text(text, encoding="utf-8")
    child_processes.run(child_processes.python("docs/pictures/draw.py", "--only", "demo"), check=True)


if __name__ == "__main__":
    sys.exit(main())
