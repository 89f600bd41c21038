"""Which exposition format a scraper gets, by its Accept header."""

from __future__ import annotations

from enum import StrEnum


class Format(StrEnum):
    """The formats of `/metrics`; in a tie the first is chosen, because it carries the most."""

    PROTOBUF = "protobuf"
    OPEN_METRICS = "openmetrics"
    TEXT = "text"


_FAMILY = "io.prometheus.client.metricfamily"


def choose(accept: str) -> Format:
    """The format with the highest q in an Accept header; text if none fits."""
    best, best_q = Format.TEXT, 0.0
    for wanted in accept.split(","):
        media_type, parameters = _parse(wanted)
        found, q = _format(media_type, parameters), _quality(parameters)
        if found is not None and (q > best_q or (q == best_q > 0 and _rank(found) < _rank(best))):
            best, best_q = found, q
    return best


def _rank(form: Format) -> int:
    return list(Format).index(form)


def _parse(wanted: str) -> tuple[str, dict[str, str]]:
    media_type, *pairs = (part.strip() for part in wanted.split(";"))
    parameters: dict[str, str] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        parameters[name.strip().lower()] = value.strip().strip('"').lower()
    return media_type.lower(), parameters


def _format(media_type: str, parameters: dict[str, str]) -> Format | None:
    """The format that a media range asks for; None if it is not available."""
    version = parameters.get("version")
    match media_type:
        case "application/vnd.google.protobuf":
            is_ours = parameters.get("proto", _FAMILY) == _FAMILY
            is_delimited = parameters.get("encoding", "delimited") == "delimited"
            return Format.PROTOBUF if is_ours and is_delimited else None
        case "application/openmetrics-text":
            return Format.OPEN_METRICS if version in (None, "1.0.0", "0.0.1") else None
        case "text/plain":
            return Format.TEXT if version in (None, "0.0.4") else None
        case "text/*" | "*/*":
            return Format.TEXT
        case _:
            return None


def _quality(parameters: dict[str, str]) -> float:
    try:
        q = float(parameters.get("q", "1"))
    except ValueError:
        return 0.0
    return q if 0.0 <= q <= 1.0 else 0.0
