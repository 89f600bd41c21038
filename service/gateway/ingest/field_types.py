"""Types of fields that several bodies share."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

BOUNDED_BY = "bounded_by"
"""Key of `Meta.extra`: what bounds a field that has no cap of its own."""

BodyText = Annotated[str, Meta(extra={BOUNDED_BY: "--max-body"})]
JsonSchema = Annotated[
    dict[str, Any],
    Meta(
        description="A JSON schema; its size and nesting are capped, see docs/reference/limits.md.",
        extra={BOUNDED_BY: "GRAMMAR_CHARACTERS and SCHEMA_LEVELS"},
    ),
]
