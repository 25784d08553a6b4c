"""The soak: a steady churn beside a standing backlog, and what becomes of sizes, dead rows and trips meanwhile."""
