"""The demo: the shop's calls under every kind of limit, with a strict third party as the witness."""
