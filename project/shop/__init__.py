"""A small shop: it takes payments, sends mail and syncs tenants, under the limits of third parties."""
