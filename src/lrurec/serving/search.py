"""Items by a part of their title or id. Knows text."""

import numpy as np

from lrurec.serving.artifact import Artifact

_MOST = 2000  # matches that are looked at before the best are chosen
_GAP = b"\n"


class NameSearch:
    """One run of text in lower case, searched from the left; built when it is first needed."""

    def __init__(self, artifact: Artifact) -> None:
        self._rank = {int(item): k for k, item in enumerate(artifact.popular)}
        self._texts = [self._text(artifact, k) for k in range(artifact.n_items)]
        self._blob = _GAP + _GAP.join(self._texts) + _GAP
        lengths = np.array([len(t) + 1 for t in self._texts], np.int64)
        self._starts = np.concatenate([[1], 1 + np.cumsum(lengths)])[:-1]

    def _text(self, artifact: Artifact, item: int) -> bytes:
        name, id = artifact.name(item), str(artifact.item_ids[item])
        return " ".join(f"{name or ''} {id}".casefold().split()).encode()

    def find(self, words: str, limit: int) -> list[int]:
        """Items whose title or id has the words in it: those that begin with them first, then the popular ones."""
        wanted = " ".join(words.casefold().split()).encode(errors="replace")
        if not wanted:
            return list(self._rank)[:limit]
        found: list[tuple[bool, bool, int, int]] = []
        at = self._blob.find(wanted)
        while at >= 0 and len(found) < _MOST:
            item = int(np.searchsorted(self._starts, at, side="right")) - 1
            text = self._texts[item]
            inside = b" " + wanted not in b" " + text
            found.append((not text.startswith(wanted), inside, self._rank.get(item, len(self._texts)), item))
            at = self._blob.find(wanted, int(self._starts[item]) + len(text))
        return [item for *_, item in sorted(found)[:limit]]
