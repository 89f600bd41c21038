"""The exact bytes of a token, from the printable form that vocabularies use."""

from __future__ import annotations


def byte_level_table() -> dict[str, int]:
    """GPT-2's printable characters for bytes: character to byte value."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in printable}
    stand_in = 256
    for byte in range(256):
        if byte not in printable:
            table[chr(stand_in)] = byte
            stand_in += 1
    return table


def byte_level_bytes(token: str, table: dict[str, int]) -> bytes:
    """Bytes of a byte-level BPE token; any other token is encoded as UTF-8."""
    try:
        return bytes(table[character] for character in token)
    except KeyError:
        return token.encode()


def metaspace_bytes(token: str) -> bytes:
    """Bytes of a SentencePiece token: U+2581 is a space, <0xNN> is a byte."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            pass
    return token.replace("\u2581", " ").encode()
