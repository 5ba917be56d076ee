"""Which (query, key) pairs are computed, one file each."""
