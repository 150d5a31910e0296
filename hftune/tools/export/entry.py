"""`hftune export FORMAT`: parses the command line and starts the export."""

from __future__ import annotations

from hftune.arguments.stages import parse_command
from hftune.errors import ArgumentError
from hftune.tools.export.run import FORMATS
from hftune.tools.export.run import export as write


def export(argv: list[str]) -> None:
    """Write a finished model in the form that another tool needs."""
    if not argv or argv[0] not in FORMATS:
        raise ArgumentError(
            "`hftune export` needs a format",
            fix=f"hftune export gguf --model_name_or_path MODEL --output_dir OUT; one of: {', '.join(FORMATS)}",
        )
    write(parse_command(FORMATS[argv[0]], argv[1:]))
