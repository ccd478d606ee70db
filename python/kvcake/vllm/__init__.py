"""Cake in vLLM, out of its tree:

    vllm serve MODEL --scheduler-cls kvcake.vllm.KvcakeScheduler --kv-transfer-config '{
      "kv_connector": "KvcakeConnector", "kv_connector_module_path": "kvcake.vllm",
      "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
      "kv_connector_extra_config": {"stores": ["/var/cache/kvcake"]}}'

docs/vllm.md of kvcake has the options, the metrics, and what is not supported.
"""
from __future__ import annotations

import importlib
from typing import Any

_HERE = {"KvcakeConnector": "kvcake.vllm.connector", "KvcakeScheduler": "kvcake.vllm.scheduler",
         "KvcakeAsyncScheduler": "kvcake.vllm.scheduler"}
__all__ = list(_HERE)


def __getattr__(name: str) -> Any:
    """What needs vLLM is imported when it is asked for."""
    if name not in _HERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HERE[name]), name)
