-- pay: write what shares have got of fair keys (see shares). The keys are locked, so one trip at a time writes.
-- Who has locked a share must not end the whole trip: it goes on from where it was.
CREATE FUNCTION @pay(p_lines @line[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  v_line @line;
BEGIN
  FOREACH v_line IN ARRAY p_lines LOOP
    UPDATE dispatcher_share AS share
       SET next = v_line.next
     WHERE share.key_id = v_line.key_id AND share.priority = v_line.priority AND share.share_id = v_line.share_id
       AND (SELECT true FROM dispatcher_share AS mine
             WHERE mine.key_id = v_line.key_id AND mine.priority = v_line.priority
               AND mine.share_id = v_line.share_id
               FOR NO KEY UPDATE SKIP LOCKED);
    IF NOT FOUND THEN
      INSERT INTO dispatcher_share (key_id, priority, share_id, next)
      SELECT v_line.key_id, v_line.priority, v_line.share_id, v_line.next
       WHERE NOT EXISTS (
             SELECT FROM dispatcher_share AS mine
              WHERE mine.key_id = v_line.key_id AND mine.priority = v_line.priority
                AND mine.share_id = v_line.share_id);
    END IF;
  END LOOP;
END $$;
