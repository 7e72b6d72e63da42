"""What is computed when: rounds of slots as plain data (no tensors, no torch)."""

from wavecore.rounds.calls import CallRules, Piece
from wavecore.rounds.data import Key, Read, Round, Slot, table
from wavecore.rounds.noise import NoiseLevel, nearest_levels, nearest_sigma, noise, shifted, warped_levels
from wavecore.rounds.order import chunk_major, round_major
from wavecore.rounds.rules import Rounds, RoundsKind, Rules
from wavecore.rounds.sequential import Sequential, sequential
from wavecore.rounds.stages import Share, StageMap
from wavecore.rounds.stream_batch import StreamBatch, stream_batch
from wavecore.rounds.wavefront import Wavefront, wavefront

__all__ = [
    "CallRules",
    "Key",
    "NoiseLevel",
    "Piece",
    "Read",
    "Round",
    "Rounds",
    "RoundsKind",
    "Rules",
    "Sequential",
    "Share",
    "Slot",
    "StageMap",
    "StreamBatch",
    "Wavefront",
    "chunk_major",
    "nearest_levels",
    "nearest_sigma",
    "noise",
    "round_major",
    "sequential",
    "shifted",
    "stream_batch",
    "table",
    "warped_levels",
    "wavefront",
]
