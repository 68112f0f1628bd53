-- Question: How often do clip and cap bite, by the sign of the advantage?
-- One row a committed step: how often the sequence clip masked an execution, the mean log sequence ratio, and
-- how often a token's weight was capped, by the sign of the advantage (up: above 0). Null where the trainer
-- did not say, and where no execution has that sign.
-- Then: one side clipped far more than the other is engine mismatch or stale data: see mismatch_by_lag.
-- Empty: no step has been committed.
-- Key: step
with stated as (
    select step, if(json_valid(statistics), statistics, '{}') as statistics
    from steps
    where new_version is not null
),

final as (
    select
        step,
        try_cast(json_extract_string(statistics, '$.clip_rate_up') as double) as clip_rate_up,
        try_cast(json_extract_string(statistics, '$.clip_rate_down') as double) as clip_rate_down,
        try_cast(json_extract_string(statistics, '$.log_s_up') as double) as log_s_up,
        try_cast(json_extract_string(statistics, '$.log_s_down') as double) as log_s_down,
        try_cast(json_extract_string(statistics, '$.masked_targets') as double) as masked_targets,
        try_cast(json_extract_string(statistics, '$.cap_rate') as double) as cap_rate,
        try_cast(json_extract_string(statistics, '$.cap_rate_up') as double) as cap_rate_up,
        try_cast(json_extract_string(statistics, '$.cap_rate_down') as double) as cap_rate_down
    from stated
)

select * from final
