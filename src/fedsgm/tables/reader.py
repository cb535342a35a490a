"""The words and symbols of a constraint, one after another, and errors that say which of them is wrong."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from fedsgm.base.errors import SettingError

_TOKEN = re.compile(r"""\s*(?:(<=|>=|==|[()<>=,*])|'([^']*)'|"([^"]*)"|([\w.+-]+))""")
_INSTEAD = {
    "≤": "write <=",
    "≥": "write >=",
    "%": "write a share, 0.05 for 5 %",
    "!": "write == and the other class",
    "&": "write * between columns, and give each constraint by itself",
    ";": "give each constraint by itself",
    "[": "write ( and )",
    "/": "write a bound as 0.05, and a name with more than letters and digits in quotes",
}


class Reader:
    """Takes a text apart and hands its tokens out."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, bool]] = []  # and whether it is a symbol
        place = 0
        while text[place:].strip():
            found = _TOKEN.match(text, place)
            if found is None:
                raise self._strange(text[place:].strip()[0])
            symbol, *quotes, word = found.groups()
            self.tokens.append((symbol, True) if symbol else (next(t for t in (*quotes, word) if t is not None), False))
            place = found.end()

    @property
    def next(self) -> str:
        return self.tokens[0][0] if self.tokens else ""

    @property
    def at_word(self) -> bool:
        return bool(self.tokens) and not self.tokens[0][1]

    @property
    def at_option(self) -> bool:
        """Whether a word and = are next."""
        return self.at_word and self.tokens[1:2] == [("=", True)]

    def at(self, *symbols: str) -> bool:
        """Whether one of these symbols is next."""
        return bool(self.tokens) and self.tokens[0][1] and self.next in symbols

    def take(self) -> str:
        return self.tokens.pop(0)[0]

    def word(self, wanted: str) -> str:
        if not self.at_word:
            raise self.wrong(f"{wanted}, but {self._there()}")
        return self.take()

    def symbol(self, symbol: str, wanted: str) -> None:
        if not self.at(symbol):
            raise self.wrong(f"{wanted}, but {self._there()}")
        self.take()

    def wrong(self, why: str) -> SettingError:
        return SettingError(f"constraint {self.text!r}: {why}")

    def _there(self) -> str:
        return f"{self.next!r} is there" if self.tokens else "nothing is there"

    def _strange(self, character: str) -> SettingError:
        if character in "'\"":
            return self.wrong(f"the quote {character} is not closed; write it after the name, too")
        instead = _INSTEAD.get(character, "a name with more than letters and digits goes in quotes")
        return self.wrong(f"{character!r} has no meaning here; {instead}")


def quoted(word: str) -> str:
    """A name or a value as it is written: in quotes where it needs them."""
    if re.fullmatch(r"[\w.+-]+", word):
        return word
    return f'"{word}"' if "'" in word else f"'{word}'"


def nearest(word: str, known: Iterable[str]) -> str:
    known = list(known)
    near = difflib.get_close_matches(word, known, n=1)
    near = near or difflib.get_close_matches(word.lower().replace("-", "_"), known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known) or 'none'}"
