"""A hook of MkDocs: the Markdown files beside docs/ become pages, and links between all of them stay right."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
LINK = re.compile(r"\[([^\[\]]*)\]\(([^()\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, page in PAGES.items():
        if page not in files.src_uris:  # docs/index.md, where there is one, takes the place of the README
            text = (ROOT / name).read_text(encoding="utf-8")
            files.append(File.generated(config, page, content=relink(text, name, page)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    uri = page.file.src_uri
    return markdown if page.file.generated_by else relink(markdown, f"docs/{uri}", uri)


def relink(markdown: str, source: str, page: str) -> str:
    """Links as the site needs them. A file without a page leaves only the text of its link.

    source: where the Markdown is in the repository. page: where it is in the site.
    """

    def replace(found: re.Match[str]) -> str:
        text, target = found.groups()
        if re.match(r"[a-z]+:|#", target):
            return found.group()
        path, _, anchor = target.partition("#")
        there = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        uri = PAGES.get(there) or (there.removeprefix("docs/") if there.startswith("docs/") else "")
        if not uri:
            return text
        relative = posixpath.relpath(uri, posixpath.dirname(page) or ".")
        return f"[{text}]({relative}{'#' * bool(anchor)}{anchor})"

    return LINK.sub(replace, markdown)
