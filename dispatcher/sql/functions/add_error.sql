-- add_error: the errors of a call and one more: the first five and the last twenty of them.
CREATE FUNCTION @add_error(p_errors jsonb, p_error jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  RETURN CASE WHEN jsonb_array_length(p_errors) < 25 THEN p_errors || p_error
              ELSE jsonb_path_query_array(p_errors, '$[0 to 4]')
                   || jsonb_path_query_array(p_errors, '$[last - 18 to last]') || p_error END;
END $$;
