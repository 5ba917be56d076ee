"""What is predicted, one file each."""
