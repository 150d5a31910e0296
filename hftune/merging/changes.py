"""What all adapters together do to a parameter, level by level; and whether it fits the base."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hftune.errors import ManifestError, UserError
from hftune.merging.adapters import Adapter, Part
from hftune.merging.recipes import Base, Spec
from hftune.merging.skeleton import Piece
from hftune.merging.updates import Change, Level


@dataclass
class Changes:
    """Parameter name to its change, level by level: for each adapter its weight and specs."""

    levels: list[list[tuple[float, dict[str, list[Spec]]]]]

    def parameters(self) -> list[str]:
        """Every parameter that some adapter changes, in order."""
        return list(dict.fromkeys(name for level in self.levels for _, specs in level for name in specs))

    def of(self, parameter: str) -> list[list[tuple[float, list[Spec]]]]:
        """The levels that change a parameter."""
        levels = [
            [(weight, specs[parameter]) for weight, specs in level if parameter in specs] for level in self.levels
        ]
        return [level for level in levels if level]

    def key(self, parameter: str) -> tuple:
        """Equal for parameters that change in the same way."""
        return tuple(
            tuple((w, tuple(spec.key for spec in specs)) for w, specs in level) for level in self.of(parameter)
        )

    def change(self, parameter: str, piece: Piece, shape: tuple[int, ...]) -> Change:
        """The recipes of a parameter for one of the tensors that store it."""
        return Change(
            [
                Level(tuple((weight, tuple(spec.make(piece, shape) for spec in specs)) for weight, specs in level))
                for level in self.of(parameter)
            ]
        )

    def shape(self, parameter: str, before: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a parameter afterwards."""
        shapes = [spec.shape for level in self.of(parameter) for _, specs in level for spec in specs if spec.shape]
        return shapes[-1] if shapes else before


def misfits(
    adapter: Adapter, specs: dict[str, list[Spec]], base: Base, grew: dict[str, list[Spec]]
) -> Iterator[UserError]:
    """Changes whose shape is not that of the parameter they are for. One problem names the first.

    Args:
        adapter: The adapter.
        specs: Its changes.
        base: The base.
        grew: Parameters that had grown before it was trained.
    """

    def shape(name: str) -> tuple[int, ...] | None:
        return grew[name][0].shape if name in grew else base.shape(name)

    wrong = [text for name, found in specs.items() for text in _misfit(name, found, shape(name))]
    wrong += [text for part in adapter.parts for text in _part_misfit(part, shape(f"{part.module}.weight"), specs)]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        yield ManifestError(
            f"the adapter in {adapter.folder} does not fit the base: {wrong[0]}{more}",
            place="--peft_model_path",
            fix="give the model that the adapter was trained on",
        )


def _misfit(name: str, specs: list[Spec], before: tuple[int, ...] | None) -> Iterator[str]:
    for spec in specs:
        after = spec.shape
        if after is None or before is None or after == before:
            continue
        # Embeddings and heads may have grown with the vocabulary; nothing else may change its shape.
        if len(after) != 2 or after[1:] != before[1:] or after[0] < before[0]:
            yield f"{name} is {list(before)} in the base and {list(after)} in the adapter"


def _part_misfit(part: Part, shape: tuple[int, ...] | None, specs: dict[str, list[Spec]]) -> Iterator[str]:
    a = part.tensors.get("lora_embedding_A") or part.tensors.get("lora_A")
    b = part.tensors.get("lora_embedding_B") or part.tensors.get("lora_B")
    if shape is None or len(shape) != 2 or a is None or b is None:
        return
    grown = [spec.shape for spec in specs.get(f"{part.module}.weight", []) if spec.shape]
    shape = grown[-1] if grown else shape
    if sorted((a.shape[-1], b.shape[0])) != sorted(shape) or a.shape[0] != b.shape[-1]:
        yield f"{part.module} is {list(shape)} in the base, its adapter has {list(b.shape)} x {list(a.shape)}"
