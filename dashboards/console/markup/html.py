"""HTML elements from Python. Text is escaped unless it is `Markup` already, attributes always."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from urllib.parse import quote, urlencode

from markupsafe import Markup, escape

Child = Markup | str | int | None
Attribute = str | int | float | bool | None

_VOID = frozenset({"input", "br", "hr", "rect", "line", "circle", "path", "polyline"})


def tag(name: str, /, *children: Child | Iterable[Child], **attributes: Attribute) -> Markup:
    """One element. `class_` and `for_` are the attributes class and for, `aria_label` is
    aria-label; None and False leave an attribute out, True has no value."""
    shown = Markup("").join(
        _attribute(key.rstrip("_").replace("_", "-"), value)
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Markup(f"<{name}{shown}/>")
    return Markup(f"<{name}{shown}>{join(children)}</{name}>")


def _attribute(name: str, value: Attribute) -> Markup:
    return Markup(" {}").format(name) if value is True else Markup(' {}="{}"').format(name, value)


def join(children: Iterable[Child | Iterable[Child]]) -> Markup:
    """All children one after the other; None is nothing."""
    parts: list[Markup] = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, (str, int)):
            parts.append(escape(child))
        else:
            parts.append(join(child))
    return Markup("").join(parts)


def href(path: str, **query: Attribute) -> str:
    """A path of the console with the parameters that are given."""
    given = {key: value for key, value in query.items() if value not in (None, "", False)}
    return f"{path}?{urlencode(given)}" if given else path


def link(to: str, *children: Child, **attributes: Attribute) -> Markup:
    return tag("a", *children, href=to, **attributes)


def request_href(request_id: str) -> str:
    return f"/requests/{quote(request_id, safe='')}"


def card(title: str, *children: Child | Iterable[Child], class_: str = "") -> Markup:
    """A titled box."""
    return tag("section", tag("h2", title), *children, class_=f"card {class_}".strip())


def table(
    caption: str,
    heads: Sequence[Child],
    rows: Iterable[Sequence[Child | tuple[Child, str]]],
    *,
    numbers: frozenset[int] | set[int] = frozenset(),
    wide: frozenset[int] | set[int] = frozenset(),
    class_: str = "",
) -> Markup:
    """A table that scrolls sideways on its own; the first column heads its row. Columns in
    `numbers` are right-aligned, those in `wide` are left out on a phone. A cell may be a pair: what
    it shows, and its class."""

    def kind(column: int, more: str = "") -> str | None:
        words = ("n" if column in numbers else "", "wide" if column in wide else "", more)
        return " ".join(filter(None, words)) or None

    def cell(column: int, shown: Child | tuple[Child, str]) -> Markup:
        child, more = shown if isinstance(shown, tuple) else (shown, "")
        if column == 0:
            return tag("th", child, scope="row", class_=kind(0, more))
        return tag("td", child, class_=kind(column, more))

    head = tag("tr", [tag("th", text, scope="col", class_=kind(i)) for i, text in enumerate(heads)])
    body = [tag("tr", [cell(i, one) for i, one in enumerate(row)]) for row in rows]
    whole = tag(
        "table",
        tag("caption", caption),
        tag("thead", head),
        tag("tbody", body),
        class_=class_ or None,
    )
    return tag("div", whole, class_="scroll", tabindex=0, role="region", aria_label=caption)


def definition(pairs: Iterable[tuple[str, Child]]) -> Markup:
    """Names and values."""
    return tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs])


def badge(text: str, level: str = "") -> Markup:
    """A word in a box; `level` is good, warn or bad."""
    return tag("span", text, class_=f"badge {level}".strip())
