"""The shop as a Django app."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """Name the app; its tasks and its e-mail handler are found by Celery in `tasks`."""

    name = "project.shop"
    label = "shop"
    verbose_name = "Shop"
