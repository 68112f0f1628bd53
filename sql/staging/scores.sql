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
    qualify lag(event_id) over (
        partition by group_id order by event_id, log_partition, log_offset
    ) is distinct from event_id
)

select * from final
