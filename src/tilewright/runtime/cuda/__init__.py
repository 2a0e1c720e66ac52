"""Running engines on NVIDIA GPUs, through the driver alone."""
