"""The files of the boards, and the error when what writes them is not installed."""

from __future__ import annotations

from pathlib import Path

from dashboards.grafana.boards import BOARDS
from dashboards.grafana.spec import TraceStore

BESIDE = Path(__file__).parent


class NotInstalled(SystemExit):
    """The Grafana Foundation SDK is not installed."""


def texts(store: TraceStore = TraceStore.JAEGER) -> dict[str, str]:
    """What is in each file, by its name."""
    try:
        from dashboards.grafana.build import json_of
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("grafana_foundation_sdk"):
            raise
        raise NotInstalled(
            "writing boards needs the Grafana Foundation SDK: pip install -e '.[dev]'"
        ) from error
    return {f"{board.name}.json": json_of(board, store) for board in BOARDS}


def write(folder: Path, store: TraceStore) -> None:
    """Write all boards into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts(store).items():
        (folder / name).write_text(text)
