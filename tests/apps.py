"""The apps of the dispatcher that are installed."""

APPS = ["dispatcher", "dispatcher.ojs"]
"""Their tables are emptied after a test that commits; --without-ojs takes one out before any test runs."""
