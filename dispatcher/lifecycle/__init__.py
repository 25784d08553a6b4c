"""The steps of a call, one module each; they hand over through the row, never by calling each other."""
