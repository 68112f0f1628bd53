-- One row a tool call of a harness; sizes instead of the payloads, which stay in `event_tools`.
-- `looks_failed` is a guess from how the result begins: a harness rarely says whether a tool failed.
-- Key: group_id, execution_id, tool_call_id
with final as (
    select
        group_id,
        execution_id,
        tool_call_id,
        call_id,
        name,
        octet_length(arguments) as argument_bytes,
        octet_length(result) as result_bytes,
        regexp_matches(left(result::varchar, 64), '(?i)^\W*(\w*error|exception|traceback|fatal|failed)\b')
            as looks_failed,
        status,
        started_us,
        stopped_us,
        stopped_us - started_us as duration_us
    from event_tools
    qualify row_number() over (partition by event_id order by log_partition, log_offset) = 1
)

select * from final
