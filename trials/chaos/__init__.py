"""Let faults strike by a seeded schedule, under load and against a strict witness, and judge what came of it.

The pieces in order: plan (what strikes when), supervisor (the processes), load and producer (what is sent), tasks (what
runs), faults (how each strikes), records (what is known at the end), verdict (what follows from it).
"""
