"""Sequence parallelism: the tokens of a chunk split over ranks, the baselines of wave parallelism.

Every rank of a `torch.distributed` group holds the whole model and a part of each frame's tokens. `ulysses`
trades tokens for heads around attention, by exchanges of all with all; `ring` passes keys and values around
and joins partial results by their log-sum-exp. Wan's query and key norms go over all heads: where a rank
holds some of the heads, the sums of squares are added over the ranks.
"""

from wavecore.placement.sequence.dense import SequenceParallel
from wavecore.placement.sequence.group import SequenceMode, TokenGroup, sharded_rms_norm
from wavecore.placement.sequence.ranks import SequenceOptions, SequencePlacement

__all__ = [
    "SequenceMode",
    "SequenceOptions",
    "SequenceParallel",
    "SequencePlacement",
    "TokenGroup",
    "sharded_rms_norm",
]
