-- One row an execution and policy version that sampled for it. An execution may span several versions; null
-- is a version that the engine did not say.
-- Key: group_id, execution_id, version
with spans as (
    select distinct group_id, execution_id, call_id, unnest(spans, max_depth := 2)
    from event_calls
),

final as (
    select
        group_id,
        execution_id,
        version,
        count(distinct call_id) as calls,
        min(call_id) as first_call_id,
        sum("end" - start)::bigint as tokens
    from spans
    group by group_id, execution_id, version
)

select * from final
