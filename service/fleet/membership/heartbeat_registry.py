"""Membership from engines that say once a second that they are there, for where no file lists them.

All of it is soft state: one who keeps the roll and starts again knows everything after a few beats.
Until then the roll is not whole, and who reads it removes nobody for not being in it. Silence says
little about an engine, as its node is watched by the gateways themselves: only one that is silent
for a minute, and so has gone without a word, is taken off.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from json import dumps
from pathlib import Path

import msgspec

from service.fleet.membership.members import MOST_MEMBERS, Member

BEAT_S = 1.0
CALL_S = 5.0
"""Until a beat that nobody answers is given up; the next one comes BEAT_S later."""
SILENT_NS = 60_000_000_000
WHOLE_NS = int(3 * (CALL_S + BEAT_S) * 1e9)
"""An engine whose first two beats to a new keeper were in vain is heard before that."""


class RegistrySnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Who is there. `is_whole` is false while who keeps it may not have heard everyone."""

    members: tuple[Member, ...]
    is_whole: bool


class HeartbeatRegistry:
    """What each engine said last, and when; `now_ns` is of one clock and never goes back."""

    def __init__(self, now_ns: int) -> None:
        self._begun_ns = now_ns
        self._heard: dict[str, tuple[Member, int]] = {}
        self.refused = 0

    def heard(self, member: Member, now_ns: int) -> None:
        """An engine said that it is there. Another one at its address has gone. Beyond MOST_MEMBERS
        it is refused and counted."""
        address = (member.host, member.port)
        for name, (other, _) in list(self._heard.items()):
            if name != member.name and (other.host, other.port) == address:
                del self._heard[name]
        if member.name not in self._heard and len(self._heard) >= MOST_MEMBERS:
            self.refused += 1
            return
        self._heard[member.name] = (member, now_ns)

    def left(self, name: str) -> None:
        """An engine said that it goes."""
        self._heard.pop(name, None)

    def roll(self, now_ns: int) -> RegistrySnapshot:
        """Everyone who is there, by name."""
        for name, (_, heard_ns) in list(self._heard.items()):
            if now_ns - heard_ns > SILENT_NS:
                del self._heard[name]
        members = tuple(self._heard[name][0] for name in sorted(self._heard))
        return RegistrySnapshot(members=members, is_whole=now_ns - self._begun_ns >= WHOLE_NS)


def next_members(before: Mapping[str, Member], roll: RegistrySnapshot) -> dict[str, Member]:
    """The members after a roll was read; by name."""
    said = {one.name: one for one in roll.members}
    return said if roll.is_whole else {**before, **said}


def write_engines(path: Path, key_file: Path, members: Mapping[str, Member]) -> None:
    """The file of `static_file` with these members, exchanged at once. Raises OSError, and then
    leaves no other file behind."""
    lines = [f"key_file = {_quoted(str(key_file))}", "[engines]"]
    for name, one in members.items():
        lines += [f"[engines.{_quoted(name)}]", f"address = {_address(one.host, one.port)}"]
        lines += [f"role = {_quoted(one.role.value)}"]
        lines += ["draining = true"] if one.draining else []
        lines += [f"kv_address = {_address(*one.kv_address)}"] if one.kv_address else []
    handle, written = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write("\n".join([*lines, ""]))
        os.replace(written, path)
    except OSError:
        Path(written).unlink(missing_ok=True)
        raise


def _address(host: str, port: int) -> str:
    return _quoted(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


def _quoted(text: str) -> str:
    """A basic string of TOML: JSON's, which escapes all that TOML forbids but DEL."""
    return dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
