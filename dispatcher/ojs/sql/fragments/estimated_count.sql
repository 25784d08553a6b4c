-- estimated_count(seconds, span): how many rows came in so many seconds, estimated from the time in which those
-- counted came.
round(count(*) * {{seconds}} / GREATEST(EXTRACT(EPOCH FROM {{span}}), 0.001))::bigint
