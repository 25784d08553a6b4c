"""Settings of the project, from the environment where they differ from machine to machine.

DATABASE_URL and CELERY_BROKER_URL name the servers; without them the embedded ones that `make run` or
`make demo` has up are used. DATABASE_POOLER=transaction says that the database is behind a pooler in
transaction mode. SECRET_KEY, ALLOWED_HOSTS (separated by commas) and DEBUG (1 or nothing) are for a deployment.
"""

import os

import dj_database_url

from project import homes
from project.shop.limits import KEYS

# A host that cannot exist puts the remedy into the error message of whatever tries to connect.
NOWHERE = homes.Addresses(
    database_url="postgresql://database-url-is-not-set.invalid/project",
    broker_url="redis://celery-broker-url-is-not-set.invalid/0",
)
ADDRESSES = homes.attached() or NOWHERE

SECRET_KEY = os.environ.get("SECRET_KEY") or homes.secret_key()
DEBUG = bool(os.environ.get("DEBUG"))
ALLOWED_HOSTS = os.environ.get("ALLOWED_HOSTS", "localhost,127.0.0.1").split(",")

INSTALLED_APPS = [
    "dispatcher",
    "project.shop",
    "django_celery_beat",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.postgres",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
ROOT_URLCONF = "project.urls"
WSGI_APPLICATION = "project.wsgi.application"
STATIC_URL = "static/"
# The admin's few files are served by the web process itself, without a collectstatic before.
WHITENOISE_USE_FINDERS = True

DATABASES = {
    "default": dj_database_url.parse(
        os.environ.get("DATABASE_URL") or ADDRESSES.database_url,
        conn_max_age=600,
        conn_health_checks=True,
        # Django's word for it; the dispatcher then prepares no statements either.
        disable_server_side_cursors=os.environ.get("DATABASE_POOLER") == "transaction",
    )
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TIME_ZONE = "UTC"
USE_TZ = True

CELERY_BROKER_URL = os.environ.get("CELERY_BROKER_URL") or ADDRESSES.broker_url
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# A sender must not wait long for a broker that is down: what it could not hand over, the next pass does.
CELERY_BROKER_CONNECTION_TIMEOUT = 2
CELERY_BROKER_TRANSPORT_OPTIONS = (
    {"confirm_publish": True}
    if CELERY_BROKER_URL.startswith("amqp")
    else {"socket_connect_timeout": 2, "socket_keepalive": True}
)
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_SERIALIZER = "json"
CELERY_RESULT_SERIALIZER = "json"
CELERY_TASK_IGNORE_RESULT = True
CELERY_TIMEZONE = TIME_ZONE
CELERY_ENABLE_UTC = True
# What is admitted should start at once, and not lie behind a long task of the same worker.
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BEAT_SCHEDULER = "django_celery_beat.schedulers:DatabaseScheduler"

DISPATCHER = {"keys": KEYS}
