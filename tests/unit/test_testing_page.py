"""The example of docs/testing.md is what a reader copies: it passes as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"
NAMED_BLOCK = re.compile(r"^`(\w+\.py)`:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_example_of_the_page_passes(tmp_path: Path) -> None:
    """O-10, O-19: the app and the test of the page, copied into two files, with pytest and nothing else."""
    for name, text in NAMED_BLOCK.findall(PAGE.read_text()):
        (tmp_path / name).write_text(text)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "20 passed" in result.stdout
