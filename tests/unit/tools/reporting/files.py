"""Folders of runs as they stand while they train, made up; and what a browser would make of a page."""

from __future__ import annotations

import json
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from hftune.checkpoints.manifest import write_manifest


def log_line(step: int, at: float, **more: Any) -> str:
    """A line of progress.jsonl: two seconds and 100 tokens a step, of 30."""
    line = {"loss": 3 / step, "grad_norm": 1.0, "learning_rate": 1e-3, "tokens_per_second": 50.0, "memory_gb": 1.5}
    line |= {"step": step, "max_steps": 30, "time": at + 2 * step, "tokens": 100 * step, **more}
    return json.dumps(line) + "\n"


def write_run(folder: Path, steps: int, status: str = "running", **manifest: Any) -> None:
    """The folder of a run that has made so many steps, the last of them just now."""
    folder.mkdir(parents=True, exist_ok=True)
    at = time.time() - 2 * steps
    began = json.dumps({"began": True, "step": 0, "max_steps": 30, "time": at, "tokens": None}) + "\n"
    (folder / "progress.jsonl").write_text(began + "".join(log_line(step, at) for step in range(1, steps + 1)))
    about = {"stage": folder.name, "status": status, "command": [f"run_{folder.name}.py"], "base": {"name": "base"}}
    write_manifest(folder, {**about, "arguments": {"training": {"learning_rate": 1e-3}}, **manifest})


class Tags(HTMLParser):
    """Tags, attributes and comments of a page, and the elements that were not closed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.comments: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        if self.open[-1:] == [tag]:
            self.open.pop()

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)
