"""The counts of kvcake.vllm.stats in vLLM's log and in its /metrics."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (KVConnectorPromMetrics,
                                                                  KVConnectorStats)

from kvcake.vllm.stats import COUNTERS, MEETING_POINT, merge, summary


@dataclass
class KvcakeStats(KVConnectorStats):
    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        merge(self.data, other.data)
        return self

    def reduce(self) -> dict[str, int | float]:
        return summary(self.data)

    def is_empty(self) -> bool:
        return not self.data


class KvcakePromMetrics(KVConnectorPromMetrics):
    """vllm:kvcake_tokens_loaded and so on; for each engine."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str],
                 per_engine_labelvalues: dict[int, list[object]]) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {
            name: self._of_engines(self._counter_cls(
                name=f"vllm:kvcake_{name}", documentation=text, labelnames=labelnames))
            for name, text in COUNTERS.items()}
        self._met = self._of_engines(self._histogram_cls(
            name=f"vllm:kvcake_{MEETING_POINT}", labelnames=labelnames,
            documentation="Where compute and load met, as a share of what was stored of a prompt.",
            buckets=[i / 10 for i in range(11)]))

    def _of_engines(self, metric: Any) -> dict[int, Any]:
        return {index: metric.labels(*values)
                for index, values in self.per_engine_labelvalues.items()}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, counters in self._counters.items():
            if value := transfer_stats_data.get(name):
                counters[engine_idx].inc(value)
        for met in transfer_stats_data.get(MEETING_POINT, ()):
            self._met[engine_idx].observe(met)
