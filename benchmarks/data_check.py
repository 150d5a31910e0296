"""`hftune data check`: what it finds of planted copies and leaks, its false alarms, its speed and its memory.

python benchmarks/data_check.py --data FOLDER              three seeds, 20 and 200 thousand records
python benchmarks/data_check.py --data FOLDER --quick      one seed, 2 thousand records, no growth of memory
python benchmarks/data_check.py --data FOLDER --write-docs     the table goes into docs/data_check.md

Of the records of the folder with 20 words or more, one in five is kept as evaluation data, the others are the data to
check. Into these are planted: edited copies of records of their own, edited records of the evaluation data, and their
questions with another answer. Edits: capitals; other punctuation; 5 to 10 % of the words (of copies 1 to 2 %) replaced
by others of the corpus; a sentence of another record appended. Copies are of records of 80 words or more, and are made
once more where all records stand behind one instruction and have the same answer. Other records
that are called a copy or a leak are false alarms, unless a text of theirs is one of the other side's but for a fifth of
its characters (difflib): sample data asks some questions twice.
For speed and memory, records of conversations and pairs are repeated with their words in another order.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import platform
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from preprocess import _PeakMemory

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "data_check.md"
FOUND, FALSE, GROWTH, SPEED = 0.95, 0.01, 0.10, 2000
EDITS = ("case", "punctuation", "words", "appended")
_FEWEST, _FEWEST_OF_COPIES = 20, 80
_INSTRUCTION = (
    "You are given a text which somebody wrote for others to read. Read it with care, decide how the person who wrote "
    "it felt at that time, and then answer with one word of these two and nothing else at all: positive, negative."
)
_WORD = re.compile(r"[\u3400-\u9fff\u3040-\u30ff]|[^\W\u3400-\u9fff\u3040-\u30ff]+")
# Values that are no prose: edited, they would be no calls any more.
_CALLS = ("function_call", "observation", "tool", "tool_calls")
_COPIES = {"duplicate", "near_duplicate"}
_ALIKE, _SHORTEST = 0.8, 8


def main() -> None:
    """Measure, show, and end with one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT / "examples" / "data", help="records of any formats")
    parser.add_argument(
        "--records", type=int, default=20_000, help="for speed; memory is compared with ten times as many"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first_seed", type=int, default=0, help="thresholds were set on seeds 0 to 2")
    parser.add_argument("--quick", action="store_true", help="one seed, 2 thousand records, no growth of memory")
    parser.add_argument("--only", choices=("quality", "speed", "memory"), help="a part of it")
    parser.add_argument("--work", type=Path, help="keep the records that are made for speed and memory there")
    parser.add_argument("--write-docs", action="store_true", dest="write_docs")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if options.quick:
        options.seeds, options.records = 1, 2000
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        records = read(options.data)
        if options.only in (None, "quality"):
            seeds = range(options.first_seed, options.first_seed + options.seeds)
            runs = [quality(records, seed, Path(folder) / str(seed), options) for seed in seeds]
            figures["quality"] = {name: [run[name] for run in runs] for name in runs[0]}
        made = options.work or Path(folder)
        if options.only in (None, "speed"):
            figures["speed"] = speed(records, made, Path(folder), options)
        if options.only in (None, "memory") and not options.quick:
            figures["memory"] = memory(records, made, Path(folder), options)
    report(figures, options)


def read(folder: Path) -> list[dict[str, Any]]:
    """All records that can be used and are long enough to be compared."""
    from hftune.data.readers.base import Row
    from hftune.data.readers.files import chunks, find_files

    rows = (row for chunk in chunks(find_files(str(folder), "--data")) for row in chunk.rows())
    return [row.value for row in rows if isinstance(row, Row) and len(_WORD.findall(prose(row.value))) >= _FEWEST]


# --- planting ---


def prose(value: Any) -> str:
    """All texts of a record, without the names of roles."""
    found: list[str] = []
    changed(value, lambda text: found.append(text) or text)
    return "\n".join(found)


def changed(value: Any, edit: Callable[[str], str], key: str = "") -> Any:
    """A record with all its texts edited."""
    if isinstance(value, str):
        return value if key in ("from", "role") or not value.strip() else edit(value)
    if isinstance(value, list):
        return [changed(part, edit, key) for part in value]
    if isinstance(value, dict) and not {value.get("from"), value.get("role")} & {*_CALLS}:
        return {
            name: part if name in ("tools", "system") else changed(part, edit, name) for name, part in value.items()
        }
    return value


class Editor:
    """Edits texts with words and sentences of a corpus."""

    def __init__(self, texts: Iterable[str], seed: int) -> None:
        self.rng = random.Random(seed)
        self.words: dict[bool, list[str]] = {True: [], False: []}
        self.sentences: dict[bool, list[str]] = {True: [], False: []}
        for text in texts:
            for word in _WORD.findall(text):
                self.words[is_chinese(word)].append(word)
            for sentence in re.findall(r"[^.!?。！？\n]{20,80}[.!?。！？]", text):
                self.sentences[is_chinese(sentence)].append(sentence)

    def __call__(self, value: dict[str, Any], how: str, most: float = 0.10) -> dict[str, Any]:
        """A record with all texts edited in one way; a sentence is appended to the last one."""
        if how == "appended":
            return self._appended(value)
        share = self.rng.uniform(most / 2, most)
        edits = {"case": str.upper, "punctuation": punctuated, "words": lambda text: self._replaced(text, share)}
        return changed(value, edits[how])

    def _replaced(self, text: str, share: float) -> str:
        found = list(_WORD.finditer(text))
        # 3.4 words are 3 or 4, so that the share is right on average.
        count = int(len(found) * share + self.rng.random())
        for one in sorted(self.rng.sample(found, count), key=lambda one: -one.start()):
            text = text[: one.start()] + self.rng.choice(self.words[is_chinese(one[0])]) + text[one.end() :]
        return text

    def _appended(self, value: dict[str, Any]) -> dict[str, Any]:
        texts: list[str] = []
        changed(value, lambda text: texts.append(text) or text)
        more = self.rng.choice(self.sentences[is_chinese(texts[-1])])
        left = iter(range(len(texts)))
        return changed(value, lambda text: f"{text} {more}" if next(left) == len(texts) - 1 else text)


def is_chinese(text: str) -> bool:
    return bool(re.search("[\u3400-\u9fff]", text))


def punctuated(text: str) -> str:
    """The text with other punctuation and white space."""
    return re.sub(r"[.。]", " !", re.sub(r"[,，、]", " -- ", text)).replace("\n", "\n\n")


def question_of(value: dict[str, Any]) -> str | None:
    """What a record asks, if that is long enough to be known by."""
    for key in ("conversations", "messages"):
        turns = [turn for turn in value.get(key) or [] if turn.get("from", turn.get("role")) in ("human", "user")]
        asked = "\n".join(str(turn.get("value", turn.get("content"))) for turn in turns)
        if turns:
            return asked if len(_WORD.findall(asked)) >= _FEWEST else None
    asked = "\n".join(str(value.get(key) or "") for key in ("instruction", "input"))
    return asked if len(_WORD.findall(asked)) >= _FEWEST else None


def quality(records: list[dict[str, Any]], seed: int, folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Shares of what was planted that was found, by edit, and of what was not planted that was called one."""
    rng = random.Random(seed)
    shuffled = rng.sample(records, len(records))
    held, own = shuffled[: len(records) // 5], shuffled[len(records) // 5 :]
    edit = Editor(map(prose, records), seed)
    answers = [text for text in map(prose, own) if len(text) > 200]
    planted: list[tuple[str, str, dict[str, Any]]] = []
    long = [value for value in own if len(_WORD.findall(prose(value))) >= _FEWEST_OF_COPIES]
    copied = rng.sample(long, len(long) // 4)
    for name, chosen, most in (("copy", copied, 0.02), ("leak", held, 0.10)):
        planted += [(name, how, edit(value, how, most)) for value in chosen for how in EDITS]
    for value in held:
        asked = question_of(value)
        if asked is not None:
            for how in EDITS:
                text = edit({"text": asked}, how)["text"]
                turns = [{"role": "user", "content": text}, {"role": "assistant", "content": rng.choice(answers)[:200]}]
                planted.append(("question", how, {"messages": turns}))
    # A sixth of the leaks' own copies would be copies of each other: each kind and edit is checked by itself.
    found: dict[str, float] = {}
    false = Counter[str]()
    for how in EDITS:
        some = [(name, value) for name, other, value in planted if other == how]
        lines = check_planted(own, held, [value for _, value in some], folder / how, options)
        for name in ("copy", "leak", "question"):
            kinds = _COPIES if name == "copy" else {"leak"}
            at = [number for number, (other, _) in enumerate(some) if other == name]
            hit = sum(bool(lines.get(len(own) + number, set()) & kinds) for number in at)
            found[f"{name}, {how}"] = hit / len(at)
        for number in range(len(own)):
            kinds = lines.get(number, set())
            others = own[:number] + own[number + 1 :]
            for name, called, among in (("copies", kinds & _COPIES, others), ("leaks", kinds & {"leak"}, held)):
                if called:
                    real = any(alike(own[number], other) for other in among)
                    false[f"{name}, not planted" if real else f"false {name}"] += 1
    found |= behind_one_instruction(own, copied, held, edit, folder / "behind", options)
    names = ("false copies", "false leaks", "copies, not planted", "leaks, not planted")
    found |= {name: false[name] / (len(own) * len(EDITS)) for name in names}
    return found | {"planted": float(len(planted)), "own": float(len(own))}


def behind_one_instruction(
    own: list[dict[str, Any]],
    copied: list[dict[str, Any]],
    held: list[dict[str, Any]],
    edit: Editor,
    folder: Path,
    options: argparse.Namespace,
) -> dict[str, float]:
    """The shares of edited copies that were found, and of other records that were called copies."""
    asked = [*map(prose, own), *(prose(edit(value, "words", 0.02)) for value in copied)]
    records = [{"prompt": f"{_INSTRUCTION}\n{text}", "completion": "positive"} for text in asked]
    lines = check_planted(records, held, [], folder, options)
    called = {number for number, kinds in lines.items() if kinds & _COPIES}
    false = [
        number
        for number in called & {*range(len(own))}
        if not any(alike(own[number], other) for other in own[:number] + own[number + 1 :])
    ]
    return {
        "copy, words, behind one instruction": len(called - {*range(len(own))}) / len(copied),
        "false copies behind one instruction": len(false) / len(own),
    }


def alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether the two share a text, or nearly: a truth that owes nothing to what is measured."""
    # Lengths first: no two texts that differ more in theirs can be that similar.
    return any(
        difflib.SequenceMatcher(None, text, more, autojunk=False).ratio() >= _ALIKE
        for text in texts(one)
        for more in texts(other)
        if min(len(text), len(more)) > _ALIKE * max(len(text), len(more)) / (2 - _ALIKE)
    )


def texts(value: dict[str, Any]) -> list[str]:
    """Those of a record that are long enough to tell."""
    found: list[str] = []
    changed(value, lambda text: found.append(text) or text)
    return [text for text in found if len(text) >= _SHORTEST]


def check_planted(
    own: list[dict[str, Any]], held: list[dict[str, Any]], planted: list[dict[str, Any]], folder: Path, options: Any
) -> dict[int, set[str]]:
    """Kinds of findings by the number of the record, planted ones behind the others."""
    folder.mkdir(parents=True)
    data, evaluation = folder / "data.jsonl", folder / "evaluation.jsonl"
    write(data, [*own, *planted])
    write(evaluation, held)
    run([data, "--against", evaluation, "--output_dir", folder / "out"], options)
    found: dict[int, set[str]] = {}
    for line in (folder / "out" / "findings.jsonl").read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        found.setdefault(one["line"] - 1, set()).add(one["kind"])
    return found


# --- speed and memory ---


def speed(records: list[dict[str, Any]], made: Path, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Records a second of the whole command, of each round."""
    file = many(records, made, options.records)
    rates, processor = [], []
    for number in range(1 if options.quick else 3):
        began, used = time.perf_counter(), children_seconds()
        run([file, "--output_dir", folder / f"speed-{number}"], options)
        rates.append(options.records / (time.perf_counter() - began))
        processor.append(options.records / (children_seconds() - used))
    size = file.stat().st_size / options.records
    return {
        "records": options.records,
        "bytes": size,
        "workers": options.workers,
        "rates": rates,
        "processor": processor,
    }


def children_seconds() -> float:
    """Seconds of processor time of all processes that have ended; on a busy machine they say more than the clock."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def memory(records: list[dict[str, Any]], made: Path, folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Peak memory in MiB, also with ten times as many records."""
    found = {}
    for count in (options.records, 10 * options.records):
        found[str(count)] = run([many(records, made, count), "--output_dir", folder / f"memory-{count}"], options)
    return found


def many(records: list[dict[str, Any]], folder: Path, count: int) -> Path:
    """A file of conversations and pairs, repeated with their words in another order; made once for a folder."""
    file = folder / f"{count}.jsonl"
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        long = [value for value in records if set(value) != {"text"}]
        mix = partial(shuffled, rng=random.Random(1))
        write(file, (changed(long[number % len(long)], mix) for number in range(count)))
    return file


def shuffled(text: str, rng: random.Random) -> str:
    """The same words in another order, with what stands between them where it stood."""
    words = _WORD.findall(text)
    rng.shuffle(words)
    left = iter(words)
    return _WORD.sub(lambda found: next(left), text)


def write(file: Path, records: Iterable[dict[str, Any]]) -> None:
    with file.open("w", encoding="utf-8") as stream:
        for value in records:
            stream.write(json.dumps(value, ensure_ascii=False) + "\n")


def run(words: list[Any], options: argparse.Namespace) -> float:
    """Run the command; its peak memory with that of its processes, in MiB."""
    command = [sys.executable, "-m", "hftune.cli", "data", "check", *map(str, words)]
    command += ["--preprocessing_num_workers", str(options.workers)]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    peak = _PeakMemory(child.pid)
    peak.start()
    _, said = child.communicate()
    peak.stopped = True
    if child.returncode:
        raise SystemExit(f"the check failed:\n{said[-2000:]}")
    return peak.mebibytes


Bar = tuple[float, float, bool]
"""What was measured, what was wanted, and whether it holds."""
Rows = list[tuple[str, str, str]]


def report(figures: dict[str, Any], options: argparse.Namespace) -> None:
    """A table for each part, and the last line."""
    bars: dict[str, Bar] = {}
    for part, found in figures.items():
        rows, held = PARTS[part](found)
        bars |= held
        cells = [f"| {' | '.join(row)} |" for row in rows]
        table = "\n".join(["| | measured | wanted |", "| --- | ---: | ---: |", *cells])
        print(f"{table}\n")
        if options.write_docs:
            write_docs(part, table)
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    named = {name: dict(zip(("value", "bar", "holds"), one, strict=True)) for name, one in bars.items()}
    print(json.dumps({"benchmark": "data_check", "machine": machine, "figures": figures, "bars": named}))


def quality_rows(found: dict[str, list[float]]) -> tuple[Rows, dict[str, Bar]]:
    rows = []
    for name in (name for name in found if name not in ("planted", "own")):
        wanted = f"<= {FALSE:.0%}" if name.startswith("false") else f">= {FOUND:.0%}"
        wanted = "" if name.endswith("not planted") else wanted
        rows.append((name, f"{min(found[name]):.1%} - {max(found[name]):.1%}", wanted))
    planted = [values for name, values in found.items() if "," in name and "not planted" not in name]
    least = min(sum(seed) / len(planted) for seed in zip(*planted, strict=True))
    most = max(max(found[name]) for name in found if name.startswith("false"))
    rows.append(("all that was planted, the worst seed", f"{least:.1%}", f">= {FOUND:.0%}"))
    return rows, {"found": (least, FOUND, least >= FOUND), "false_alarms": (most, FALSE, most <= FALSE)}


def speed_rows(found: dict[str, Any]) -> tuple[Rows, dict[str, Bar]]:
    rate = statistics.median(found["rates"])
    name = f"records a second, {found['workers']} processes, {found['bytes']:,.0f} bytes a record"
    spread = f"{rate:,.0f} ({min(found['rates']):,.0f} - {max(found['rates']):,.0f})"
    second = ("records a second of one processor", f"{statistics.median(found['processor']):,.0f}", "-")
    return [(name, spread, f">= {SPEED:,}"), second], {"records_per_second": (rate, SPEED, rate >= SPEED)}


def memory_rows(found: dict[str, float]) -> tuple[Rows, dict[str, Bar]]:
    (few, small), (more, large) = found.items()
    growth = large / small - 1
    row = (f"peak memory, {int(few):,} and {int(more):,} records", f"{small:,.0f} and {large:,.0f} MiB", "+-10%")
    return [row], {"memory_growth": (growth, GROWTH, abs(growth) <= GROWTH)}


PARTS: dict[str, Callable[[Any], tuple[Rows, dict[str, Bar]]]] = {
    "quality": quality_rows,
    "speed": speed_rows,
    "memory": memory_rows,
}


def write_docs(part: str, table: str) -> None:
    """Replace the table of a part on the page."""
    page = PAGE.read_text(encoding="utf-8")
    text = f"<!-- {part} -->\n\n{table}\n\n<!-- end of {part} -->"
    page = re.sub(rf"(?ms)^<!-- {part} -->.*^<!-- end of {part} -->", lambda _: text, page)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
