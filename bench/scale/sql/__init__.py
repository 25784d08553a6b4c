"""The statements that fill a system, several in a file; :tenants and the like are the numbers of sizes.Size."""
