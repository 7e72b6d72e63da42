"""Policies of live streams (StreamDiffusionV2), as pure logic: no torch, and time from a clock only."""

from wavecore.control.streaming.balance import BlockScheduler
from wavecore.control.streaming.batching import BatchingController, BatchingSettings, Decision
from wavecore.control.streaming.cost import CostModel
from wavecore.control.streaming.inbox import Arrival, Inbox
from wavecore.control.streaming.intake import Intake, IntakeSettings
from wavecore.control.streaming.noise import NoiseController, NoiseSettings, pixel_differences
from wavecore.control.streaming.partition import bottleneck, partition, worth_moving
from wavecore.control.streaming.settings import StreamingSettings
from wavecore.control.streaming.sinks import SinkChange, SinkSet
from wavecore.control.streaming.transition import transition_share

__all__ = [
    "Arrival",
    "BatchingController",
    "BatchingSettings",
    "BlockScheduler",
    "CostModel",
    "Decision",
    "Inbox",
    "Intake",
    "IntakeSettings",
    "NoiseController",
    "NoiseSettings",
    "SinkChange",
    "SinkSet",
    "StreamingSettings",
    "bottleneck",
    "partition",
    "pixel_differences",
    "transition_share",
    "worth_moving",
]
