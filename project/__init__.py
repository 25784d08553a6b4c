"""A small Django project that uses the dispatcher the way its users would."""

from project.celery import app as celery_app

__all__ = ["celery_app"]
