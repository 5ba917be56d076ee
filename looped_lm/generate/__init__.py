"""Text from a trained model: continuations and filled masks."""
