"""Workflows: chains, groups, batches and graphs of jobs (ojs-workflows)."""
