"""The file of results: written after every cell, so that a run that is cut loses one round.

A round is one load on all servers of a group in one repetition, one right after another. Only
whole rounds are compared, so a round that was cut is measured again from its beginning.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from benchmarks.peers.layout import PeerError

SCHEMA_VERSION = 1


class Store:
    """Cells by group, load, repetition and server; `places` are folders and their stand-ins."""

    def __init__(
        self,
        path: Path,
        settings: dict[str, Any],
        about: dict[str, Any],
        places: dict[str, str] | None = None,
    ) -> None:
        """Raises PeerError when the file holds a run with other settings."""
        self._path, self._places = path, places or {}
        self.data: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "settings": settings,
            "about": about,
            "servers": {},
            "calibrations": [],
            "cells": [],
            "failed": {},
        }
        if path.is_file():
            found = json.loads(path.read_text())
            if found.get("settings") != settings:
                raise PeerError(
                    f"{path} holds a run with other settings: add --fresh to replace it, "
                    "or choose another --out"
                )
            self.data = found

    def has_round(self, group: str, load: str, repetition: int, labels: list[str]) -> bool:
        """Whether each of `labels` has its cell."""
        done = {cell["server"] for cell in self._round(group, load, repetition)}
        return set(labels) <= done

    def drop_round(self, group: str, load: str, repetition: int) -> None:
        dropped = self._round(group, load, repetition)
        self.data["cells"] = [cell for cell in self.data["cells"] if cell not in dropped]

    def add_cell(self, **cell: Any) -> None:
        cell["at"] = time.strftime("%Y-%m-%d %H:%M:%S")
        self.data["cells"].append(self._anywhere(cell))
        self.save()

    def add_calibration(self, group: str, repetition: int, moment: str, found: Any) -> None:
        entry = {"group": group, "repetition": repetition, "moment": moment, **found}
        self.data["calibrations"].append(entry)
        self.save()

    def add_server(self, label: str, facts: dict[str, Any]) -> None:
        self.data["servers"][label] = self._anywhere(facts)
        self.save()

    def add_failure(self, label: str, why: str) -> None:
        self.data["failed"][label] = self._anywhere(why)
        self.save()

    def save(self) -> None:
        """In one piece: a reader never sees half a file."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(self.data, indent=1) + "\n")
        partial.replace(self._path)

    def _anywhere(self, value: Any) -> Any:
        """The same without this machine's folders, since the file is published."""
        text = json.dumps(value)
        for place, name in self._places.items():
            text = text.replace(place, name)
        return json.loads(text)

    def _round(self, group: str, load: str, repetition: int) -> list[dict[str, Any]]:
        key = (group, load, repetition)
        return [
            cell
            for cell in self.data["cells"]
            if (cell["group"], cell["load"], cell["repetition"]) == key
        ]
