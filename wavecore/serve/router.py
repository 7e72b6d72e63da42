"""Leads requests to the replica they belong to; runs in the proxies of Ray Serve."""

from __future__ import annotations

import pickle
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from wavecore.serve.workers import worker_of


class WorkerRouter(RequestRouter):  # type: ignore[misc]
    """To the replica that a request names, or to the one with the fewest requests, which sessions are too."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Rank replicas for a request; Ray takes the least busy one of the first rank that has room."""
        worker = None if pending_request is None else _worker(pending_request)
        own = [replica for replica in candidate_replicas if replica.replica_id.unique_id == worker]
        return [own or candidate_replicas]


def _worker(request: PendingRequest) -> str | None:
    """Name of the replica that a request is for; it comes pickled by the proxy that the router runs in."""
    first = next(iter(request.args), None)
    asked = pickle.loads(first) if isinstance(first, bytes) else first
    scope: dict[str, Any] = getattr(asked, "asgi_scope", {})
    return worker_of(scope.get("path", ""), scope.get("query_string", b"").decode("latin-1"))
