"""Run the notebooks from top to bottom and store their outputs: `python docs/run_notebooks.py [NAME …]`.

Some need `runs/demo`, the output of `bertie demo`, or a download from the Hugging Face Hub.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "notebooks"


def main() -> None:
    os.environ["XDG_CACHE_HOME"] = "runs/cache"  # messages that name it then name no folder of this machine
    names = sys.argv[1:] or [path.stem for path in sorted(FOLDER.glob("*.ipynb"))]
    for path in [FOLDER / f"{name}.ipynb" for name in names]:
        notebook = nbformat.read(path, as_version=4)
        resources = {"metadata": {"path": str(FOLDER)}}
        settings = {"timeout": None, "record_timing": False, "coalesce_streams": True}
        NotebookClient(notebook, resources=resources, **settings).execute()
        notebook.metadata.language_info = {"name": "python"}  # without the version of this machine
        for cell in notebook.cells:
            if cell.cell_type == "code":  # a bar that has disappeared leaves an empty output
                cell.outputs = [output for output in cell.outputs if output.get("data", True)]
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
