"""What is to be measured: of which models, on which records, and in which parts."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hftune.arguments.asking import ANSWER_TASKS, OF_ANSWERS, EvaluateArguments
from hftune.checkpoints.manifest import text_fingerprint
from hftune.data.readers.base import Row
from hftune.tools.evaluating.results import is_evaluation
from hftune.tools.talking.answering import Question
from hftune.tools.talking.records import Asked, asked, rows_of

PART_RECORDS = 32
"""What a killed process loses, and what processes share out."""
FLAG = "--validation_file_dir"


@dataclass
class Work:
    """What is to be measured, and in which parts."""

    args: EvaluateArguments
    rows: list[tuple[Row, str]] = field(init=False)

    def __post_init__(self) -> None:
        folder = self.args.validation_file_dir
        self.rows = rows_of(folder, FLAG, self.args.max_eval_samples) if folder else []
        self.tasks = list(self.args.eval_tasks or [])

    @property
    def models(self) -> list[str]:
        """All that are loaded; what the others are compared with is the last."""
        against = [self.args.against] if self.args.against and not is_evaluation(self.args.against) else []
        return list(dict.fromkeys([*(self.args.models or []), *against]))

    @property
    def answer_tasks(self) -> list[str]:
        """Those for which answers are generated."""
        return [task for task in self.tasks if task in ANSWER_TASKS]

    @cached_property
    def asked(self) -> list[Asked]:
        """The questions of all records."""
        return [asked(row) for row, _ in self.rows]

    def parts(self, kind: str, number: int) -> list[str]:
        """The names of a model's parts of one kind."""
        return [f"{number}-{kind}-{start}" for start in range(0, len(self.rows), PART_RECORDS)]

    def of(self, part: str) -> range:
        """The records of a part."""
        start = int(part.rpartition("-")[2])
        return range(start, min(start + PART_RECORDS, len(self.rows)))

    @property
    def kinds(self) -> list[str]:
        """Of parts that need the model."""
        answers = [task for task in (*ANSWER_TASKS, *OF_ANSWERS) if task in self.tasks]
        return [*(["loss"] if "loss" in self.tasks else []), *(["answers"] if answers else [])]

    def harness_parts(self, number: int) -> dict[str, str]:
        """A model's parts of lm-eval, each with its task."""
        return {f"{number}-lm_eval-{place}": task for place, task in enumerate(self.args.harness_tasks)}

    def all_parts(self, number: int) -> list[str]:
        """The names of all parts of a model, in the order of their lines in the result."""
        kinds = [*self.kinds, *(task for task in OF_ANSWERS if task in self.tasks)]
        return [*(part for kind in kinds for part in self.parts(kind, number)), *self.harness_parts(number)]

    def questions(self, places: range) -> list[Question]:
        """What is asked of some records."""
        found = [self.asked[place] for place in places]
        return [
            Question(one.prompt.messages, one.tools, one.prompt.template_arguments, one.prompt.origin) for one in found
        ]

    def named(self, place: int) -> dict[str, Any]:
        """A record's name and source, and a digest by which another evaluation knows it again."""
        row, source = self.rows[place]
        # `default`: Parquet has dates and decimals.
        digest = text_fingerprint(json.dumps(row.value, sort_keys=True, default=str))
        return {"record": f"{source}:{row.line}", "digest": digest, "source": source}
