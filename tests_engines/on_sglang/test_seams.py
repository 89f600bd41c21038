"""What the adapter hooks in SGLang and reads from its objects is there, in each known release."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from service.attach.inside.sglang.seams import CORE_METHODS, FRONT_METHODS, READ, TESTED
from tests_engines.on_sglang.environment import VERSIONS, environment, python, source

METHODS = [(*where, *one) for where, found in {**CORE_METHODS, **FRONT_METHODS}.items()
           for one in found.items()]  # fmt: skip
ATTRIBUTES = [(*where, names) for where, names in READ.items()]
_CHECK = """
from service.attach.inside.sglang import seams
import sglang
seams.check_version(sglang.__version__)
seams.check_methods(seams.CORE_METHODS)
seams.check_methods(seams.FRONT_METHODS)
from sglang.srt.arg_groups.overrides import resolving_view
from sglang.srt.runtime_context import get_parallel
assert {"tp_rank", "pp_rank", "dp_rank"} <= set(dir(get_parallel()))
from sglang.srt.entrypoints import http_server
assert callable(http_server.app.add_middleware)
print("known")
"""
_HOOKED = """
from pathlib import Path
from service.attach.inside.sglang import core, front
from sglang.srt.plugins.hook_registry import HookRegistry
core.register(Path("/nowhere"), "0")
front.register(Path("/nowhere"), "0")
wanted = set(HookRegistry._hooks)
HookRegistry.apply_hooks()
print(sorted(wanted - HookRegistry._patched), len(wanted))
"""


def test_the_tested_releases_are_those_that_the_adapter_takes() -> None:
    assert sorted(VERSIONS) == sorted(TESTED)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("module", "owner", "method", "parameters"), METHODS)
def test_a_hooked_method_takes_what_the_hook_passes_on(
    version: str, module: str, owner: str, method: str, parameters: Sequence[str]
) -> None:
    """From the source, so that it runs without torch."""
    found = {
        one.name: one
        for one in _class(version, module, owner).body
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    names = [one.arg for one in found[method].args.args]
    assert names[1 : len(parameters) + 1] == list(parameters)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("module", "owner", "names"), ATTRIBUTES)
def test_an_object_has_what_is_read_from_it(
    version: str, module: str, owner: str, names: Sequence[str]
) -> None:
    missing = set(names) - _attributes(version, module, owner)
    assert not missing


@pytest.mark.parametrize("version", VERSIONS)
def test_the_imported_engine_is_as_expected(version: str) -> None:
    """The check that the adapter makes itself, in a process with SGLang imported."""
    assert _run(version, _CHECK).endswith("known\n")


@pytest.mark.parametrize("version", VERSIONS)
def test_sglang_applies_every_hook(version: str) -> None:
    """Its registry logs what it cannot apply, and goes on."""
    missing, count = _run(version, _HOOKED).splitlines()[-1].rsplit(" ", 1)
    assert missing == "[]"
    assert int(count) == sum(map(len, [*CORE_METHODS.values(), *FRONT_METHODS.values()]))


def _run(version: str, program: str) -> str:
    interpreter = python()
    if interpreter is None:
        pytest.skip("no environment with torch: python -m benchmarks.peers.install vllm")
    done = subprocess.run(
        [interpreter, "-c", program],
        env=environment(version),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def _class(version: str, module: str, owner: str) -> ast.ClassDef:
    path = Path(source(version), *module.split(".")).with_suffix(".py")
    (found,) = [
        one
        for one in ast.walk(ast.parse(path.read_text()))
        if isinstance(one, ast.ClassDef) and one.name == owner
    ]
    return found


def _attributes(version: str, module: str, owner: str) -> set[str]:
    """Fields, methods, and what a method of it assigns to `self`; also of its bases in the same
    module."""
    found: set[str] = set()
    home = _class(version, module, owner)
    for one in ast.walk(home):
        if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store):
            if isinstance(one.value, ast.Name) and one.value.id == "self":
                found.add(one.attr)
        elif isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(one.name)
        elif isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            found.add(one.target.id)
    for base in home.bases:
        if isinstance(base, ast.Name):
            try:
                found |= _attributes(version, module, base.id)
            except ValueError:  # it is of another module
                continue
    return found
