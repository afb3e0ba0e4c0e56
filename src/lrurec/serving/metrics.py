"""What the server counts, for Prometheus. Knows names and numbers.

With several workers each keeps its numbers in a shared folder (PROMETHEUS_MULTIPROC_DIR, set before this is imported),
and whoever is asked adds them up.
"""

import os

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    multiprocess,
)

CONTENT_TYPE = CONTENT_TYPE_LATEST
_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_SECONDS = (0.00025, 0.0005, 0.001, 0.002, 0.004, 0.007, 0.01, 0.02, 0.05, 0.1, 0.25, 1, 5)

REGISTRY = CollectorRegistry()
LATENCY = Histogram(
    "lrurec_request_seconds",
    "From the last byte of a request to its answer",
    ("route", "status"),
    buckets=_SECONDS,
    registry=REGISTRY,
)
WAITING = Gauge("lrurec_requests_in_flight", "Requests being answered", registry=REGISTRY, multiprocess_mode="livesum")
REFUSED = Counter("lrurec_requests_refused", "Requests answered 503 because too many were waiting", registry=REGISTRY)
EVENTS = Counter("lrurec_events_stored", "Events that were new", registry=REGISTRY)
REPEATED = Counter("lrurec_events_repeated", "Events that were known by their id", registry=REGISTRY)
LEARNED = Counter("lrurec_memory_events", "Events that the memory has counted (serve --learn)", registry=REGISTRY)
APPEND = Histogram(
    "lrurec_store_append_seconds",
    "From handing events to the store until they are on disk",
    buckets=_SECONDS,
    registry=REGISTRY,
)
STORE_ERRORS = Counter("lrurec_store_errors", "Requests that the store could not serve", registry=REGISTRY)
BATCH = Histogram(
    "lrurec_batch_size", "Recommendations scored together", buckets=(1, 2, 4, 8, 16, 32, 64), registry=REGISTRY
)
STATES = Counter(
    "lrurec_state_cache",
    "States used as they were stored (hit) or made again from the history (miss)",
    ("result",),
    registry=REGISTRY,
)


def page() -> bytes:
    """All of it, as Prometheus reads it, over all workers."""
    if _FOLDER not in os.environ:
        return generate_latest(REGISTRY)
    everybody = CollectorRegistry()
    multiprocess.MultiProcessCollector(everybody)  # type: ignore[no-untyped-call]
    return generate_latest(everybody)
