"""A third party, played over HTTP: it times requests by its own clock and refuses what breaks its limits."""
