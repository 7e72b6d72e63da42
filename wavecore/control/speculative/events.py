"""What happens to the controller (events) and what it wants done or known (outputs): plain data.

Times are nanoseconds of one clock. Positions count latents of the stream from 0; a group is the frames of
one latent.
"""

from __future__ import annotations

from typing import Any, Literal, Union

from msgspec import Struct

# What of a group is there. A mask rather than an enumeration: it is combined in every event.
LATENT = 1  # the clean latent
CONTEXT = 2  # what the model attends to: its keys and values
PIXELS = 4  # its frames
SNAPSHOT = 8  # the decoder's state after it, from which decoding can go on
COMPLETE = LATENT | CONTEXT | PIXELS | SNAPSHOT

Fallback = Literal["freeze", "drop", "stale", "retarget"]
Outcome = Literal["displayed", "superseded", "identical", "lost"]


# -- events ------------------------------------------------------------------------------


class Update(Struct, frozen=True):
    """A condition was asked for; the first one starts the stream."""

    time: int
    condition: Any


class Ready(Struct, frozen=True, gc=False):
    """The active job has made `parts` of its group number `group`."""

    time: int
    job: int
    group: int
    parts: int = COMPLETE


class Finish(Struct, frozen=True, gc=False):
    """A job has ended; it makes nothing more."""

    time: int
    job: int


class Failed(Struct, frozen=True, gc=False):
    """A job has ended with an error."""

    time: int
    job: int
    reason: str = ""


class Cancelled(Struct, frozen=True, gc=False):
    """A job has ended because it was told to."""

    time: int
    job: int


class Tick(Struct, frozen=True, gc=False):
    """The time to hand over or show the next group."""

    time: int


class Wake(Struct, frozen=True, gc=False):
    """The time to look at the guards again."""

    time: int


class Close(Struct, frozen=True, gc=False):
    """The stream ends."""

    time: int


Event = Union[Update, Ready, Finish, Failed, Cancelled, Tick, Wake, Close]  # noqa: UP007 (3.10: at run time)


# -- outputs that somebody has to act on -------------------------------------------------


class Launch(Struct, frozen=True):
    """Start one call under one condition.

    Attributes
    ----------
    job, version, position : int
        `position` is where its first playable group goes, in playback and in the cache.
    groups : int
        Playable groups M_j.
    trimmed : int
        Groups before `position` that the call regenerates and that must be dropped.
    reason : "bootstrap", "pending", "refill" or "late"
    kept : int
        Groups before `position` that the job before it, which this one cuts, has not completed: they go on
        under their own condition and are reported as groups -kept to -1 of this job.
    """

    time: int
    job: int
    version: int
    condition: Any
    position: int
    groups: int
    trimmed: int
    reason: str
    kept: int = 0


class Publish(Struct, frozen=True, gc=False):
    """Make `parts` of a position visible to later work and to playback."""

    time: int
    job: int
    position: int
    parts: int


class Commit(Struct, frozen=True, gc=False):
    """Hand a position downstream; from now on it can never change."""

    time: int
    position: int
    version: int


class Display(Struct, frozen=True, gc=False):
    """Show a position."""

    time: int
    position: int
    version: int


class Shelve(Struct, frozen=True, gc=False):
    """Replaceable predictions [first, end) are invalid, but may be restored: keep them apart."""

    time: int
    first: int
    end: int


class Restore(Struct, frozen=True, gc=False):
    """The shelved predictions [first, end) are valid again; what the failed job published is not."""

    time: int
    first: int
    end: int


class Discard(Struct, frozen=True, gc=False):
    """Predictions in [first, end) are invalid for good; `groups` of them had been sampled."""

    time: int
    first: int
    end: int
    groups: int
    reason: str


class Cancel(Struct, frozen=True, gc=False):
    """Tell the worker to end a job."""

    time: int
    job: int
    reason: str


# -- outputs that explain ----------------------------------------------------------------


class Accepted(Struct, frozen=True):
    """An update got its version."""

    time: int
    version: int
    condition: Any


class JobEnd(Struct, frozen=True, gc=False):
    """The slot is free; `outcome` is "finish", "failed", "cancelled" or "cut" (the next launch goes on)."""

    time: int
    job: int
    start: int
    outcome: str


class Rejection(Struct, frozen=True, gc=False):
    """Why a position was not feasible; `short` is by how many nanoseconds, where it is about time."""

    position: int
    guard: str
    short: int = 0


class Decision(Struct, frozen=True):
    """The dispatch rule was evaluated with a reason to launch.

    Attributes
    ----------
    seq : int
        Number of the event it followed.
    reason : "bootstrap", "pending", "refill" or "late"
    position : int or None
        Chosen position; None when nothing was launched.
    rejected : tuple of Rejection
        Positions considered before it, each with the first guard that failed.
    coverage, lead : int
        Remaining playable nanoseconds h, and the refill lead η.
    """

    time: int
    seq: int
    reason: str
    position: int | None
    rejected: tuple[Rejection, ...]
    coverage: int
    lead: int


class Begin(Struct, frozen=True, gc=False):
    """Playback starts at `start`; `startup` is that minus the arrival of the first condition."""

    time: int
    start: int
    startup: int


class Underrun(Struct, frozen=True, gc=False):
    """`groups` positions from `position` on were due and not ready."""

    time: int
    position: int
    groups: int
    fallback: str


class Resume(Struct, frozen=True, gc=False):
    """A frozen stream goes on; all deadlines move by `delay`."""

    time: int
    position: int
    delay: int


class Missed(Struct, frozen=True, gc=False):
    """A group was complete after its deadline, `late` nanoseconds too late for the plan at its launch."""

    time: int
    position: int
    late: int


class FellBack(Struct, frozen=True, gc=False):
    """A declared fallback covers a loss."""

    time: int
    fallback: str
    position: int
    detail: str


class Settled(Struct, frozen=True):
    """An update's record is final; see `accounting.UpdateRecord`."""

    time: int
    record: Any


class Ignored(Struct, frozen=True, gc=False):
    """An event, or part of one, changed nothing."""

    time: int
    event: str
    reason: str


class Ended(Struct, frozen=True, gc=False):
    """The controller is closed."""

    time: int
    reason: str


Output = Union[  # noqa: UP007
    Launch, Publish, Commit, Display, Shelve, Restore, Discard, Cancel, Accepted, JobEnd, Decision, Begin,
    Underrun, Resume, Missed, FellBack, Settled, Ignored, Ended,
]  # fmt: skip
