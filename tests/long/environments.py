"""What the long tests share: environments with other packages, a free port, and the parser of their arguments."""

from __future__ import annotations

import argparse
import shutil
import socket
import subprocess
import venv
from pathlib import Path


def parser_of(text: str | None) -> argparse.ArgumentParser:
    """Return a parser that shows the first line of the docstring of a script."""
    return argparse.ArgumentParser(description=text.splitlines()[0] if text else None)


def python_with(folder: Path, *packages: str | Path) -> Path:
    """Return the Python of an environment, which gets packages unless it has them. Packages: arguments of pip."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    subprocess.run(command, check=True)
    return python


def npm_problem(folder: Path, package: str) -> str:
    """Return why a folder cannot have a package of npm, which it gets unless it is there; empty if it has it."""
    if not (shutil.which("node") and shutil.which("npm")):
        return "Node is not installed"
    if not (folder / "node_modules" / package.rpartition("@")[0]).is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        # Without scripts, which may download libraries for CUDA.
        command = ["npm", "install", package, "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", folder]
        ran = subprocess.run(command, capture_output=True, text=True)
        if ran.returncode:
            return f"npm cannot install {package}: {ran.stderr.strip().splitlines()[0]}"
    return ""


def free_port() -> int:
    """Return a port that no server uses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
