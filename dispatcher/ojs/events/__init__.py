"""Events, built from rows and from the event log (ojs-events, ojs-realtime)."""
