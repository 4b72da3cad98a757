"""Maps the four folders of the checkout to `samebits.server`, `.tools`, `.kernels` and `.skill`.

Everything else is in pyproject.toml. `find_namespace_packages` is prefixed here, so that a new folder is never missing
from the wheel, and the SKILL.md of the root is put beside its references and recipes.
"""

from __future__ import annotations

from pathlib import Path

from setuptools import find_namespace_packages, setup
from setuptools.command.build_py import build_py

FOLDERS = tuple(name for name in ("server", "tools", "kernels", "skill") if Path(name).is_dir())
DATA = ("*.md", "*.toml", "*.json", "*.jinja", "*.css", "*.js", "*.cu", "*.cuh", "*.cpp", "*.svg", "py.typed")
SKILL = Path("SKILL.md")


class BuildWithSkill(build_py):
    """Adds the root's SKILL.md to the built package `samebits.skill`; an editable install reads it from the root.

    At the root it links to `skill/references/...`; beside those folders the links lose their first part.
    """

    def run(self) -> None:
        super().run()
        if SKILL.is_file() and not self.editable_mode:
            self._built_skill.parent.mkdir(parents=True, exist_ok=True)
            self._built_skill.write_text(SKILL.read_text(encoding="utf-8").replace("](skill/", "]("), encoding="utf-8")

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [*super().get_outputs(include_bytecode), *([str(self._built_skill)] if SKILL.is_file() else [])]

    def get_source_files(self) -> list[str]:
        return [*super().get_source_files(), *([str(SKILL)] if SKILL.is_file() else [])]

    @property
    def _built_skill(self) -> Path:
        return Path(self.build_lib, "samebits", "skill", SKILL.name)


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
