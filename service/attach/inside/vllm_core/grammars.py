"""How long vLLM compiles a grammar; it does so on threads of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Compiled = Callable[[int, tuple[Any, ...], Mapping[str, Any]], None]
"""Called after a compilation with its begin and the arguments of the call; raises nothing."""


def hook_grammars(manager: Any, now_ns: Callable[[], int], compiled: Compiled) -> None:
    """Changes this one manager only, and not its class."""
    original = manager._create_grammar

    def _create_grammar(*args: Any, **kwargs: Any) -> Any:
        begin_ns = now_ns()
        try:
            return original(*args, **kwargs)
        finally:
            compiled(begin_ns, args, kwargs)

    manager._create_grammar = _create_grammar
