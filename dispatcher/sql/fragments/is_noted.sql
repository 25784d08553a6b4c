-- is_noted(column, ids, moment): whether a note names one of these lanes or keys that trips will read: it is due within
-- `soon`, or has been for less than `late`.
EXISTS (SELECT
          FROM dispatcher_note AS note
         WHERE note.{{column}} = ANY ({{ids}})
           AND note.at > {{moment}} - %(late)s::interval AND note.at <= {{moment}} + %(soon)s::interval)
