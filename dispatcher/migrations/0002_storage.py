"""How the hot tables are stored: room for updates in place, and an autovacuum that keeps up with them."""

from django.db import migrations

# The thresholds of the small tables are low, so that autovacuum comes to all of them whenever it looks: once a minute.
STORAGE = """
ALTER TABLE dispatcher_ratelimitkey SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE dispatcher_lane SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE dispatcher_slot SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE dispatcher_window SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE dispatcher_callqueue SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 2000, autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.05);
"""

RESET = """
ALTER TABLE dispatcher_ratelimitkey RESET (fillfactor, autovacuum_vacuum_scale_factor,
    autovacuum_vacuum_threshold, autovacuum_vacuum_cost_delay);
ALTER TABLE dispatcher_lane RESET (fillfactor, autovacuum_vacuum_scale_factor,
    autovacuum_vacuum_threshold, autovacuum_vacuum_cost_delay);
ALTER TABLE dispatcher_slot RESET (fillfactor, autovacuum_vacuum_scale_factor,
    autovacuum_vacuum_threshold, autovacuum_vacuum_cost_delay);
ALTER TABLE dispatcher_window RESET (fillfactor, autovacuum_vacuum_scale_factor,
    autovacuum_vacuum_threshold, autovacuum_vacuum_cost_delay);
ALTER TABLE dispatcher_callqueue RESET (fillfactor, autovacuum_vacuum_scale_factor,
    autovacuum_vacuum_threshold, autovacuum_analyze_scale_factor, autovacuum_vacuum_insert_scale_factor);
"""


class Migration(migrations.Migration):
    """Set the storage parameters."""

    dependencies = [("dispatcher", "0001_initial")]

    operations = [migrations.RunSQL(STORAGE, RESET)]
