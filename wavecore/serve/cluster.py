"""The same application on Ray Serve: replicas on any number of machines behind one address."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from wavecore.serve.run import address, bind, secured
from wavecore.serve.settings import ServeSettings

if TYPE_CHECKING:
    from wavecore.serve.app import Server

APPLICATION = "wavecore"
_ROUTER = "wavecore.serve.router.WorkerRouter"
_BUSY = 0.75  # share of its slots from which a replica gets company
_OTHERS = 32  # requests that are no sessions, of one replica at a time
_STOP_SECONDS = 5.0


def deployment(settings: ServeSettings, build: Callable[[ServeSettings], Server]) -> Any:
    """Describe the replicas: an application to be given to `ray.serve.run`.

    Parameters
    ----------
    settings : ServeSettings
    build : callable
        Makes the application of the settings, in each replica.
    """
    from ray import serve

    def application() -> Any:
        name = serve.get_replica_context().replica_id.unique_id
        return build(settings.model_copy(update={"worker": name})).app

    most = settings.replicas if settings.max_replicas is None else settings.max_replicas
    replica: Any = serve.ingress(application)()
    described: Any = serve.deployment(
        replica,
        name=APPLICATION,
        # One request is one session as long as its WebSocket is open.
        max_ongoing_requests=settings.slots + _OTHERS,
        autoscaling_config={
            "min_replicas": settings.replicas,
            "initial_replicas": settings.replicas,
            "max_replicas": max(most, settings.replicas),
            "target_ongoing_requests": max(1.0, _BUSY * settings.slots),
        },
        ray_actor_options={"num_gpus": 1} if settings.device.startswith("cuda") else {},
        graceful_shutdown_timeout_s=_STOP_SECONDS,
        request_router_config={"request_router_class": _ROUTER},
    )
    return described.bind()


def serve_cluster(
    settings: ServeSettings, build: Callable[[ServeSettings], Server], announce: Callable[[str], None]
) -> None:
    """Deploy on the Ray cluster of this machine, or one started for it, until SIGINT or SIGTERM.

    Parameters
    ----------
    settings, build
        See `deployment`.
    announce : callable
        Told the address once replicas answer.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody unasked
    import ray
    from ray import serve

    settings = secured(settings)
    with bind(settings) as listener:  # says in our words if it is taken, and finds a free one
        port = listener.getsockname()[1]
    stop = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stop.set())
    ray.init(log_to_driver=False, configure_logging=False, include_dashboard=False)
    try:
        serve.start(proxy_location="EveryNode", http_options={"host": settings.host, "port": port})
        serve.run(deployment(settings, build), name=APPLICATION, route_prefix="/")
        announce(address(settings, port))
        stop.wait()
    finally:
        serve.shutdown()
        ray.shutdown()
