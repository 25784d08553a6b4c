-- error_recorded(error): the columns that record how an attempt of `call` failed, if it did. The first 5 and the last
-- 20 errors are kept, so that a finish costs the same after any number of failures.
error = {{error}},
errors = CASE WHEN {{error}} IS NULL THEN call.errors
              WHEN jsonb_array_length(call.errors) < 25 THEN call.errors || {{error}}
              ELSE jsonb_path_query_array(call.errors, '$[0 to 4]')
                   || jsonb_path_query_array(call.errors, '$[last - 18 to last]') || {{error}} END,
error_count = CASE WHEN {{error}} IS NULL THEN call.error_count
                   ELSE GREATEST(call.error_count, jsonb_array_length(call.errors)) + 1 END
