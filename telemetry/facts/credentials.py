"""What must stay out of logs, pages and answers: keys, and the logins that URLs may have."""

from __future__ import annotations

import re

_BEGIN = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?//")
_LOGIN = re.compile(r"(?<=//)[^\s/@]*@")
_QUERY = re.compile(r"\?[^\s'\"<>()]*")
_AFTER_PATH = re.compile(r"[?#]")
_NOT_SHOWN = "(not shown)"


class KeyUnusable(Exception):
    """No header can carry the key; the message is one line without it."""


def usable_key(key: str) -> str:
    """The key without the blanks around it, such as the end of the line that a file has. Raises
    KeyUnusable."""
    found = key.strip()
    if not found.isprintable() or any(character > "\xff" for character in found):
        raise KeyUnusable(
            "the key (not shown) has a control character or one beyond Latin-1, which no header "
            "can carry: give another"
        )
    return found


def bearer(key: str | None) -> dict[str, str]:
    """The header that carries a key; none without one. Raises KeyUnusable."""
    found = usable_key(key or "")
    return {"authorization": f"Bearer {found}"} if found else {}


def without_login(authority: str) -> str:
    """HOST:PORT of USER:PASSWORD@HOST:PORT."""
    host, slash, path = authority.partition("/")
    return f"{host.rpartition('@')[2]}{slash}{path}"


def shown_url(url: str) -> str:
    """A URL as it may be shown: without its login, its query and its fragment. One whose port is
    no number may be cut in the wrong place by a password, so nothing of it is shown."""
    found = _BEGIN.match(url)
    begin = found.group() if found else ""
    rest = without_login(_AFTER_PATH.split(url[len(begin) :], maxsplit=1)[0])
    _, colon, port = rest.partition("/")[0].rpartition(":")
    if colon and port and not port.isdecimal() and not port.endswith("]"):
        return f"{begin}{_NOT_SHOWN}"
    return begin + rest


def shown_text(text: str, url: str) -> str:
    """The text of an error without the logins and queries of `url`, and of others in it."""
    text = text.replace(url, shown_url(url))
    return _QUERY.sub("", _LOGIN.sub("", text))
