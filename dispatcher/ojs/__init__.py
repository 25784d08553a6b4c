"""The Open Job Spec over HTTP: clients in any language send jobs and run them, under the same limits.

Include it in the project's urls.py: path("", include("dispatcher.ojs.urls")).
"""
