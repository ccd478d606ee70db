"""What is counted, as numbers that add up over steps and ranks."""
from __future__ import annotations

COUNTERS = {
    "tokens_loaded": "Prompt tokens that were copied from stores to vLLM's blocks.",
    "tokens_computed": "Tokens of restored prompts' chunks that were computed.",
    "restorations": "Prompts of which something was restored.",
    "seconds_saved": "Estimated time that computing the tokens loaded would have taken.",
    "copy_seconds": "Time that copying them to blocks took.",
    "chunks_kept": "Chunks that were written, of each store.",
    "chunks_dropped": "Chunks that were not, for want of memory or time, or as a store failed.",
    "reads_failed": "Reads of stores that failed or were damaged.",
}
MEETING_POINT = "meeting_point"  # of each: where compute and load met, as a share of the prompt


class Counts:
    """Since they were taken last. Tensor parallel ranks load the same tokens: the first counts."""

    def __init__(self, first_rank: bool = True) -> None:
        self._first = first_rank
        self._told = {"chunks_kept": 0, "chunks_dropped": 0, "reads_failed": 0}
        self._data: dict[str, float | list[float]] = {}

    def _add(self, name: str, value: float) -> None:
        if value:
            self._data[name] = self._data.get(name, 0) + value

    def restored(self, loaded: int, computed: int, met: int, chunks: int,
                 saved_s: float) -> None:
        if not self._first:
            return
        self._add("tokens_computed", computed)
        if loaded > 0:
            self._add("restorations", 1)
            self._add("seconds_saved", saved_s)
            self._data.setdefault(MEETING_POINT, []).append(met / chunks)

    def copied(self, tokens: int, seconds: float) -> None:
        if self._first:
            self._add("tokens_loaded", tokens)
            self._add("copy_seconds", seconds)

    def dropped(self, chunks: int) -> None:
        self._add("chunks_dropped", chunks)

    def of_cache(self, written: int, dropped: int, reads_failed: int) -> None:
        """So many since the cache was opened."""
        for name, count in zip(self._told, (written, dropped, reads_failed)):
            self._add(name, count - self._told[name])
            self._told[name] = count

    def take(self) -> dict[str, float | list[float]]:
        """What was counted."""
        data, self._data = self._data, {}
        return data


def merge(into: dict, other: dict) -> dict:
    """Adds the counts of another rank or step."""
    for name, value in other.items():
        into[name] = into[name] + value if name in into else value
    return into


def summary(data: dict) -> dict[str, float]:
    """For a line of a log."""
    shown = {name: round(data[name], 3) for name in COUNTERS if name in data}
    if met := data.get(MEETING_POINT):
        shown[MEETING_POINT] = round(sum(met) / len(met), 3)
    return shown
