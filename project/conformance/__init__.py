"""The conformance trial: the Open Job Spec's public cases against a live server (`make conformance`)."""
