"""Clients of a drill: streams of completions, one after the other."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections import Counter
from dataclasses import dataclass
from random import Random

_WORDS = ("all", "water", "of", "this", "old", "river", "runs", "down", "to", "town", "by", "sea")


@dataclass(frozen=True)
class Asked:
    """What each client asks: `output_tokens` after a prompt of one of `prefixes` common beginnings
    of `common_words` (0: none) and `own_words` of its own; then a pause of `pause_s` on average."""

    output_tokens: int
    own_words: int
    pause_s: float
    prefixes: int = 0
    common_words: int = 0


class Clients:
    """`number` clients with one request at a time each. Answers are read and thrown away, and
    counted in `ends`."""

    def __init__(self, url: str, model: str, number: int, seed: int, asked: Asked) -> None:
        self.ends: Counter[str] = Counter()
        self._url, self._model, self._asked = url, model, asked
        self._stopped = threading.Event()
        self._texts = [
            _text(Random(f"{seed}/{one}"), asked.common_words) + " "
            for one in range(asked.prefixes)
        ]
        self._threads = [
            threading.Thread(target=self._run, args=(Random(f"{seed}/client/{one}"),), daemon=True)
            for one in range(number)
        ]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(30)

    def _run(self, random: Random) -> None:
        while not self._stopped.wait(random.uniform(0.5, 1.5) * self._asked.pause_s):
            prefix = random.choice(self._texts) if self._texts else ""
            self.ends[self._ask(prefix + _text(random, self._asked.own_words))] += 1

    def _ask(self, prompt: str) -> str:
        body = {
            "model": self._model, "prompt": prompt, "max_tokens": self._asked.output_tokens,
            "stream": True, "ignore_eos": True,
        }  # fmt: skip
        request = urllib.request.Request(
            f"{self._url}/v1/completions",
            data=json.dumps(body).encode(),
            headers={"content-type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                while answer.read(1 << 14):
                    pass
        except OSError as error:
            return type(error).__name__
        return "read"


def _text(random: Random, words: int) -> str:
    return " ".join(random.choice(_WORDS) for _ in range(words))
