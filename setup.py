"""Maps the four folders of the checkout to `samebits.server`, `.tools`, `.kernels` and `.skill`.

Everything else is in pyproject.toml. `find_namespace_packages` is prefixed here, so that a new folder is never missing
from the wheel, and the SKILL.md of the root is put beside its references and recipes.
"""

from __future__ import annotations

from pathlib import Path

from setuptools import find_namespace_packages, setup
from setuptools.command.build_py import build_py

FOLDERS = ("server", "tools", "kernels", "skill")
DATA = ("*.md", "*.toml", "*.json", "*.jinja", "*.css", "*.js", "*.cu", "*.cuh", "*.cpp", "*.svg", "py.typed")
SKILL = "SKILL.md"


class BuildWithSkill(build_py):
    """Adds the root's SKILL.md to the built package `samebits.skill`; an editable install reads it from the root."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode and Path(SKILL).is_file():
            self.mkpath(str(Path(self.build_lib, "samebits", "skill")))
            self.copy_file(SKILL, self._skill_target(), preserve_mode=False)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [*super().get_outputs(include_bytecode), self._skill_target()]

    def get_source_files(self) -> list[str]:
        return [*super().get_source_files(), SKILL]

    def _skill_target(self) -> str:
        return str(Path(self.build_lib, "samebits", "skill", SKILL))


def packages() -> list[str]:
    """Every folder below the four is a package, with or without Python in it: data folders travel too."""
    return [
        f"samebits.{folder}{'.' + name if name else ''}"
        for folder in FOLDERS
        for name in ["", *find_namespace_packages(folder, exclude=["*__pycache__*"])]
    ]


setup(
    packages=packages(),
    package_dir={f"samebits.{folder}": folder for folder in FOLDERS},
    package_data={"": list(DATA)},
    cmdclass={"build_py": BuildWithSkill},
)
