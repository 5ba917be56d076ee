"""Transformer blocks, one file each."""
