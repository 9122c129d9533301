"""The contents of the distributions, and the wheel in an environment without the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import bertie

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
BUILD = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"


def tracked(*folders: str) -> set[str]:
    """List the files of the checkout in these folders, without Python's caches."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file())
    return {str(path.relative_to(ROOT)) for path in found if path.suffix != ".pyc" and ".egg-info" not in str(path)}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build from a copy, because setuptools writes into the folder of the sources."""
    source, out = tmp_path_factory.mktemp("source") / "copy", tmp_path_factory.mktemp("sdist")
    left_out = shutil.ignore_patterns(".*", "build", "dist", "runs", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, source, ignore=left_out)
    subprocess.run([sys.executable, "-c", BUILD, str(out)], cwd=source, check=True, capture_output=True)
    [built] = out.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build from the source distribution, which tests that nothing is missing in it."""
    out = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--wheel-dir", str(out), str(sdist)], check=True, capture_output=True)
    [built] = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bin folder of a new environment with the wheel. The dependencies come from the environment that runs this test.

    A .pth file adds that environment's packages. Python ignores .pth files in a folder added this way, so an editable
    install there has no effect.
    """
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=True)
    paths = {"base": str(home), "platbase": str(home)}
    packages = Path(sysconfig.get_path("purelib", "venv", paths))
    pip = [str(home / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--no-index", "--no-deps", str(wheel)], check=True, capture_output=True)
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin"


def run(command: list[str], folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_sdist_has_everything_that_tests_and_documentation_need(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert names >= tracked("src", "tests", "docs", "dev", "recipes", "benchmarks")
    assert names >= {"README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff"}
    assert names >= {"pyproject.toml", "constraints.txt", "Makefile"}
    assert not [name for name in names if "__pycache__" in name or name.startswith((".", "runs/", "build/"))]


def test_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {name.removeprefix("src/") for name in tracked("src/bertie")}
    assert {name for name in names if ".dist-info/" not in name} == package
    assert "bertie/py.typed" in names
    assert {
        "bertie/configs/pretrain/mini.toml",
        "bertie/configs/finetune/classify.toml",
        "bertie/base/report.css",
    } <= names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_wheel_runs_without_the_checkout(installed: Path, tmp_path: Path) -> None:
    where = run([str(installed / "python"), "-c", "import bertie; print(bertie.__file__)"], tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent)
    assert run([str(installed / "bertie"), "--version"], tmp_path) == f"{bertie.__version__}\n"
    assert "--training.steps" in run([str(installed / "bertie"), "pretrain", "mini", "--help"], tmp_path)


def test_demo_of_the_wheel_writes_its_report(installed: Path, tmp_path: Path) -> None:
    run([str(installed / "bertie"), "demo", "--scale", "0.02", "--out", "out"], tmp_path)
    assert "<svg" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    run([str(installed / "bertie"), "fill-mask", "out/bert", "Return the [MASK] of the list."], tmp_path)
