"""Looped language models in JAX: train, evaluate and use them."""
