"""List what users see of bertie, and what has changed since a commit.

Imports with their signatures, flags, recipe keys, recipes, checkpoints, routes of the server, pages: what docs/reference has
as code is part of it, and a test compares these pages with the program.

usage: python tests/long/public_surface.py BASE      exit code 1 if something of BASE is missing
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import MISSING
from io import BytesIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def imports() -> Iterator[str]:
    """Yield the public names of the importable bertie, with the members of its classes."""
    import bertie

    for name in bertie.__all__:
        value = getattr(bertie, name)
        yield f"bertie.{name}{signature(value)}"
        if inspect.isclass(value):
            for member, inner in vars(value).items():
                if not member.startswith("_"):
                    yield f"bertie.{name}.{member}{signature(inner)}"


def flags() -> Iterator[str]:
    """Yield the flags of the importable bertie, with their values and defaults."""
    from bertie.commands import VERBS
    from bertie.commands.flags import variants

    for verb in VERBS:
        for word, arguments in variants(verb).items():
            defaults = {found.label: "required" if found.default is MISSING else found.default for found in arguments}
            yield from (f"bertie {verb} {word}: {label} = {default}" for label, default in defaults.items())


def signature(value: Any) -> str:
    value = getattr(value, "__func__", value)
    return str(inspect.signature(value)) if inspect.isfunction(value) else ""


def routes(described: Any, path: str) -> Iterator[str]:
    """Yield the paths of the keys of the server's description."""
    for key, value in described.items() if isinstance(described, dict) else ():
        if key not in ("description", "summary", "example", "examples"):
            yield f"{path}/{key}"
            yield from routes(value, f"{path}/{key}")


def surface(checkout: Path) -> set[str]:
    """Return one line for each thing that users see."""
    program = [sys.executable, __file__, "--imports"]
    environment = {"PYTHONPATH": str(checkout / "src"), "PATH": ""}
    answer = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
    seen = set(answer.stdout.splitlines())
    for page in (checkout / "docs" / "reference").glob("*.md"):
        seen |= {f"reference: {name}" for name in re.findall("`[^`\n]+`", page.read_text(encoding="utf-8"))}
    seen |= set(routes(json.loads((checkout / "docs" / "reference" / "openapi.json").read_text()), "server"))
    for pattern in ("src/bertie/configs/**/*.toml", "docs/**/*.md", "src/bertie/checkpoints/families/*.py"):
        seen |= {str(path.relative_to(checkout)) for path in checkout.glob(pattern)}
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", nargs="?")
    parser.add_argument("--imports", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.imports:
        print(*imports(), *flags(), sep="\n")
        return 0
    if not arguments.base:
        print(*sorted(surface(ROOT)), sep="\n")
        return 0
    archive = subprocess.run(["git", "archive", arguments.base], cwd=ROOT, capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        before, now = surface(Path(folder)), surface(ROOT)
    print(*(f"- {line}" for line in sorted(before - now)), *(f"+ {line}" for line in sorted(now - before)), sep="\n")
    print(f"{len(now):,} lines; {len(before - now)} of {len(before):,} before are missing, {len(now - before)} are new")
    return int(bool(before - now))


if __name__ == "__main__":
    sys.exit(main())
