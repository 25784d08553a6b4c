"""The endpoints, a module for each of the spec's resources."""
