"""The boards, one module each."""

from __future__ import annotations

from dashboards.grafana.boards import classes, diagnosis, engine, machine, overview, tracing
from dashboards.grafana.spec import Board

BOARDS: tuple[Board, ...] = (
    overview.BOARD,
    classes.BOARD,
    engine.BOARD,
    diagnosis.BOARD,
    machine.BOARD,
    tracing.BOARD,
)
