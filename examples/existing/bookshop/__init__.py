"""A small project as many are: Django, Celery, a broker and a result backend."""

from bookshop.celery import app as celery_app

__all__ = ("celery_app",)
