"""Hooks of MkDocs: pages that live elsewhere in the repository are pages of the site too.

Links are written so that they hold in the repository, where people and editors follow them; here
they are turned into those that hold in the site. A link to a file that is no page becomes its name.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ELSEWHERE = ("runbooks/*.md", "runbooks/fleet/*.md", "benchmarks/README.md", "CHANGELOG.md")

_LINK = re.compile(r"(!?\[(?:[^\]\[]|\[[^\]]*\])*\])\(([^)\s]+)\)")
_INDEX = ("index.md", "README.md")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Patterns of the navigation become the pages that they stand for."""
    config.nav = _expanded(config.nav or [])
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Takes in what is not below docs/."""
    for path in _elsewhere():
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as the site has them."""
    source = page.file.abs_src_path
    if source is None:
        return markdown
    return _LINK.sub(lambda found: _link(found, Path(source), page.file.src_uri), markdown)


def _elsewhere() -> list[Path]:
    return [path for pattern in ELSEWHERE for path in sorted(ROOT.glob(pattern))]


def _expanded(items: list[Any]) -> list[Any]:
    """The same navigation without patterns, and without sections that have no page."""
    found: list[Any] = []
    for item in items:
        if not isinstance(item, dict):
            found.append(item)
            continue
        ((title, below),) = item.items()
        if isinstance(below, list):
            below = _expanded(below)
        elif "*" in below:
            below = _pages(below)
        if below:
            found.append({title: below})
    return found


def _pages(pattern: str) -> list[str]:
    """Names in the site, the page about the folder first."""
    home = ROOT if pattern in ELSEWHERE else DOCS
    paths = sorted(home.glob(pattern), key=lambda path: (path.name not in _INDEX, path.name))
    return [path.relative_to(home).as_posix() for path in paths]


def _link(found: re.Match[str], source: Path, page_uri: str) -> str:
    words, target = found.groups()
    if "://" in target or target.startswith(("#", "mailto:")):
        return found.group()
    name, _, anchor = target.partition("#")
    path = (source.parent / name).resolve()
    if not path.exists():
        return found.group()  # which the strict build reports
    if path.is_relative_to(DOCS):
        uri = path.relative_to(DOCS).as_posix()
    elif path in _elsewhere():
        uri = path.relative_to(ROOT).as_posix()
    else:
        return words[1:-1]
    relative = os.path.relpath(uri, os.path.dirname(page_uri) or ".")
    return f"{words}({relative}{'#' if anchor else ''}{anchor})"
