"""Ways out: a trained model in the form that other programs read."""
