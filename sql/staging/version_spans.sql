-- One row a range of a call's output, [output_start, output_end), that one policy version sampled. A version
-- counts optimizer steps; it is null where the engine did not say, over the whole output where it said
-- nothing.
-- Key: group_id, execution_id, call_id, output_start
with stated as (
    select distinct group_id, execution_id, call_id, unnest(spans, max_depth := 2)
    from event_calls
),

silent as (
    select distinct group_id, execution_id, call_id, n_output
    from event_calls
    where coalesce(len(spans), 0) = 0
),

final as (
    select
        group_id,
        execution_id,
        call_id,
        version,
        start::bigint as output_start,
        "end"::bigint as output_end
    from stated
    where "end" > start
    union all
    select group_id, execution_id, call_id, null, 0, n_output::bigint
    from silent
    where n_output > 0
)

select * from final
