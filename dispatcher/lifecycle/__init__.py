"""The steps of a call, one module each; they meet in the row of the call, and never call each other."""
