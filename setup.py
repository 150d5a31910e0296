"""What pyproject.toml cannot say: a wheel holds the scripts, DeepSpeed configs and examples, in `hftune/shipped/`.

In a checkout, and in an installation from one (`pip install -e .`), they stay where they are; `hftune/constants.py`
looks for them.
"""

import re
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
SHIPPED = (
    "run_*.py",
    "merge_peft_adapter.py",
    "ds_configs/*.json",
    "examples/*.yaml",
    "examples/data/*/*",
    "examples/pipelines/*.yaml",
)


class BuildWithShipped(build_py):
    """Copies what `SHIPPED` names into the package that is built."""

    def run(self) -> None:
        """Overrides `build_py.run`."""
        super().run()
        # Of an editable installation nothing is copied: what is edited is what runs.
        for source, target in {} if self.editable_mode else self._shipped().items():
            self.mkpath(str(Path(target).parent))
            self.copy_file(source, target)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """Overrides `build_py.get_outputs`: a wheel's list of files names these as well."""
        return [*super().get_outputs(include_bytecode), *self._shipped().values()]

    def _shipped(self) -> dict[str, str]:
        files = [file.relative_to(ROOT) for pattern in SHIPPED for file in sorted(ROOT.glob(pattern))]
        return {str(file): str(Path(self.build_lib, "hftune", "shipped", file)) for file in files}


def description() -> str:
    """README.md without what only a checkout has: pictures, and links to other pages."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.sub(r"!?\[([^]]*)\]\((?!https?:)[^)]*\)", r"\1", text)


setup(
    cmdclass={"build_py": BuildWithShipped},
    long_description=description(),
    long_description_content_type="text/markdown",
)
