"""Walks request types: what in them a client sizes without a cap, and values above each cap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from msgspec import inspect
from msgspec.inspect import (
    DictType,
    FloatType,
    IntType,
    ListType,
    Metadata,
    StrType,
    StructType,
    UnionType,
)

from service.gateway.ingest.field_types import BOUNDED_BY

CLOSED = (inspect.BoolType, inspect.NoneType, inspect.LiteralType, inspect.EnumType)


@dataclass(frozen=True)
class Leaf:
    """A type with a size, and the way to it: names of fields, "[]" for an item, "{}" for a value,
    "{key}" for a key."""

    path: tuple[str, ...]
    type: Any

    def __str__(self) -> str:
        return ".".join(self.path)


def leaves_of(kind: type) -> list[Leaf]:
    """Everything in a struct that has a size, but for what says that another cap bounds it."""
    return list(_leaves(inspect.type_info(kind), ()))


def uncapped(kind: type) -> list[str]:
    """Where a client may send as much as it likes."""
    return [str(leaf) for leaf in leaves_of(kind) if not _is_capped(leaf.type)]


def _leaves(node: Any, path: tuple[str, ...]) -> Iterator[Leaf]:
    match node:
        case Metadata():
            if BOUNDED_BY not in (node.extra or {}):
                yield from _leaves(node.type, path)
        case StructType():
            for field in node.fields:
                yield from _leaves(field.type, (*path, field.encode_name))
        case UnionType():
            for part in node.types:
                yield from _leaves(part, path)
        case ListType():
            yield Leaf(path, node)
            if node.max_length != 0:
                yield from _leaves(node.item_type, (*path, "[]"))
        case DictType():
            yield Leaf(path, node)
            yield from _leaves(node.key_type, (*path, "{key}"))
            yield from _leaves(node.value_type, (*path, "{}"))
        case _ if not isinstance(node, CLOSED):
            yield Leaf(path, node)
        case _:
            pass


def _is_capped(node: Any) -> bool:
    match node:
        case StrType() | ListType() | DictType():
            return node.max_length is not None
        case IntType() | FloatType():
            return node.le is not None or node.lt is not None
        case _:
            return False  # Any, Raw, bytes and the like


def value_of(node: Any, size: int) -> Any:
    """A value of a leaf's type with that size, or that number."""
    match node:
        case StrType():
            return "a" * size
        case ListType():
            item = smallest(node.item_type)
            return [item] * size
        case DictType():
            is_text = isinstance(_bare(node.key_type), StrType)
            entries = range(size)
            return {("k" if is_text else "") + str(n): smallest(node.value_type) for n in entries}
        case _:
            return size


def smallest(node: Any) -> Any:
    """The least valid value of any type here."""
    match node:
        case Metadata():
            return smallest(node.type)
        case UnionType():
            return smallest(next(t for t in node.types if not isinstance(t, inspect.NoneType)))
        case StructType():
            return {f.encode_name: smallest(f.type) for f in node.fields if f.required}
        case inspect.LiteralType():
            return node.values[0]
        case inspect.BoolType():
            return False
        case StrType() if node.pattern:
            return "a"
        case StrType() | ListType() | DictType():
            return value_of(node, node.min_length or 0)
        case IntType() | FloatType():
            return node.ge if node.ge is not None else 1
        case _:
            return None


def most_of(node: Any) -> int:
    """The cap of a leaf."""
    if isinstance(node, StrType | ListType | DictType):
        return int(node.max_length or 0)
    return int(node.le if node.le is not None else node.lt)


def with_leaf(kind: type, leaf: Leaf, value: Any) -> dict[str, Any]:
    """The smallest body that has `value` where the leaf is."""
    body: dict[str, Any] = smallest(inspect.type_info(kind))
    first, *rest = leaf.path
    body[first] = _placed(_field(inspect.type_info(kind), first), rest, value)
    return body


def _placed(node: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    first, *rest = path
    if first == "[]":
        return [_placed(_part(node, ListType).item_type, rest, value)]
    if first == "{}":
        return {"1": _placed(_part(node, DictType).value_type, rest, value)}
    if first == "{key}":
        return {str(value): smallest(_part(node, DictType).value_type)}
    struct = _part(node, StructType)
    return {**smallest(struct), first: _placed(_field(struct, first), rest, value)}


def _part(node: Any, kind: type) -> Any:
    """The member of that kind of a union, without its metadata."""
    found = _bare(node)
    parts = found.types if isinstance(found, UnionType) else (found,)
    return next(part for part in map(_bare, parts) if isinstance(part, kind))


def _bare(node: Any) -> Any:
    return node.type if isinstance(node, Metadata) else node


def _field(struct: Any, name: str) -> Any:
    return next(field.type for field in struct.fields if field.encode_name == name)
