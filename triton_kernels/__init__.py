"""Triton kernels, one family a file. Import them through `wavecore.triton_kernels`."""
