"""Where initial parameters come from."""
