"""Evaluations, one file each."""
