"""Hooks of MkDocs: pages of the repository's root join the site, and links to source files become plain names.

The links in the files are those of the repository, so that they work on a code host as well.
"""

import re
from pathlib import Path
from posixpath import dirname, normpath, relpath
from posixpath import join as join_path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
ADDED = {"README.md": "overview.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Files of the root, each with its page of the site."""
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?!https?://|#)(?P<target>[^)#\s]+)(?P<anchor>#[^)]*)?\)")
_FENCED = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root, with their links written as from the documentation's folder."""
    for source, page in ADDED.items():
        files.append(File.generated(config, page, content=_outside_fences((ROOT / source).read_text(), "", page)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write a page's links out of the documentation's folder as the site needs them."""
    del config, files
    source = page.file.src_uri
    return markdown if source in ADDED.values() else _outside_fences(markdown, join_path("docs", source), source)


def _outside_fences(markdown: str, source: str, page: str) -> str:
    parts = _FENCED.split(markdown)
    parts[::2] = [_LINK.sub(lambda link: _written(link, source, page), part) for part in parts[::2]]
    return "".join(parts)


def _written(link: "re.Match[str]", source: str, page: str) -> str:
    """Return a link of `source`, a path in the repository, as the site's `page` needs it."""
    target = normpath(join_path(dirname(source), link["target"]))
    anchor = link["anchor"] or ""
    if target in ADDED:
        inside = ADDED[target]
    elif target.startswith("docs/"):
        inside = target.removeprefix("docs/")
    else:
        return link["text"]
    return f"{link['image']}[{link['text']}]({relpath(inside, dirname(page) or '.')}{anchor})"
