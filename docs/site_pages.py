"""A hook of MkDocs: Markdown files and notebooks beside docs/ become pages, and links between all of them stay right."""

from __future__ import annotations

import json
import posixpath
import re
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples/README.md": "examples/index.md",
    **{str(path.relative_to(ROOT)): f"examples/{path.stem}.md" for path in ROOT.glob("examples/*.py")},
    **{str(path.relative_to(ROOT)): f"notebooks/{path.stem}.md" for path in ROOT.glob("examples/notebooks/*.ipynb")},
}
LINK = re.compile(r"\[([^\[\]]*)\]\(([^()\s]+)\)")
IMAGE = re.compile(r'\b(src|srcset)="([^"\s]+)"')  # of <img> and <source>; MkDocs neither moves nor checks them
EXTERNAL = re.compile(r"[a-z]+:|#")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, page in PAGES.items():
        if page not in files.src_uris:  # docs/index.md, where there is one, takes the place of the README
            text = (ROOT / name).read_text(encoding="utf-8")
            page_of = {".ipynb": notebook_page, ".py": script_page}.get(Path(name).suffix, relink)
            files.append(File.generated(config, page, content=page_of(text, name, page)))
    return files


def script_page(script: str, source: str, page: str) -> str:  # noqa: ARG001
    return f"# {Path(source).name}\n\n```python\n{script}```\n"


def notebook_page(notebook: str, source: str, page: str) -> str:
    """Return a notebook as Markdown, with its code and the outputs that are stored in it. Arguments as of `relink`."""
    parts = []
    for cell in json.loads(notebook)["cells"]:
        text = "".join(cell["source"])
        parts.append(relink(text, source, page) if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        parts += map(_output, cell.get("outputs", ()))
    return "\n\n".join(parts)


def _output(output: dict[str, Any]) -> str:
    """Return an output of a cell as HTML."""
    data = {kind: "".join(content) for kind, content in output.get("data", {"text/plain": output.get("text")}).items()}
    if image := data.get("image/png"):
        return f'<div class="output"><img alt="{escape(data["text/plain"])}" src="data:image/png;base64,{image}"></div>'
    shown = data.get("text/html") or f"<pre>{escape(data['text/plain'])}</pre>" if data else ""
    return f'<div class="output">{shown}</div>'


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    uri = page.file.src_uri
    return markdown if page.file.generated_by else relink(markdown, f"docs/{uri}", uri)


def relink(markdown: str, source: str, page: str) -> str:
    """Links and images as the site needs them. A file without a page leaves only the text of its link.

    source: where the Markdown is in the repository. page: where it is in the site.
    """

    def moved(target: str) -> str:
        path, _, anchor = target.partition("#")
        there = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        uri = PAGES.get(there) or (there.removeprefix("docs/") if there.startswith("docs/") else "")
        return posixpath.relpath(uri, posixpath.dirname(page) or ".") + "#" * bool(anchor) + anchor if uri else ""

    def link(found: re.Match[str]) -> str:
        text, target = found.groups()
        if EXTERNAL.match(target):
            return found.group()
        return f"[{text}]({new})" if (new := moved(target)) else text

    def image(found: re.Match[str]) -> str:
        attribute, target = found.groups()
        return found.group() if EXTERNAL.match(target) else f'{attribute}="{moved(target)}"'

    return IMAGE.sub(image, LINK.sub(link, markdown))
