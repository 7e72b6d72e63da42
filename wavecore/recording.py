"""What a log says of the session that wrote it, so that it can be replayed."""

from __future__ import annotations

import hashlib
from typing import Any

from wavecore.models.bundle import StreamModel
from wavecore.rounds import Rules


def describe(
    model: StreamModel,
    rules: Rules,
    seed: int,
    size: tuple[int, int],
    fps: float,
    num_frames: int | None,
    placement: str,
) -> dict[str, Any]:
    """What makes a session repeatable, but for what it is asked while it runs; JSON values.

    Parameters as of `Pipeline.session`.
    """
    return {
        "model": model.name,
        "fingerprint": fingerprint(model),
        "seed": seed,
        "steps": rules.steps,
        "rounds": rules.kind,
        "placement": placement,
        "size": list(size),
        "fps": fps,
        "num_frames": num_frames,
    }


def fingerprint(model: StreamModel) -> str:
    """Tell models apart: a hash of the first numbers of every tensor."""
    digest = hashlib.blake2b(digest_size=8)
    for name, value in model.dit.state_dict().items():
        digest.update(name.encode())
        digest.update(value.flatten()[:16].float().cpu().numpy().tobytes())
    return digest.hexdigest()
