"""The faces over HTTP. Edges: they parse, call what is below, and write down what comes back."""
