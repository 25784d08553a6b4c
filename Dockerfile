FROM python:3.13-slim

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /app
COPY requirements.txt .
RUN pip install --no-cache-dir --disable-pip-version-check -r requirements.txt
COPY manage.py .
COPY dispatcher dispatcher
COPY project project

RUN useradd --system app
USER app
EXPOSE 8000
CMD ["gunicorn", "project.wsgi", "--bind", "0.0.0.0:8000", "--threads", "4", "--no-control-socket"]
