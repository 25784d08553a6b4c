-- is_noted(column, ids, moment): whether a note names one of these lanes or keys, and is still to come or has only just
-- been due.
EXISTS (SELECT
          FROM dispatcher_note AS note
         WHERE note.{{column}} = ANY ({{ids}}) AND note.at > {{moment}} - %(late)s::interval)
