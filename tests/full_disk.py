"""What scripts on a small disk (the fixture `small_disk`) begin with."""

FILL = """import json, sys
from pathlib import Path
def fill():
    try:
        with Path("junk").open("ab", 0) as file:
            while True:
                file.write(b"x" * 4096)
    except OSError:
        pass
"""
"""Python code: imports, and fill(), which takes the disk's last byte."""
