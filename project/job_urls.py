"""The addresses of the service `api`: the Open Job Spec, whose requests may wait for half a minute each."""

from django.conf import settings
from django.urls import include, path

urlpatterns = [path("", include("dispatcher.ojs.urls"))] if settings.HAS_OJS else []
