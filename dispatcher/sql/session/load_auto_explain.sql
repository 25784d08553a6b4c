-- load_auto_explain: let this session log the plans of the statements that functions run; a superuser may.
LOAD 'auto_explain'
