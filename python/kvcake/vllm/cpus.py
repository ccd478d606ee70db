"""The CPUs of the library's threads: where vLLM computes on CPUs it binds a worker's main thread to
one of them, and threads that start there would have to share it."""
from __future__ import annotations

import concurrent.futures
import contextlib
import os
import re
from collections.abc import Callable, Mapping
from typing import TypeVar

_Made = TypeVar("_Made")
# The variables of vLLM's OMPProcessManager, by the libraries that read them.
_BINDING = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES")


def computing(environment: Mapping[str, str] = os.environ) -> set[int]:
    """The CPUs that this process's OpenMP threads are bound to; none where that is not known."""
    for name in _BINDING:
        value = environment.get(name, "")
        if name == "KMP_AFFINITY":
            value = value.partition("proclist=")[2]
        if name == "OMP_PLACES" and environment.get("OMP_PROC_BIND", "").lower() != "true":
            continue
        if re.fullmatch(r"[\[{]?\d+(-\d+)?([ ,]\d+(-\d+)?)*[\]}]?", value):
            ranges = (one.partition("-") for one in re.findall(r"\d+(?:-\d+)?", value))
            return {cpu for first, _, last in ranges
                    for cpu in range(int(first), int(last or first) + 1)}
    return set()


def beside(computing: set[int], mine: set[int], parents: set[int]) -> set[int]:
    """The CPUs of threads that do not compute. vLLM keeps some free for them, and for its
    scheduler, from which this process comes."""
    if not computing:
        return mine
    return (parents | mine) - computing or parents | mine


def run_beside_computing(make: Callable[[], _Made]) -> _Made:
    """What `make` returns, on a thread that may run on those CPUs; so may threads that it starts."""
    mine = os.sched_getaffinity(0)
    try:
        parents = os.sched_getaffinity(os.getppid())
    except OSError:  # has ended
        parents = mine
    cpus = beside(computing(), mine, parents)
    if cpus == mine:
        return make()

    def run() -> _Made:
        with contextlib.suppress(OSError):  # a cpuset that has changed meanwhile
            os.sched_setaffinity(0, cpus)
        return make()

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()
