"""The training loop and what surrounds it: steps, devices, checkpoints, metrics, reports."""
