"""The parts of script/gpu-check."""
