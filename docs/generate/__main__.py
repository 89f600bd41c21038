"""Writes every generated page: `python -m docs.generate`, or `make docs`."""

from __future__ import annotations

from docs.generate.pages import PAGES

if __name__ == "__main__":
    for path, document in PAGES.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(document())
