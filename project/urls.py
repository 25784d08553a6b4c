"""All addresses of the project in one server, as `make run` has it."""

from project import admin_urls, job_urls

urlpatterns = [*job_urls.urlpatterns, *admin_urls.urlpatterns]
