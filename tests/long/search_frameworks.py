"""Search an index in LangChain and in LlamaIndex, by the scripts of examples/retrievers. Not run by pytest.

    python tests/long/search_frameworks.py [--environment FOLDER]

The environment gets the packages of PACKAGES in the versions of service_clients.py, unless it has them: 350 MB. It also sees the
packages of this environment. Fails if a script finds other passages, or other scores, than `bertie.search`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from environments import parser_of, python_with

import bertie

ROOT = Path(__file__).parents[2]
PACKAGES = {"langchain_retriever": "langchain-core", "llama_index_retriever": "llama-index-core"}
PINS = (ROOT / "tests" / "long" / "service_clients_sides" / "clients.txt").read_text().splitlines()
QUERY = "when is the ice thick enough"


def small_model(folder: Path) -> Path:
    """Return a model of a few steps."""
    text = ROOT / "examples" / "data" / "text.jsonl"
    tokenizer = bertie.train_tokenizer(text, folder / "tokenizer", vocab_size=800)
    bertie.prepare(text, tokenizer, folder / "shards", eval_share=0.1)
    bertie.pretrain({"extends": "modern-tiny", "training": {"steps": 3}}, folder / "shards", folder / "bert", threads=1)
    return folder / "bert"


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--environment", type=Path, help="its folder, which is kept; by default a temporary one")
    chosen, problems = parser.parse_args().environment, 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pins = [pin for pin in PINS if pin.partition("==")[0] in PACKAGES.values()]
        python = python_with((chosen or folder / "environment").absolute(), *pins)
        index = folder / "index"
        bertie.index(ROOT / "examples" / "data" / "text.jsonl", small_model(folder), index)
        wanted = [(f"{hit.score:.3f}", hit.text) for hit in bertie.search(index, QUERY, 3)]
        # The environment's own packages are found first.
        paths = [str(path) for path in python.parents[1].glob("lib/*/site-packages")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, *filter(None, sys.path)])}
        for script, package in PACKAGES.items():
            command = [python, ROOT / "examples" / "retrievers" / f"{script}.py", QUERY, "--index", index]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            found = re.findall(r"^(\d\.\d{3})  (.*)$", done.stdout, re.MULTILINE)
            right = found == wanted
            problems += not right
            print(f"{package}: {'as bertie' if right else f'{found}, not {wanted}: {done.stderr[-2000:]}'}")
    return problems


if __name__ == "__main__":
    sys.exit(main())
