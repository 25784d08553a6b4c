"""The addresses of the service `web`: the admin, the shop, and the way to the admin."""

from django.contrib import admin
from django.urls import path
from django.views.generic import RedirectView

from project.shop.views import orders

urlpatterns = [
    path("admin/", admin.site.urls),
    path("shop/", orders, name="shop"),
    path("", RedirectView.as_view(pattern_name="admin:index")),
]
