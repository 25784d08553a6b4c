"""A small Django project that uses the dispatcher the way its users would."""
