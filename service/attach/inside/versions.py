"""Which versions of an engine an adapter was tested with, and whether the methods that it hooks are
as it knows them.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

VLLM_TESTED = ("0.31", "0.32")
"""Minor versions that the contract tests run against; their patch releases are taken too."""


class UnknownEngine(Exception):
    """The adapter does not know this engine; the message is one line that says why."""


def check_version(engine: str, version: str, tested: Sequence[str]) -> None:
    """Raises UnknownEngine for a version that no contract test has seen."""
    minor = ".".join(version.split("+")[0].split(".")[:2])
    if minor not in tested:
        known = ", ".join(tested)
        raise UnknownEngine(f"{engine} {version} is not known to this adapter, which knows {known}")


def check_seams(owner: type, seams: Mapping[str, Sequence[str]]) -> None:
    """`seams` are methods of `owner` with the parameters that the adapter reads from a call, in
    their order. Raises UnknownEngine if one is not there or takes others."""
    for name, parameters in seams.items():
        method = inspect.getattr_static(owner, name, None)
        if method is None:
            raise UnknownEngine(f"{owner.__name__} has no method {name}")
        found = list(inspect.signature(method).parameters)[1 : len(parameters) + 1]
        if found != list(parameters):
            expected = ", ".join(parameters)
            raise UnknownEngine(
                f"{owner.__name__}.{name} takes ({', '.join(found)}, ...) and not ({expected}, ...)"
            )
