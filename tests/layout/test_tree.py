"""The shape of the tree: where no `__init__.py` may be, how long files and functions are, how large all of it is."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

FOLDERS = ("server", "tools", "kernels", "skill")
CODE = {".py", ".sh", ".jinja", ".css", ".js", ".cu", ".cuh", ".cpp", ".toml"}
MOST_FILE_LINES = 500
MOST_FUNCTION_LINES = 60
MOST_KERNEL_LINES = 110
"""A launch is one function: what its warps hand to each other cannot be spread over several."""
MOST_BYTES = 4 * 2**20


def shadowing(names: Iterable[Path]) -> list[str]:
    """Files that would make a folder of the checkout hide somebody's `kernels`, `tools`, `server` or `tests`."""
    inits = [name for name in names if name.name == "__init__.py"]
    return [str(name) for name in inits if name.parts[0] == "tests" or name.parent.as_posix() in FOLDERS]


def long_files(root: Path, names: Iterable[Path]) -> list[str]:
    counted = ((name, len((root / name).read_text().splitlines())) for name in names if name.suffix in CODE)
    return [f"{name}: {count} lines" for name, count in counted if count > MOST_FILE_LINES]


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> int:
    """Lines of the body, without the docstring, empty lines and comments."""
    body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    if not body:
        return 0
    kept = (lines[number - 1].strip() for number in range(body[0].lineno, (function.end_lineno or 0) + 1))
    return sum(1 for line in kept if line and not line.startswith("#"))


def is_kernel(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Decorated with triton.jit or gluon.jit."""
    return any(ast.unparse(decorator).split("(")[0].endswith(".jit") for decorator in function.decorator_list)


def long_functions(root: Path, names: Iterable[Path]) -> list[str]:
    found = []
    for name in names:
        if name.suffix != ".py":
            continue
        source = (root / name).read_text()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                count = body_lines(node, source.splitlines())
                if count > (MOST_KERNEL_LINES if is_kernel(node) else MOST_FUNCTION_LINES):
                    found.append(f"{name}:{node.lineno} {node.name}: {count} lines")
    return found


def total_bytes(root: Path, names: Iterable[Path]) -> int:
    return sum((root / name).stat().st_size for name in names)


def test_no_folder_shadows_a_foreign_package(tracked: list[Path]) -> None:
    assert shadowing(tracked) == []


def test_a_planted_init_is_seen() -> None:
    planted = ["kernels/__init__.py", "tests/kernels/__init__.py", "tests/__init__.py"]
    allowed = ["kernels/ops/__init__.py", "skill/recipes/__init__.py"]
    assert shadowing(map(Path, [*planted, *allowed])) == planted


def test_files_and_functions_stay_short(root: Path, tracked: list[Path]) -> None:
    assert long_files(root, tracked) == []
    assert long_functions(root, tracked) == []


def test_a_long_file_and_a_long_function_are_seen(tmp_path: Path) -> None:
    body = "\n".join(["def long():", '    """Text."""', *["    x = 1", "", "    # why"] * 61])
    (tmp_path / "at_the_limit.py").write_text("x = 1\n" * 500)
    (tmp_path / "long.py").write_text("x = 1\n" * 501)
    (tmp_path / "function.py").write_text(body + "\n")
    names = [path.relative_to(tmp_path) for path in sorted(tmp_path.iterdir())]
    assert long_files(tmp_path, names) == ["long.py: 501 lines"]
    assert long_functions(tmp_path, names) == ["function.py:1 long: 61 lines"]
    (tmp_path / "kernel.py").write_text("@triton.jit\n" + body + "\n")
    assert long_functions(tmp_path, [Path("kernel.py")]) == []
    (tmp_path / "kernel.py").write_text("@triton.jit\ndef long():\n" + "    x = 1\n" * 111)
    assert long_functions(tmp_path, [Path("kernel.py")]) == ["kernel.py:2 long: 111 lines"]


def test_the_repository_stays_small(root: Path, tracked: list[Path]) -> None:
    assert total_bytes(root, tracked) < MOST_BYTES


def test_a_large_file_is_counted(tmp_path: Path) -> None:
    (tmp_path / "large.bin").write_bytes(b"\0" * MOST_BYTES)
    assert total_bytes(tmp_path, [Path("large.bin")]) >= MOST_BYTES
