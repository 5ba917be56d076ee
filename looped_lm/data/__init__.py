"""Text in, rows out: sources, cleaning, tokenizer, corpus, packing, pipeline."""
