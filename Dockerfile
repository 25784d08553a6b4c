# The digest is that of the index for all platforms. Raise both together:
#   docker buildx imagetools inspect python:3.13-slim-trixie
FROM python:3.13.14-slim-trixie@sha256:6771159cd4fa5d9bba1258caf0b82e6b73458c694d178ad97c5e925c2d0e1a91

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /app
COPY requirements.lock .
RUN pip install --no-cache-dir --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
COPY manage.py .
COPY dispatcher dispatcher
COPY project project

RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin app
USER 10001
EXPOSE 8000
# Of the web server; docker-compose.yml gives the others checks of their own.
HEALTHCHECK --interval=10s --timeout=8s --retries=6 --start-period=20s CMD ["python", "-c", "\
import http.client, sys; \
web = http.client.HTTPConnection('127.0.0.1:8000', timeout=7); \
web.request('GET', '/healthz'); \
sys.exit(web.getresponse().status != 200)"]
CMD ["python", "-m", "project.serve", "--listen", "0.0.0.0:8000", "--threads", "4"]
