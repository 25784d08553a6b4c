"""Orders, and what is done for them in the background."""
