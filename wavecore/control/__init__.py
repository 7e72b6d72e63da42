"""When work is done and under which condition (no torch): clocks and the speculative sampling controller."""
