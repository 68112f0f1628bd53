-- One row an assessment, all of them: late ones and repeated ones too.
-- Key: group_id, execution_id, log_offset
with final as (
    select
        group_id,
        execution_id,
        assessment,
        value,
        evaluator,
        version,
        detail,
        time_us,
        log_partition,
        log_offset
    from event_scores
    qualify row_number() over (partition by event_id order by log_partition, log_offset) = 1
)

select * from final
