"""The documentation is true: links lead somewhere, commands exist, curl lines work as given."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from docs.generate.pages import PAGES as GENERATED
from service.cli.bench import sweep_as_flag
from service.cli.main import build_parser
from service.config.resolve import Source, resolve
from telemetry.requests.slo_policy import read_policy
from tests.diagnosis.test_runbooks import all_options, anchors, documented_metrics, options, parsers
from tests.support.programs import read_command
from tests.support.servers.prometheus_server import RULES
from tests.support.servers.server import Server, spawn

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
BENCHMARKS = ROOT / "benchmarks/README.md"
PAGES = sorted(page for page in ROOT.glob("docs/**/*.md") if page not in GENERATED)
WRITTEN = [README, *PAGES, BENCHMARKS]
LINKED = [*WRITTEN, *GENERATED, ROOT / "CHANGELOG.md", ROOT / ".github/CONTRIBUTING.md"]

DEFAULT_URL = "http://127.0.0.1:8000"
NOBODY = "http://127.0.0.1:9"  # traces that nobody takes can be changed all the same
README_LINES, README_BYTES, PICTURE_BYTES = 150, 12_000, 150_000
OTHERS = ("docker", "kubectl", "promtool", "amtool", "vllm", "openssl", "printf", "chmod", "ray")
OTHERS_FLAGS = frozenset({"--enable-feature", "--no-build-isolation", "--fork"})

_LINK = re.compile(r"\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`((?:[^`\n]|\n(?!\n))+)`")
_INDENTED = re.compile(r"^ {4}((?:make|phasescope|(?:\.venv/bin/)?python) (?:.*\\\n)*.+)$", re.M)
_OPTION = re.compile(r"\[(--[^\]]*)\]")
_PATH = re.compile(r"[a-z_.]+(?:/[\w.-]+)+")
_TOPS = frozenset({path.name for path in ROOT.iterdir()} - {"build"})  # what is made is not listed


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    """What stands between fences of that language."""
    return [text for _, kind, text in _FENCE.findall(page.read_text()) if kind == language]


def commands(page: Path) -> Iterator[list[str]]:
    """Words of each command of a shell block; of an indented one those of make, python and
    phasescope."""
    for block in [*blocks(page, "sh"), *_INDENTED.findall(page.read_text())]:
        yield from map(words_of, joined(block))


def words_of(line: str) -> list[str]:
    """With every option that may be left out, and without variables before the command."""
    words = shlex.split(_OPTION.sub(r"\1", line), comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    return words


def joined(block: str) -> list[str]:
    """Lines with those that go on in the next, by a backslash or an open quotation."""
    found: list[str] = []
    open_line = ""
    for line in block.splitlines():
        open_line += ("\n" if open_line else "") + line
        if line.endswith("\\") or open_line.count("'") % 2:
            continue
        found.append(open_line.replace("\\\n", " "))
        open_line = ""
    assert not open_line, open_line
    return found


def prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text())


def spans(page: Path) -> list[str]:
    """Code within prose; one that goes on in the next line is one."""
    return [" ".join(span.split()) for span in _CODE.findall(prose(page))]


@cache
def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@cache
def benchmarks_flags() -> set[str]:
    found = [path.read_text() for path in (ROOT / "benchmarks").rglob("*.py")]
    return set(re.findall(r'"(--[a-z][a-z-]*)"', "\n".join(found)))


def check(words: list[str]) -> None:
    """A command names what there is: subcommand, target or module, and its flags."""
    command, rest = Path(words[0]).name, words[1:]
    if command == "phasescope" and rest[0] == "attach" and "--" in rest:
        place = rest.index("--")
        check(rest[place + 1 :])
        rest = rest[:place]
    flags = {word.partition("=")[0] for word in rest if word.startswith("--")}
    if command == "phasescope":
        assert rest[0] in parsers(), words
        assert flags <= options(rest[0]), words
    elif command == "make":
        named = [word for word in rest if "=" not in word]
        assert named, words
        assert set(named) <= targets(), words
        given = [word.partition("=")[2] for word in rest if word.startswith("ARGS=")]
        for argument in given:
            check(["phasescope", "serve", *shlex.split(argument)])
    elif command == "python":
        assert rest[0] == "-m", words
        assert find_spec(rest[1]), words
    elif command == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())
        named = re.findall(r"(?:\.|phasescope)\[([\w,]+)\]", " ".join(rest))
        wanted = {extra for one in named for extra in one.split(",")}
        assert wanted <= set(extras["project"]["optional-dependencies"]), words
        ours = [word for word in rest if re.search(r"phasescope(\[|$)", word)]
        assert all("/" in word for word in ours), "no package index has phasescope"
        assert wanted or ours, words
    else:
        assert command in ("curl", *OTHERS), words


@pytest.mark.parametrize("page", GENERATED, ids=name)
def test_references_say_what_the_code_says(page: Path) -> None:
    """`make docs` writes them."""
    assert page.read_text() == GENERATED[page]()


def test_the_readme_is_read_in_a_few_minutes() -> None:
    text = README.read_text()

    assert len(text.splitlines()) <= README_LINES
    assert len(text.encode()) < README_BYTES


@pytest.mark.parametrize("page", LINKED, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    """To a file that is there, and to a heading that it has."""
    for link in _LINK.findall(prose(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_pictures_are_small_and_fetch_nothing() -> None:
    pictures = [*ROOT.glob("docs/**/img/*")]
    assert pictures

    for picture in pictures:
        assert picture.stat().st_size < PICTURE_BYTES, picture
        if picture.suffix == ".svg":
            fetched = re.findall(
                r"(?:href|src)=\"(?!#)|url\(['\"]?http|@import", picture.read_text()
            )
            assert not fetched, picture


@pytest.mark.parametrize("page", WRITTEN, ids=name)
def test_commands_name_what_there_is(page: Path) -> None:
    for words in commands(page):
        check(words)


@pytest.mark.parametrize("page", WRITTEN, ids=name)
def test_commands_of_ours_can_be_given_as_they_stand(page: Path) -> None:
    """Each is read by the parser of its program, with all its options and values."""
    for words in commands(page):
        if Path(words[0]).name == "phasescope":
            build_parser().parse_args(sweep_as_flag(words[1:]))
        elif Path(words[0]).name == "python":
            read_command(words[2], words[3:])


@pytest.mark.parametrize("page", WRITTEN, ids=name)
def test_commands_and_flags_in_prose_exist(page: Path) -> None:
    for span in spans(page):
        words = span.split()
        if Path(words[0]).name in ("phasescope", "make", "python") and len(words) > 1:
            command = [word.rstrip(":,") for word in words_of(span)]
            check(command)
            if Path(words[0]).name == "python" and len(command) > 3:
                read_command(command[2], command[3:])
        for word in words if span.startswith("--") else ():
            flag = word.partition("=")[0]
            if flag.startswith("--") and flag != "--":
                assert flag in all_options() | benchmarks_flags() | OTHERS_FLAGS, span


@pytest.mark.parametrize("page", WRITTEN, ids=name)
def test_files_that_are_named_are_there(page: Path) -> None:
    for span in spans(page):
        top, slash, _ = span.partition("/")
        if slash and top in _TOPS and _PATH.fullmatch(span) and not re.search("[A-Z]{4}", span):
            assert (ROOT / span).exists(), span


def test_every_benchmark_of_the_table_is_there_with_its_results() -> None:
    rows = re.findall(r"^\| `(\w[\w/.]*)`.* \| (.+) \|$", BENCHMARKS.read_text(), re.MULTILINE)
    listed = [(script, result) for script, result in rows if {*script} & {*"/."}]
    assert len(listed) > 15

    for script, result in listed:
        assert (BENCHMARKS.parent / script).exists(), script
        for path in re.findall(r"`(results/[^`]+)`", result):
            assert (BENCHMARKS.parent / path).exists(), path


@pytest.mark.parametrize("page", WRITTEN, ids=name)
def test_metrics_that_are_named_are_in_the_catalog(page: Path) -> None:
    named = set(re.findall(r"(?<![\w/])phasescope_[a-z0-9_]+", page.read_text()))

    assert named <= documented_metrics()


def test_alerts_that_are_named_are_in_the_rules_and_all_of_those_are_named() -> None:
    rules = "".join(path.read_text() for path in RULES)
    told = (ROOT / "docs/operate/alerts.md").read_text()

    alerts = set(re.findall(r"- alert: (\w+)", rules))
    assert alerts
    assert alerts == set(re.findall(r"`(Phasescope\w+)`", told))


def test_the_example_of_a_config_file_is_one(tmp_path: Path) -> None:
    """Each key that it has is in force."""
    example, _ = blocks(ROOT / "docs/operate/running.md", "toml")
    (tmp_path / "serve.toml").write_text(example)
    found = resolve({"config": str(tmp_path / "serve.toml")}, {})

    stated = {key for key, one in found.settings.items() if one.source is Source.FILE}
    assert stated == set(tomllib.loads(example))
    assert found["kv_memory"] == 2 << 30


def test_the_example_of_an_slo_file_is_one(tmp_path: Path) -> None:
    _, example = blocks(ROOT / "docs/operate/running.md", "toml")
    (tmp_path / "slo.toml").write_text(example)

    assert read_policy(str(tmp_path / "slo.toml")).default == "chat"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_lines_work_as_they_stand() -> None:
    """Each once, in the order of the pages, against a real server at another port; the request
    that they name can then be explained."""
    shell = [line for page in WRITTEN for block in blocks(page, "sh") for line in joined(block)]
    lines = dict.fromkeys(line for line in shell if line.startswith("curl "))
    assert len(lines) >= 5

    with Server("--model", "dummy:tiny", "--otlp-endpoint", NOBODY) as server:
        for line in lines:
            asked = ["curl", "-sS", "--fail-with-body", *shlex.split(line, comments=True)[1:]]
            words = [word.replace(DEFAULT_URL, server.url) for word in asked]
            done = subprocess.run(words, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, (line, done.stdout, done.stderr)
            assert done.stdout.startswith("data: ") or json.loads(done.stdout), line
        account = server.facts_of("first")
        with spawn("explain", "first", server.url, stdout=subprocess.PIPE) as process:
            shown, _ = process.communicate(timeout=60)

    assert account["outcome"] == "finished"
    assert process.returncode == 0
    assert b" 0 ns off" in shown


def test_the_package_of_the_pictures_is_complete() -> None:
    """It takes two minutes of a server, so only its command line is tried here."""
    words = [sys.executable, "-m", "docs.pictures", "--help"]

    assert "--record" in subprocess.run(words, capture_output=True, text=True, cwd=ROOT).stdout
