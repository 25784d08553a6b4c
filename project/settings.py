"""Settings of the project, from the environment where they differ from machine to machine.

DATABASE_URL and CELERY_BROKER_URL name the servers; without them the embedded ones that `make run` or
`make demo` has up are used. DATABASE_POOLER=transaction says that the database is behind a pooler in
transaction mode. docs/how-to/docker-compose.md lists the variables of a deployment; each can be given as a file, too
(SECRET_KEY_FILE and so on).
"""

import dj_database_url

from project import environment, run_dirs
from project.shop.limits import KEYS

# A host that cannot exist puts the remedy into the error message of whatever tries to connect.
NOWHERE = run_dirs.Addresses(
    database_url="postgresql://database-url-is-not-set.invalid/project",
    broker_url="redis://celery-broker-url-is-not-set.invalid/0",
)
ADDRESSES = run_dirs.running_addresses() or NOWHERE

SECRET_KEY = environment.read("SECRET_KEY") or run_dirs.secret_key()
DEBUG = bool(environment.read("DEBUG"))
ALLOWED_HOSTS = environment.read_list("ALLOWED_HOSTS", "localhost,127.0.0.1")

# A proxy in front speaks TLS, and sets X-Forwarded-Proto whatever its client has sent.
IS_BEHIND_TLS_PROXY = bool(environment.read("BEHIND_TLS_PROXY"))
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if IS_BEHIND_TLS_PROXY else None
SECURE_SSL_REDIRECT = SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = IS_BEHIND_TLS_PROXY
SECURE_HSTS_SECONDS = int(environment.read("HSTS_SECONDS", "3600")) if IS_BEHIND_TLS_PROXY else 0
CSRF_TRUSTED_ORIGINS = environment.read_list("CSRF_TRUSTED_ORIGINS")

# The core runs without the Open Job Spec: pytest --without-ojs.
HAS_OJS = not environment.read("WITHOUT_OJS")
INSTALLED_APPS = [
    "dispatcher",
    *(["dispatcher.ojs"] if HAS_OJS else []),
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
    "project.health.HealthCheckMiddleware",
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
ROOT_URLCONF = environment.read("ROOT_URLCONF", "project.urls")
WSGI_APPLICATION = "project.wsgi.application"
STATIC_URL = "static/"
# The admin's few files are served by the web process itself, without a collectstatic before.
WHITENOISE_USE_FINDERS = True

DATABASES = {
    "default": dj_database_url.parse(
        environment.with_password(
            environment.read("DATABASE_URL", ADDRESSES.database_url), environment.read("DATABASE_PASSWORD")
        ),
        conn_max_age=600,
        conn_health_checks=True,
        # Django's word for it; the dispatcher then prepares no statements either.
        disable_server_side_cursors=environment.read("DATABASE_POOLER") == "transaction",
    )
}
# A database that does not answer (a cut cable, a frozen host) is noticed within 20 s; by default it takes a quarter of
# an hour or more. What the address says goes first.
DATABASES["default"]["OPTIONS"] = {
    "connect_timeout": 5,
    "tcp_user_timeout": 15_000,
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    **DATABASES["default"].get("OPTIONS", {}),
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TIME_ZONE = "UTC"
USE_TZ = True

# Celery reads CELERY_BROKER_URL and BROKER_URL past the settings: an address without its password has another name.
CELERY_BROKER_URL = environment.read("CELERY_BROKER_URL") or environment.with_password(
    environment.read("BROKER_ADDRESS", ADDRESSES.broker_url), environment.read("BROKER_PASSWORD")
)
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# A sender must not wait long for a broker that is down: what it could not publish, the next tick does.
CELERY_BROKER_CONNECTION_TIMEOUT = 2
CELERY_BROKER_TRANSPORT_OPTIONS = (
    {"confirm_publish": True}
    if CELERY_BROKER_URL.startswith("amqp")
    else {"socket_connect_timeout": 2, "socket_timeout": 5, "socket_keepalive": True}
)
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_SERIALIZER = "json"
CELERY_RESULT_SERIALIZER = "json"
CELERY_TIMEZONE = TIME_ZONE
CELERY_ENABLE_UTC = True
# What is dispatched should start at once, and not wait behind a long task of the same worker.
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
# Else the traceback of a process that ends is logged word by word: a thousand lines.
CELERY_WORKER_REDIRECT_STDOUTS = False
CELERY_BEAT_SCHEDULER = "django_celery_beat.schedulers:DatabaseScheduler"

DISPATCHER = {
    "keys": KEYS,
    # Workers take calls from PostgreSQL; those of this queue go through the broker, if there is one.
    "delivery": {} if CELERY_BROKER_URL.startswith("memory:") else {"reports": "broker"},
    # Fewer than the threads of the server.
    "http_waiters": int(environment.read("HTTP_WAITERS", "2")),
}
