"""Clients of a drill: streams of completions below a few common beginnings, one after the other."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections import Counter
from random import Random

_WORDS = ("all", "water", "of", "this", "old", "river", "runs", "down", "to", "town", "by", "sea")


class Clients:
    """`number` clients, each with one request at a time and a pause after it. `prefixes` is how
    many beginnings there are; 1: one for all. Answers are read and thrown away."""

    def __init__(
        self, url: str, number: int, seed: int, output_tokens: int, pause_s: float
    ) -> None:
        self.prefixes = 8
        self.ends: Counter[str] = Counter()
        self._url, self._tokens, self._pause_s = url, output_tokens, pause_s
        self._stopped = threading.Event()
        self._texts = [_text(Random(f"{seed}/{one}"), 160) for one in range(self.prefixes)]
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
        while not self._stopped.is_set():
            prefix = self._texts[random.randrange(self.prefixes)]
            self.ends[self._ask(f"{prefix} {_text(random, 12)}")] += 1
            time.sleep(random.uniform(0.5, 1.5) * self._pause_s)

    def _ask(self, prompt: str) -> str:
        body = {
            "model": "dummy:tiny", "prompt": prompt, "max_tokens": self._tokens, "stream": True,
            "ignore_eos": True,
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
