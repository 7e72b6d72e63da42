"""Video in and out: frames are uint8 arrays [height, width, 3], RGB, read and written one at a time.

PyAV and Pillow are imported only when a file is opened or an image is made.
"""

from __future__ import annotations

from wavecore.files import check_output
from wavecore.media.geometry import centre_crop_box, fit_frame
from wavecore.media.live import LiveSource, PacedFile, open_camera, open_pipe, open_tcp, parse_address
from wavecore.media.outlet import Outlet
from wavecore.media.reader import VideoInfo, VideoReader, read_video
from wavecore.media.sheet import FramePicker, contact_sheet, save_contact_sheet
from wavecore.media.timing import resample
from wavecore.media.writer import FrameDirectoryWriter, FrameSink, VideoWriter, write_latents

__all__ = [
    "FrameDirectoryWriter",
    "FramePicker",
    "FrameSink",
    "LiveSource",
    "Outlet",
    "PacedFile",
    "VideoInfo",
    "VideoReader",
    "VideoWriter",
    "centre_crop_box",
    "check_output",
    "contact_sheet",
    "fit_frame",
    "open_camera",
    "open_pipe",
    "open_tcp",
    "parse_address",
    "read_video",
    "resample",
    "save_contact_sheet",
    "write_latents",
]
