"""Models: the one skeleton that all looped language models share."""
