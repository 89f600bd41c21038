"""Numbers and times as people read them."""

from __future__ import annotations

import msgspec

from telemetry.requests.account import Part

_DAY_S = 86_400
NOTHING = "-"
_SHORT = {"slo": "SLO", "kv": "KV", "cpu": "CPU", "gpu": "GPU"}
_PARTS = {
    Part.OWN_PREFILL: "its own prompt",
    Part.OWN_RECOMPUTE: "its own prompt again, after a preemption",
    Part.OWN_AVOIDABLE: "its own prompt, which a larger cache would have had",
    Part.OWN_DECODE: "its own decode",
    Part.BASE: "the fixed cost of steps",
    Part.CO_PREFILL: "a prompt in the same steps",
    Part.CO_DECODE: "decodes of others in the same steps",
    Part.CO_MASK: "a mask in the same steps",
    Part.SLOW_STEP: "steps slower than predicted",
    Part.HOST_STALL: "a pause of the process",
    Part.CLIENT: "its client, who did not read",
    Part.LOST_STEP: "a step that was lost with the engine",
    Part.ADAPTER: "an adapter, which was loaded",
    Part.REMOTE_KV: "blocks that came from elsewhere",
    Part.KV_RESERVE: "blocks for the KV of another engine",
    Part.KV_QUEUE: "another engine, before it computed the prompt",
    Part.KV_PREFILL: "another engine, which computed the prompt",
    Part.KV_TRANSFER: "its KV, on the way from another engine",
    Part.KV_WIRE: "messages between two engines",
    Part.KV_SEAL: "its KV, which was compared with its digests",
    Part.KV_WAIT: "a place in the batch, with its KV there",
    Part.KV_LOST: "KV of another engine that did not come",
    Part.WIRE: "the network, there and back",
    Part.WIRE_OUT: "the network, on the way to the node",
    Part.WIRE_BACK: "the network, on the way back",
    Part.NOT_OBSERVED: "what nothing observes",
}


class Clock(msgspec.Struct, frozen=True):
    """`now_ns` is the server's monotonic clock as far as the console knows it; `offset_ns` turns a
    stamp of that clock into Unix time."""

    now_ns: int
    offset_ns: int

    def utc(self, at_ns: int) -> str:
        """The time of day."""
        second = (at_ns + self.offset_ns) // 1_000_000_000 % _DAY_S
        return f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"

    def ago(self, at_ns: int) -> str:
        return f"{span(max(0, self.now_ns - at_ns))} ago"


def ms(value_ns: int | None) -> str:
    """Three digits, with the unit; a dash where nothing was measured."""
    if value_ns is None:
        return NOTHING
    value_ms = value_ns / 1e6
    if value_ms >= 60_000:
        return span(value_ns)
    if value_ms >= 1_000:
        return f"{value_ms / 1000:.2f} s" if value_ms < 10_000 else f"{value_ms / 1000:.1f} s"
    if value_ms >= 100:
        return f"{value_ms:.0f} ms"
    return f"{value_ms:.1f} ms" if value_ms >= 10 else f"{value_ms:.2f} ms"


def span(value_ns: int) -> str:
    """Seconds, or minutes and seconds."""
    seconds = value_ns // 1_000_000_000
    if seconds < 60:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s" if seconds else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def count(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"


def percent(part: float, whole: float) -> str:
    """To a tenth; what is not all is never 100 %."""
    if not whole:
        return NOTHING
    share = round(100 * part / whole, 1)
    return f"{99.9 if share >= 100 and part < whole else share:g} %"


def plain(name: str) -> str:
    """`prefill_interference` as two words with a capital."""
    words = name.replace("_", " ").replace("gateway.", "").split(" ")
    shown = " ".join(_SHORT.get(word, word) for word in words)
    return shown[:1].upper() + shown[1:]


def part(name: Part) -> str:
    """A part of the ledger in words, of the request whose ledger it is."""
    return _PARTS.get(name, plain(name.value).lower())
