-- message_columns(call): what a message is made of.
{{call}}.id, {{call}}.ticket, {{call}}.task, {{call}}.args, {{call}}.kwargs, {{call}}.call_data,
{{call}}.headers, {{call}}.options, {{call}}.queue, {{call}}.attempt, {{call}}.chosen_keys,
{{call}}.scheduled_at, {{call}}.expires_at
