"""Writes docs/conformance.md: each requirement id with the tests that name it; --check fails on a difference.

A test names its ids at the start of its docstring: `\"\"\"P-9, P-12: a client that never reads ...\"\"\"`.
An id that the sources or docs cite without any such test fails the check too.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "conformance.md"
ID = re.compile(r"\b([MTPANO]-\d{1,2})\b")
HEAD = re.compile(r"^((?:[MTPANO]-\d{1,2}(?:\.\d+)?(?:, )?)+):")
SOURCES = ("shardpool/**/*.py", "shardpool/**/*.[ch]", "workers/*.py", "supervisor/*.py", "docs/*.md", "README.md")


def order(requirement: str) -> tuple[int, int]:
    letter, number = requirement.split("-")
    return "MTPANO".index(letter), int(number)


def tests() -> Iterator[tuple[str, str]]:
    """(requirement id, test) of every test function that names one."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test_"):
                continue
            found = HEAD.match(ast.get_docstring(node) or "")
            if found is not None:
                for requirement in ID.findall(found.group(1)):
                    yield requirement, f"{path.relative_to(ROOT)}::{node.name}"


def claims() -> dict[str, str]:
    """Each id that a source or a page cites, with the first place."""
    places: dict[str, str] = {}
    for pattern in SOURCES:
        for path in sorted(ROOT.glob(pattern)):
            if path == PAGE or not path.is_file():
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                for requirement in ID.findall(line):
                    places.setdefault(requirement, f"{path.relative_to(ROOT)}:{number}")
    return places


def page(by_id: dict[str, list[str]]) -> str:
    lines = [
        "# Conformance",
        "",
        "Each requirement with the tests that name it. Written by `scripts/task conformance`; do not edit.",
        "",
        "| requirement | tests |",
        "|---|---|",
    ]
    for requirement in sorted(by_id, key=order):
        shown = "<br>".join(f"`{test}`" for test in sorted(set(by_id[requirement])))
        lines.append(f"| {requirement} | {shown} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 on a difference")
    options = parser.parse_args()
    by_id: dict[str, list[str]] = {}
    for requirement, test in tests():
        by_id.setdefault(requirement, []).append(test)
    text = page(by_id)
    if not options.check:
        PAGE.write_text(text)
        print(f"{PAGE.relative_to(ROOT)}: {len(by_id)} requirements")
        return 0
    faults = [
        f"{place} cites {id_}, which no test names" for id_, place in sorted(claims().items()) if id_ not in by_id
    ]
    if not PAGE.is_file() or PAGE.read_text() != text:
        faults.append("docs/conformance.md is not what the tests say: run scripts/task conformance")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
