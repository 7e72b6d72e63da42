"""Settings of `wavecore serve`."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from wavecore.config import Count, Positive
from wavecore.faults import fault
from wavecore.model_settings import FilePath, ModelSettings


def _token(value: str) -> str:
    if re.fullmatch(r"[!-~]{1,200}", value) is None:  # as a header and as a message can carry it
        raise fault("expected 1 to 200 ASCII characters, none of them blank, got others")
    return value


Port = Annotated[int, Field(ge=0, le=65_535)]
WorkerName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class ServeSettings(ModelSettings):
    """Where to listen, what to serve, and to how many."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: Port = Field(7860, description="port to listen on; 0 takes a free one")
    token: Annotated[str, AfterValidator(_token)] | None = Field(
        None,
        description="what clients have to present; made up and shown where the address is not loopback and "
        "none is given",
    )
    origin: str | None = Field(
        None, description="origin of a page elsewhere that may connect, such as https://example.org"
    )
    worker: WorkerName | None = Field(
        None,
        description="name of this server among those that share an address; keys begin with it; made up when "
        "left out",
    )
    ray: bool = Field(False, description="deploy on Ray Serve, as replicas behind one address")
    replicas: Count = Field(1, description="with --ray: replicas at least")
    max_replicas: Count | None = Field(
        None, description="with --ray: replicas at most; more than --replicas come and go with the sessions"
    )
    slots: Count = Field(8, description="sessions at most")
    latency_objective: Positive = Field(1.0, description="seconds of response that sessions are admitted for")
    idle_seconds: Positive = Field(900, description="seconds without a request after which a session ends")
    lifetime_seconds: Positive = Field(3_600, description="seconds after which a session ends")
    resume_seconds: Positive = Field(30, description="seconds that a session without connection is kept")
    recordings: FilePath | None = Field(
        None, description="folder to keep recordings in; they last as long as the server when left out"
    )

    @model_validator(mode="after")
    def _consistent(self) -> ServeSettings:
        for name in ("replicas", "max_replicas"):
            if name in self.model_fields_set and not self.ray:
                raise fault("expected only with --ray", name)
        return self
