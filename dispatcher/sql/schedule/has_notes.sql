-- has_notes: whether a note is due. Relies on the index note_at.
SELECT (SELECT note.at FROM dispatcher_note AS note WHERE note.at <= {{now}} ORDER BY note.at LIMIT 1) IS NOT NULL
       AS is_due
