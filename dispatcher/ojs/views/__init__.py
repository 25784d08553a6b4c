"""The endpoints, one module for each resource of the spec."""
