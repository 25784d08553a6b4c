"""Run the witness of the trial: `python -m trials.chaos.witness`; it prints where it listens."""

from project.witness.serving import serve
from trials.chaos.limits import published

serve(published())
