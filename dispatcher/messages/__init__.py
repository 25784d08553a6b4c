"""Messages: what a Celery message of a call carries, and the broker that takes it."""
