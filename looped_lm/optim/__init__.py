"""Optimisers, one file each, with their schedules and masks."""
