"""The statements of the soak, one a file."""
