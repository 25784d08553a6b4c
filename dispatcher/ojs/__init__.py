"""The Open Job Spec over HTTP: any language can send and work, under the same limits.

Mount it with one line in the project's urls.py: path("", include("dispatcher.ojs.urls")).
"""
