"""Membership of engines that say themselves that they are there."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.fleet.membership.heartbeat_registry import (
    BEAT_S,
    CALL_S,
    SILENT_NS,
    WHOLE_NS,
    HeartbeatRegistry,
    RegistrySnapshot,
    next_members,
    write_engines,
)
from service.fleet.membership.members import MOST_MEMBERS, Member, Role
from service.fleet.membership.static_file import StaticFile

BEAT_NS = int(BEAT_S * 1e9)
NAMES = st.sampled_from(["a", "b", "c", "d"])


def engine(name: str, port: int = 0, *, draining: bool = False) -> Member:
    return Member(name=name, host="10.0.0.1", port=port or ord(name[0]), draining=draining)


def names(roll: RegistrySnapshot) -> set[str]:
    return {one.name for one in roll.members}


def test_an_engine_is_there_from_its_first_word_until_it_says_that_it_goes() -> None:
    book = HeartbeatRegistry(0)
    book.heard(engine("a"), 1)
    book.heard(engine("b"), 1)
    book.heard(engine("b", draining=True), 2)
    assert book.roll(3).members == (engine("a"), engine("b", draining=True))
    book.left("a")
    book.left("never there")
    assert names(book.roll(4)) == {"b"}


def test_an_engine_that_is_silent_for_a_minute_is_taken_off_and_not_before() -> None:
    book = HeartbeatRegistry(0)
    book.heard(engine("a"), 0)
    assert names(book.roll(SILENT_NS)) == {"a"}
    assert names(book.roll(SILENT_NS + 1)) == set()


def test_the_engine_at_an_address_is_the_one_that_was_heard_last() -> None:
    book = HeartbeatRegistry(0)
    book.heard(engine("old", 9), 0)
    book.heard(engine("new", 9), 1)
    assert names(book.roll(2)) == {"new"}


def test_more_engines_than_a_fleet_may_have_are_refused_and_counted() -> None:
    book = HeartbeatRegistry(0)
    for index in range(MOST_MEMBERS + 3):
        book.heard(engine(f"n{index}", 1 + index), 0)
    book.heard(engine("n0", 1, draining=True), 1)
    found = book.roll(2).members
    assert len(found) == MOST_MEMBERS
    assert found[0].draining
    assert book.refused == 3


@given(
    st.lists(st.tuples(st.sampled_from(["beat", "leave", "keeper", "read"]), NAMES), max_size=60)
)
@settings(max_examples=150, deadline=None)
def test_no_engine_that_beats_is_ever_removed_although_the_keeper_starts_again(
    events: list[tuple[str, str]],
) -> None:
    """Everyone who is there beats each second; between beats engines join, leave, and the keeper
    forgets everything."""
    now_ns, book = 0, HeartbeatRegistry(0)
    there: set[str] = set()
    members: dict[str, Member] = {}
    for what, name in events:
        now_ns += BEAT_NS
        if what == "beat":
            there.add(name)
        elif what == "leave":
            there.discard(name)
            book.left(name)
        elif what == "keeper":
            book = HeartbeatRegistry(now_ns)
        if what != "keeper":  # nobody is heard in the second in which it starts
            for one in there:
                book.heard(engine(one), now_ns)
        known = there & set(members)
        members = next_members(members, book.roll(now_ns))
        assert known <= set(members)
    for one in there:
        book.heard(engine(one), now_ns)
    later_ns = now_ns + WHOLE_NS
    members = next_members(members, book.roll(later_ns))
    assert set(members) == there, "who left stays no longer than the roll needs to be whole"


def test_an_engine_whose_first_two_beats_to_a_new_keeper_time_out_is_not_removed() -> None:
    """Nor is its third one heard at once."""
    book, members = HeartbeatRegistry(0), {name: engine(name) for name in ("heard", "late", "gone")}
    late_ns = int((3 * CALL_S + 2 * BEAT_S) * 1e9)
    for now_ns in range(0, WHOLE_NS, BEAT_NS):
        book.heard(engine("heard"), now_ns)
        if now_ns >= late_ns:
            book.heard(engine("late"), now_ns)
        members = next_members(members, book.roll(now_ns))
        assert set(members) == {"heard", "late", "gone"}
    assert set(next_members(members, book.roll(WHOLE_NS))) == {"heard", "late"}


def test_a_gateway_reads_from_the_file_what_the_roll_said(tmp_path: Path) -> None:
    key = tmp_path / 'the "key"\tof \\ Zoë.key'
    key.write_text("0123456789abcdef0123456789abcdef")
    path = tmp_path / "engines.toml"
    write_engines(path, key, {})
    read = StaticFile(str(path))
    assert read.members() == {}
    six = Member(
        name="six", host="fd00::1", port=7, draining=True, role=Role.PREFILL,
        kv_address=("fd00::2", 9),
    )  # fmt: skip
    wanted = {"main-a.b": engine("main-a.b"), "six": six}
    write_engines(path, key, wanted)
    assert read.members() == wanted
    assert [one.name for one in tmp_path.iterdir() if one.suffix not in (".key", ".toml")] == []


def test_a_write_of_the_list_that_fails_leaves_no_file_beside_it(tmp_path: Path) -> None:
    """The disk is full, or the list cannot be exchanged."""
    path, most = tmp_path / "engines.toml", resource.getrlimit(resource.RLIMIT_FSIZE)
    write_engines(path, tmp_path / "key", {})
    before = path.read_bytes()
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, most[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            write_engines(path, tmp_path / "key", {"a": engine("a")})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert path.read_bytes() == before
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_engines(tmp_path / "folder", tmp_path / "key", {})

    assert sorted(one.name for one in tmp_path.iterdir()) == ["engines.toml", "folder"]
