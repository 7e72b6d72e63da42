"""The C++ kernels of the selected instruction set."""

from __future__ import annotations

from wavecore import _native

INSTRUCTION_SETS = tuple(_native.supported_instruction_sets())


class Kernels:
    """The kernels of the selected instruction set."""

    def __init__(self) -> None:
        self.select(INSTRUCTION_SETS[-1])

    def select(self, name: str) -> None:
        self.operations = _native.Operations(name)


kernels = Kernels()


def select_instruction_set(name: str | None) -> None:
    """Force an instruction set ("portable", "avx2", ..., "amx"), or take the fastest when None."""
    kernels.select(name or INSTRUCTION_SETS[-1])


def matrix_units() -> str:
    """Whether the processor's matrix units (AMX) can be used: "usable", or why not."""
    return str(_native.matrix_units())


def instruction_set() -> str:
    """Name of the instruction set in use."""
    return kernels.operations.instruction_set
