"""Run the witness of the shop: `python -m project.witness`; it prints where it listens."""

from project.shop.limits import published
from project.witness.serving import serve

serve(published())
